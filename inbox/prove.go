package inbox

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/semelhq/semel"
)

// The decisions of this file are values in, values out. They run under the lock
// of the row they decide about.

// judge holds what the decisions depend on besides row and witness.
type judge struct {
	consumer string
	database string
	byPlace  bool          // identity by position: a changed log can't be told from new messages
	forgets  bool          // the memory of IDs has a window
	window   time.Duration // of that memory
	gapHalts bool
	accept   bool // what changed is accepted by the operator
}

// errStale asks for a new witness: the row has moved on since this one was heard.
var errStale = errors.New("the witness is older than the row")

// introduce answers with the rows that the topic's partitions lack. The first
// claim of a topic writes all of them, so that what appears later is new and
// starts at its beginning. (Else: a partition added while nobody looked starts
// at `latest`, and what came before is lost.)
func (j judge) introduce(known []Row, ws []Witness) (added []Row, events []Event, err error) {
	has := make(map[semel.Partition]bool, len(known))
	for _, r := range known {
		has[r.Partition] = true
	}
	// Where the database went back to before the first claim, a sibling's signed
	// ack is the witness of that claim.
	later := len(known) > 0
	for _, w := range ws {
		n, ours, err := j.ours(w)
		if err != nil {
			return nil, nil, err
		}
		later = later || ours && n.topicID == w.TopicID
	}
	for _, w := range ws {
		if has[w.Partition] {
			continue
		}
		r := Row{Claim: Claim{Partition: w.Partition, TopicID: w.TopicID}, Adopted: -1}
		n, ours, err := j.ours(w)
		switch {
		case err != nil:
			return nil, nil, err
		case ours && n.topicID == w.TopicID:
			// the row was there once: the database went back to before it
			r.Start = n.first
			events = append(events, Event{Partition: w.Partition, Kind: "went-back", Detail: map[string]any{
				"row": "gone", "start": n.first, "broker": w.Acked,
			}})
		case ours: // of an earlier incarnation of the topic
			r.Start = w.Start
		case len(known) > 0 && w.Acked >= 0:
			return nil, nil, j.foreign(w, -1)
		case later && w.Acked < 0:
			r.Start = w.Start
		case w.FollowGroup && w.Acked >= 0:
			r.Start, r.Adopted = w.Acked, w.Acked
		default:
			r.Start, r.Adopted = w.Begin, w.Acked
		}
		r.Next = r.Start
		added = append(added, r)
		events = append(events, Event{Partition: w.Partition, Kind: "introduced", Detail: map[string]any{
			"start": r.Start, "adopted": r.Adopted, "topic_id": w.TopicID.String(),
		}})
	}
	return added, events, nil
}

// claim decides what becomes of a row whose partition is claimed. What it claims
// is an event with the accounts so far: an audit compares the log from one such
// border to the next.
func (j judge) claim(r Row, w Witness) (Row, []Event, error) {
	r, events, err := j.place(r, w)
	return r, append(events, border(r)), err
}

func border(r Row) Event {
	return Event{Partition: r.Partition, Kind: EventClaim, Detail: map[string]any{
		"next": r.Next, "topic_id": r.TopicID.String(), "settled": r.Accounts.Settled.Count,
		"settled_sum": strconv.FormatUint(r.Accounts.Settled.Sum, 10), // too large for JSON numbers elsewhere
	}}
}

func (j judge) place(r Row, w Witness) (Row, []Event, error) {
	_, ours, err := j.ours(w)
	if err != nil {
		return r, nil, err
	}
	if !ours && w.Acked >= 0 && w.Acked != r.Adopted && !j.accept {
		return r, nil, j.foreign(w, r.Adopted)
	}
	if r.TopicID != w.TopicID {
		return j.otherTopic(r, w)
	}
	if r.Next < w.Start {
		return j.gap(r, w)
	}
	if r.Next > w.End {
		return r, nil, errStale
	}
	return r, nil, nil
}

// ours reads the note beside the broker's offset. Another database or another
// consumer behind the same group is refused: the two would take turns.
func (j judge) ours(w Witness) (note, bool, error) {
	if w.Acked < 0 {
		return note{}, false, nil
	}
	n, ok := parseNote(w.Note)
	switch {
	case !ok:
		return note{}, false, nil
	case n.database != j.database && !j.accept:
		return n, false, &HaltError{
			Partition: w.Partition, Kind: "other-database",
			Why:  fmt.Sprintf("the group's offset was committed on behalf of another database (%s, this one is %s)", n.database, j.database),
			Hint: "give this consumer a group of its own, or, if this database takes over from the other for good, run once with --accept-change",
		}
	case n.consumer != j.consumer && !j.accept:
		return n, false, &HaltError{
			Partition: w.Partition, Kind: "other-consumer",
			Why:  fmt.Sprintf("the group's offset was committed by consumer %q", n.consumer),
			Hint: "give this consumer a group of its own, or run once with --accept-change",
		}
	}
	return n, n.database == j.database && n.consumer == j.consumer, nil
}

func (j judge) foreign(w Witness, adopted int64) error {
	why := fmt.Sprintf("somebody else committed offset %d in this group", w.Acked)
	if adopted >= 0 {
		why += fmt.Sprintf(" (%d was adopted)", adopted)
	}
	return &HaltError{
		Partition: w.Partition, Kind: "foreign-offset", Why: why,
		Hint: "stop the other consumer, or give one of the two a group of its own; --accept-change goes on from the database's position",
	}
}

