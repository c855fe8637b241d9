package inbox

import (
	"context"
	"slices"
	"strconv"
)

// At most once: the watermark is moved in a transaction of its own, before the effect,
// and the effect is made in another. What was moved over counts as lost until its
// outcome is committed. So whatever stops in between, nothing is read again, and the
// row says what has no effect: whoever claims it next records that.

// settleAhead takes runs through two transactions a batch.
func (l *lane[T]) settleAhead(ctx context.Context, runs []Run) error {
	queue := l.cutter().cut(slices.DeleteFunc(l.stretches(runs), func(s stretch) bool { return !l.accept(s) }))
	for i, b := range queue {
		l.decodeFirst(&b)
		err := b.outage()
		if err == nil {
			err = l.inTwo(ctx, b)
		}
		if err != nil || l.drained() {
			for _, rest := range queue[i:] {
				l.drop(rest) // what is settled of the first is known by its row
			}
			return err
		}
	}
	return nil
}

func (l *lane[T]) inTwo(ctx context.Context, b batch) error {
	l.beside, l.next = func() {}, &upcoming{after: b.n}
	if err := l.commit(ctx, b); err != nil {
		return err
	}
	l.unsettled(b)
	b = b.moved()
	l.next = &upcoming{after: b.n}
	if err := l.commit(ctx, b); err != nil {
		return err
	}
	for _, s := range b.stretches {
		if s.part.ahead != nil && s.part.proven {
			l.unprove(s.part) // its claim says what is lost
		}
	}
	return nil
}

// moved is what of a batch has its watermark moved, and wants its effect.
func (b batch) moved() (out batch) {
	for _, s := range b.stretches {
		if len(s.items) > 0 && s.part.proven && s.part.next == s.to {
			s.ahead = s.to
			out.add(s)
		}
	}
	return out
}

// move is the first of the two transactions.
func (l *lane[T]) move(ctx context.Context, b batch) error {
	tx, end, err := l.begin(ctx, b.spans())
	if err != nil {
		return err
	}
	defer end()
	settled := make([]Settled, len(b.stretches))
	for i, s := range b.stretches {
		n := s.settledTally()
		a := Accounts{Holes: s.to - s.from - n.Count, Lost: n.Count}
		from := s.from
		if p := s.part; p.ahead != nil { // the batch is moved in pieces
			from, n = p.ahead.From, n.Plus(p.ahead.Tally())
		}
		settled[i] = Settled{Span: s.span(), Accounts: a, Ahead: aheadOf(from, s.to, n), Newest: s.newest()}
	}
	committing, cancel := context.WithTimeout(ctx, l.cfg.CutOff)
	defer cancel()
	if err := tx.Commit(committing, settled); err != nil {
		return failed(tx, err, -1)
	}
	l.advanced(b, settled)
	return nil
}

// left is what of the partition has no outcome after the stretch has.
func (s stretch) left() *Ahead {
	if a := s.part.ahead; s.ahead > 0 && a != nil {
		return aheadOf(s.to, a.To, a.Tally().Minus(s.settledTally()))
	}
	return nil
}

func aheadOf(from, to int64, n Tally) *Ahead {
	if n.Count == 0 {
		return nil
	}
	return &Ahead{From: from, To: to, Count: n.Count, Sum: n.Sum}
}

// forsake takes what is ahead of its effect for lost.
func (r *Row) forsake() []Event {
	a := r.Ahead
	if a == nil {
		return nil
	}
	r.Ahead = nil
	return []Event{{Partition: r.Partition, Kind: EventLost, Detail: map[string]any{
		"from": a.From, "to": a.To, "lost": a.Count, "sum": strconv.FormatUint(a.Sum, 10),
	}}}
}
