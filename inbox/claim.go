package inbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// prove claims every partition that is due, and seeks to what the claims say.
func (l *lane[T]) prove(ctx context.Context) error {
	err := l.proveOnce(ctx)
	if halted(err) {
		// The row may be younger than what was heard of the broker, and a halt is
		// for a person: hear it again.
		err = l.proveOnce(ctx)
	}
	return err
}

func (l *lane[T]) proveOnce(ctx context.Context) error {
	todo := l.unproven()
	if len(todo) == 0 {
		return nil
	}
	ws, err := l.witnesses(ctx, todo)
	if err != nil {
		return err
	}
	if again(todo) && !l.confirmed(ctx, todo) {
		return nil
	}
	if ok, err := l.introduceAll(ctx, ws, todo); err != nil || !ok {
		return err
	}
	marks, err := l.claimAll(ctx, ws, todo)
	if len(marks) == 0 {
		return err
	}
	if err := l.cfg.Source.Seek(ctx, marks); err != nil {
		return &brokerError{err}
	}
	for _, m := range marks {
		p := l.parts[m.Partition]
		p.proven, p.due, p.moved = true, due{}, true
	}
	if err == nil && !l.outage.ofBatch() { // that is over when a batch commits
		l.outage = outage{}
	}
	return err
}

func (l *lane[T]) unproven() []*part {
	var todo []*part
	now := time.Now()
	for _, p := range l.parts {
		if !p.proven && !p.due.at.After(now) {
			todo = append(todo, p)
		}
	}
	slices.SortFunc(todo, func(a, b *part) int { return a.Compare(b.Partition) })
	return todo
}

// again says whether one of them was fenced before.
func again(todo []*part) bool {
	for _, p := range todo {
		if p.due.tries > 0 {
			return true
		}
	}
	return false
}

// confirmed asks the coordinator: only a member of the group claims again; a
// zombie waits until the broker tells it what it has lost.
func (l *lane[T]) confirmed(ctx context.Context, todo []*part) bool {
	err := l.cfg.Source.Confirm(ctx)
	if err == nil {
		return true
	}
	l.log.Info("not confirmed as a member of the group", "error", err)
	for _, p := range todo {
		p.due.after(100*time.Millisecond, 2*time.Second)
	}
	return false
}

// witnesses hears the broker about the topics of the parts, and answers by topic.
func (l *lane[T]) witnesses(ctx context.Context, todo []*part) (map[string][]Witness, error) {
	var topics []string
	for _, p := range todo {
		if len(topics) == 0 || topics[len(topics)-1] != p.Topic {
			topics = append(topics, p.Topic)
		}
	}
	ws, err := l.cfg.Source.Witness(ctx, topics)
	if err != nil {
		return nil, &brokerError{err}
	}
	by := make(map[string][]Witness)
	for _, w := range ws {
		by[w.Topic] = append(by[w.Topic], w)
	}
	return by, nil
}

// witness hears the broker about one partition, now.
func (l *lane[T]) witness(ctx context.Context, p semel.Partition) (Witness, error) {
	ws, err := l.cfg.Source.Witness(ctx, []string{p.Topic})
	if err != nil {
		return Witness{}, &brokerError{err}
	}
	w, ok := find(ws, p)
	if !ok {
		return Witness{}, errStale
	}
	return w, nil
}

func find(ws []Witness, p semel.Partition) (Witness, bool) {
	for _, w := range ws {
		if w.Partition == p {
			return w, true
		}
	}
	return Witness{}, false
}

func (l *lane[T]) judge() judge {
	return judge{
		consumer: l.cfg.Consumer, database: l.reg.Database,
		byPlace: l.cfg.Memory == MemoryPosition,
		forgets: l.cfg.Memory == MemoryInbox, window: l.cfg.Window,
		gapHalts: l.cfg.OnGap == GapHalt, accept: l.cfg.AcceptChange,
	}
}