// otherTopic decides about a topic that was deleted and made again, or another
// cluster behind the name. It is never taken for old progress.
func (j judge) otherTopic(r Row, w Witness) (Row, []Event, error) {
	ev := Event{Partition: w.Partition, Kind: EventTopicChanged, Detail: map[string]any{
		"was": r.TopicID.String(), "is": w.TopicID.String(), "next": r.Next, "accounts": r.Accounts,
	}}
	if r.TopicID == (semel.TopicID{}) {
		// the broker has learnt to name topics: the log is the same
		r.TopicID = w.TopicID
		return r, []Event{ev}, nil
	}
	if !j.accept {
		if j.byPlace {
			return r, nil, &HaltError{
				Partition: w.Partition, Kind: "topic-changed",
				Why:  fmt.Sprintf("the topic was made anew: it was %s and is %s, and messages are known by their position", r.TopicID, w.TopicID),
				Hint: "run once with --accept-change to read it from its beginning",
			}
		}
		if j.forgets && (w.Retention <= 0 || w.Retention > j.window) {
			return r, nil, &HaltError{
				Partition: w.Partition, Kind: "topic-changed",
				Why:  fmt.Sprintf("the topic was made anew: it was %s and is %s, and may hold messages older than the inbox remembers (%s)", r.TopicID, w.TopicID, j.window),
				Hint: "run once with --accept-change to read it from its beginning",
			}
		}
	}
	return restart(r, w.TopicID, w.Start), []Event{ev}, nil
}

// restart begins new accounts at a place that is not a continuation.
func restart(r Row, id semel.TopicID, at int64) Row {
	r.TopicID = id
	r.Start, r.Next, r.Adopted = at, at, -1
	r.Epochs = nil
	r.Accounts = Accounts{}
	return r
}

// gap decides about messages that retention took before they were read.
func (j judge) gap(r Row, w Witness) (Row, []Event, error) {
	lost := w.Start - r.Next
	ev := Event{Partition: w.Partition, Kind: "gap", Detail: map[string]any{"from": r.Next, "to": w.Start, "lost": lost}}
	if j.gapHalts && !j.accept {
		return r, nil, &HaltError{
			Partition: w.Partition, Kind: "gap",
			Why:  fmt.Sprintf("offsets %d to %d are gone from the log before they were read", r.Next, w.Start-1),
			Hint: "on_gap: go-on records the loss and goes on; --accept-change does so once",
		}
	}
	r.Accounts.Lost += lost
	r.Next = w.Start
	// Nothing that was read is in the log any more, and the new place may lie in an
	// epoch that wasn't. (Else the old epoch seems to be cut below the new place,
	// and the claim goes back and forth between gap and cut for ever.)
	r.Epochs = nil
	return r, []Event{ev}, nil
}

// cutAt says where the log that the row was read from was cut, given what the
// leader answers about the row's epochs. ask is called from the newest epoch to
// the oldest. Never "fine" and never 0 where nothing is known.
func cutAt(r Row, w Witness, ask func(epoch int32) (EpochEnd, error)) (at int64, cut bool, err error) {
	for i := len(r.Epochs) - 1; i >= 0; i-- {
		e := r.Epochs[i]
		end, err := ask(e.Number)
		switch {
		case err != nil:
			return 0, false, err
		case end.Number < 0:
			continue
		case end.Number == e.Number && i == len(r.Epochs)-1:
			// Only of the newest epoch that was read. (Else: a broker restored from a
			// copy doesn't know it, goes on in the one before, grows past our place, and
			// what it wrote since the copy is never read.)
			return end.End, end.End < r.Next, nil
		}
		// The leader's log has nothing of ours above end.Number: back to where
		// that ends, or to where we first read something newer.
		at = end.End
		for _, ours := range r.Epochs {
			if ours.Number > end.Number {
				at = min(at, ours.First)
				break
			}
		}
		return at, at < r.Next, nil
	}
	if len(r.Epochs) == 0 && r.Next <= w.End {
		return 0, false, nil // nothing was read yet, or the broker has no epochs
	}
	return 0, false, &HaltError{
		Partition: r.Partition, Kind: "cut",
		Why:  fmt.Sprintf("the log was cut (it ends at %d, %d was settled) and the broker knows none of the epochs that were read", w.End, r.Next),
		Hint: "compare the log with the table; --accept-change reads on from the log's end",
	}
}

// cut lowers a row to where its log was cut.
func (j judge) cut(r Row, at int64) (Row, []Event, error) {
	ev := Event{Partition: r.Partition, Kind: EventCut, Detail: map[string]any{
		"settled": r.Next, "back_to": at, "accounts": r.Accounts, "epochs": r.Epochs,
	}}
	if j.byPlace && !j.accept {
		return r, nil, &HaltError{
			Partition: r.Partition, Kind: "cut",
			Why:  fmt.Sprintf("the log was cut at %d and written anew, %d was settled, and messages are known by their position", at, r.Next),
			Hint: "--accept-change reads again from the cut; what is there twice takes effect twice",
		}
	}
	if j.gapHalts && !j.accept {
		return r, nil, &HaltError{
			Partition: r.Partition, Kind: "cut",
			Why:  fmt.Sprintf("the log was cut at %d and written anew, %d was settled", at, r.Next),
			Hint: "on_gap: go-on records it and reads again from the cut; --accept-change does so once",
		}
	}
	// Start stays: it is the first position ever claimed, which acks are signed
	// with. What was cut away stays counted, so the offsets are taken off the holes.
	r.Accounts.Holes -= r.Next - at
	r.Next = at
	r.Epochs = epochsBelow(r.Epochs, at)
	return r, []Event{ev, border(r)}, nil
}

func epochsBelow(es []Epoch, at int64) []Epoch {
	kept := es[:0:0]
	for _, e := range es {
		if e.First < at {
			kept = append(kept, e)
		}
	}
	return kept
}
