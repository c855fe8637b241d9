package inbox

// EventReset is an operator's order to read on elsewhere: what an audit finds before
// it is of other accounts.
const EventReset = "reset"

// Reset moves a row to another place, by an operator's order. As it lowers rows it is
// written as a claim, with a new token, which fences whoever works there.
//
// The accounts begin anew at that place; what they were is in the event, and the
// offsets below count as holes, so that the sum still adds up. Start stays the first
// position ever claimed, unless the place lies before it: acks are signed with it.
// The group's offset is adopted as it is, for where it can't be signed at once the
// next claim does so.
//
// An offset that was signed for another database or consumer is a [HaltError].
func Reset(database, consumer string, r Row, w Witness, to int64) (Row, []Event, error) {
	j := judge{consumer: consumer, database: database}
	if _, _, err := j.ours(w); err != nil {
		return r, nil, err
	}
	was, lost := r, r.forsake()
	r.Adopted, r.UncleanClaims = w.Acked, 0
	if to == was.Next && was.TopicID == w.TopicID {
		return r, append(lost, border(r)), nil
	}
	r = restart(r, w.TopicID, to)
	r.Adopted = w.Acked
	if was.TopicID == w.TopicID {
		r.Start = min(was.Start, to)
		r.Accounts.Holes = to - r.Start
		if to < was.Next {
			r.Epochs = epochsBelow(was.Epochs, to)
		}
	}
	ev := Event{Partition: r.Partition, Kind: EventReset, Detail: map[string]any{
		"from": was.Next, "to": to, "was": was.TopicID.String(), "is": r.TopicID.String(), "accounts": was.Accounts,
	}}
	return r, append(lost, ev, border(r)), nil
}

// SignedAck is a row's ack as its consumer signs it.
func SignedAck(database, consumer string, r Row) Ack {
	n := note{database: database, consumer: consumer, topicID: r.TopicID, first: r.Start}
	return Ack{Mark: Mark{r.Partition, r.Next}, Note: n.String()}
}

// wasReset says whether the group's offset is still the one that was there when the
// row was placed elsewhere.
func wasReset(r Row, w Witness) bool {
	_, signed := parseNote(w.Note)
	return signed && w.Acked >= 0 && w.Acked == r.Adopted && r.Next != w.Acked
}