// introduceAll introduces the topics that aren't; false: another member is at it.
func (l *lane[T]) introduceAll(ctx context.Context, byTopic map[string][]Witness, todo []*part) (bool, error) {
	for topic, ws := range byTopic {
		ok, err := l.introduced(ws)
		if err != nil {
			return false, err
		}
		if ok {
			continue
		}
		err = l.introduce(ctx, topic, todo...)
		if err != nil && !isBroker(err) && !halted(err) && l.cfg.Store.Class(err) == ClassConflict {
			for _, p := range todo {
				p.due.at = time.Now().Add(50 * time.Millisecond)
			}
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// introduced says whether every partition's ack is signed by us: then all of them
// have been introduced.
func (l *lane[T]) introduced(ws []Witness) (bool, error) {
	j := l.judge()
	for _, w := range ws {
		if _, ours, err := j.ours(w); err != nil || !ours {
			return false, err
		}
	}
	return true, nil
}

// introduce writes the rows of all partitions of a topic and has the broker
// accept a signed ack of each before any batch begins. (Else a restore to before
// this moment, with `start: latest`, begins at the new end.) The broker is heard
// and signs under the lock of the introduction, before the rows can be seen.
// (Else who comes late puts the group's offset back to the start, after another
// member has settled and acked.) If the rows are not committed then, the
// signature stands for a claim that never was, at the same place.
//
// An offset that is missing though the partition was claimed (it expired, or
// somebody deleted it) is signed again by who is about to claim it; its owner's
// acks would meet anybody else's signature.
func (l *lane[T]) introduce(ctx context.Context, topic string, mine ...*part) error {
	ctx, cancel := l.soon(ctx)
	defer cancel()
	j := l.judge()
	_, err := l.cfg.Store.Introduce(ctx, topic, func(known []Row) ([]Row, []Event, error) {
		ws, err := l.cfg.Source.Witness(ctx, []string{topic})
		if err != nil {
			return nil, nil, &brokerError{err}
		}
		added, events, err := j.introduce(known, ws)
		if err != nil {
			return nil, nil, err
		}
		var acks []Ack
		for _, r := range slices.Concat(known, added) {
			w, ok := find(ws, r.Partition)
			if _, ours, err := j.ours(w); !ok || ours || err != nil {
				continue
			}
			if w.Acked >= 0 && w.Acked != r.Adopted && !j.accept || r.TopicID != w.TopicID {
				continue // its claim decides
			}
			if r.Generation > 0 && !slices.ContainsFunc(mine, func(p *part) bool { return p.Partition == r.Partition }) {
				continue
			}
			acks = append(acks, l.ack(r.Partition, r.TopicID, r.Start, r.Next))
		}
		if len(acks) > 0 {
			// Sign waits through rebalances; the lock must not.
			ctx, cancel := context.WithTimeout(ctx, l.cfg.Batch.Time)
			defer cancel()
			if err := l.cfg.Source.Sign(ctx, acks); err != nil {
				return nil, nil, &brokerError{err}
			}
		}
		return added, events, nil
	})
	return err
}

func (l *lane[T]) ack(p semel.Partition, id semel.TopicID, first, next int64) Ack {
	return SignedAck(l.reg.Database, l.cfg.Consumer, Row{Claim: Claim{Partition: p, TopicID: id}, Start: first, Next: next})
}

// claimAll claims the partitions and answers where to read on. An error of the
// broker about one of them comes with the marks of the others; any other error
// comes alone.
func (l *lane[T]) claimAll(ctx context.Context, byTopic map[string][]Witness, todo []*part) (marks []Mark, unproved error) {
	for _, p := range todo {
		w, ok := find(byTopic[p.Topic], p.Partition)
		if !ok { // deleted a moment ago
			p.due.after(time.Second, 10*time.Second)
			continue
		}
		row, err := l.claim(ctx, p, w)
		switch {
		case halted(err):
			return nil, err
		case isBroker(err):
			unproved = err
			continue
		case errors.Is(err, errStale), errors.Is(err, ErrNoRow), err != nil && l.cfg.Store.Class(err) == ClassConflict:
			l.log.Info("claim tried again", "topic", p.Topic, "partition", p.Number, "error", err)
			p.due.after(50*time.Millisecond, 2*time.Second)
			continue
		case err != nil:
			return nil, err
		}
		if wasReset(row, w) {
			// Here and not by whoever gave the order: only members may commit in a
			// group that has some.
			if err := l.sign(ctx, l.ack(p.Partition, row.TopicID, row.Start, row.Next)); err != nil {
				unproved = &brokerError{err}
				continue
			}
			w.Acked = row.Next
		}
		l.claimed(p, row, w)
		marks = append(marks, Mark{p.Partition, row.Next})
	}
	return marks, unproved
}

// sign waits no longer than a batch may take: Sign waits through rebalances, which
// wait for this loop.
func (l *lane[T]) sign(ctx context.Context, a Ack) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Batch.Time)
	defer cancel()
	return l.cfg.Source.Sign(ctx, []Ack{a})
}

// claim claims one partition and looks whether its log was cut.
func (l *lane[T]) claim(ctx context.Context, p *part, w Witness) (Row, error) {
	j := l.judge()
	row, before, err := l.claimRow(ctx, p.Partition, &w, j.claim)
	if errors.Is(err, ErrNoRow) {
		// the broker has our signature and the database no row: it went back
		if err := l.introduce(ctx, p.Topic, p); err != nil {
			return Row{}, err
		}
		if w, err = l.witness(ctx, p.Partition); err != nil {
			return Row{}, err
		}
		row, before, err = l.claimRow(ctx, p.Partition, &w, j.claim)
		if err != nil {
			return Row{}, err
		}
	}
	if errors.Is(err, errStale) {
		// further than the log was a moment ago: somebody wrote on, or it was cut
		if w, err = l.witness(ctx, p.Partition); err != nil {
			return Row{}, err
		}
		if before.Next <= w.End {
			return Row{}, errStale
		}
		row = before
	} else if err != nil {
		return Row{}, err
	}
	at, cut, err := l.cutOf(ctx, row, w)
	if err != nil {
		return Row{}, err
	}
	if !cut {
		if row.Next > w.End {
			return Row{}, errStale
		}
		return row, nil
	}
	// Whoever lowers a row does it as a claim: under one token the position only
	// rises. (Else: cut, then the database goes back to a higher place under the
	// same token, and nobody notices.)
	asked := row.Token
	row, _, err = l.claimRow(ctx, p.Partition, &w, func(r Row, _ Witness) (Row, []Event, error) {
		if r.Token != asked { // somebody has seen to it since, and moved on
			return r, nil, errStale
		}
		return j.cut(r, min(at, r.Next))
	})
	return row, err
}

// claimRow claims a row as decide says, which is given the row and the witness,
// heard again if it must be; before is the row as it was then.
func (l *lane[T]) claimRow(ctx context.Context, p semel.Partition, w *Witness, decide func(Row, Witness) (Row, []Event, error)) (row, before Row, err error) {
	owner := l.owner
	owner.Member, owner.Instance = l.cfg.Source.Member()
	owner.At = time.Now().UTC()
	ctx, cancel := l.soon(ctx)
	defer cancel()
	row, err = l.cfg.Store.Claim(ctx, p, owner, func(r Row) (Row, []Event, error) {
		before = r
		if r.TopicID != w.TopicID {
			// Which of the two is older? Hear it under the lock of the row. (Else who
			// is late puts a row back that follows the new topic already.)
			var err error
			if *w, err = l.witness(ctx, p); err != nil {
				return r, nil, err
			}
		}
		events := r.forsake()
		row, more, err := decide(r, *w)
		if err == nil {
			row.count(before, owner, before.Next < w.Stable)
		}
		return row, append(events, more...), err
	})
	if a := before.Ahead; err == nil && a != nil {
		l.log.Warn("messages have no effect: at most once", "topic", p.Topic, "partition", p.Number, "from", a.From, "to", a.To, "lost", a.Count)
		tell2(l.cfg.Observe.Lost, p, a.Count)
	}
	// Only a gap adds to what the row counts as lost.
	if n := row.Accounts.Lost - before.Accounts.Lost; err == nil && n > 0 {
		l.log.Warn("messages are lost: retention removed them from the topic before this consumer read them",
			"topic", p.Topic, "partition", p.Number, "from", before.Next, "to", row.Next, "lost", n)
		tell2(l.cfg.Observe.Lost, p, n)
	}
	return row, before, err
}

// cutOf asks the leader where the log of a row was cut, if it was.
func (l *lane[T]) cutOf(ctx context.Context, row Row, w Witness) (at int64, cut bool, err error) {
	at, cut, err = cutAt(row, w, func(epoch int32) (EpochEnd, error) {
		e, err := l.cfg.Source.EpochEnd(ctx, row.Partition, epoch)
		if err != nil {
			err = &brokerError{err}
		}
		return e, err
	})
	if halted(err) && l.cfg.AcceptChange {
		return w.End, true, nil
	}
	return at, cut, err
}

// claimed takes a row into the lane's picture.
func (l *lane[T]) claimed(p *part, row Row, w Witness) {
	p.claim, p.first, p.next, p.end, p.ahead = row.Claim, row.Start, row.Next, w.Stable, nil
	l.suspect(p, row)
	o := l.cfg.Observe
	tell(o.Claimed, row)
	if w.Acked >= 0 && row.Next > w.Acked {
		if n := row.Next - max(w.Acked, w.Start); n > 0 { // what is gone comes no more
			tell2(o.Redelivered, p.Partition, n)
		}
		// Whoever settled these can't ack them any more; were nothing to follow,
		// the broker would show a lag for ever.
		l.cfg.Source.Ack([]Ack{l.ack(p.Partition, row.TopicID, p.first, p.next)})
	}
	if o.Moved != nil {
		o.Moved(Mark{p.Partition, row.Next}, w.Stable, time.Time{})
	}
	l.log.Info("claimed", "topic", p.Topic, "partition", p.Number, "generation", row.Generation, "next", row.Next)
}
