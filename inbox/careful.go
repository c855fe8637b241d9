package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A message that kills the process leaves no error. What it leaves is a claim that
// nobody released, at a place that doesn't move. After some of those the lane goes
// careful: one message at a time in the whole process, its trial recorded before it
// runs. A message that processes have died of is buried.
const (
	suspectClaims = 3   // unclean ones in a row make a lane careful
	deadlyTrials  = 3   // recorded deaths bury
	endedTrials   = 10  // so do sessions that were ended by command, which somebody else may have done
	carefulPoll   = 100 // messages a turn, while each is a transaction or two
)

// suspicion is what speaks against the messages ahead of a partition.
type suspicion struct {
	careful int    // messages still to be tried alone
	trial   *Trial // as the row has it
	felled  trouble
	ended   int // of felled: by command
}

// count counts what the last owner of a row has left behind; lag: there was
// something to do. A process that lives, or this one itself, has died of nothing.
func (r *Row) count(before Row, by Owner, lag bool) {
	o := before.Owner
	here := before.Trial != nil && before.Trial.At == before.Next && r.Next == before.Next
	if !here {
		r.Trial = nil
	}
	switch {
	case o == nil || r.Next != before.Next:
		r.UncleanClaims, r.Trial = 0, nil
	case o.process(by):
		if here && before.Trial.Running {
			r.Trial = nil // it was outlived
		}
	case o.Alive() || !lag:
	default:
		r.UncleanClaims++
		if here && before.Trial.Running {
			r.Trial = &Trial{At: r.Next, Deaths: before.Trial.Deaths + 1}
		}
	}
}

// suspect takes over what a claimed row says.
func (l *lane[T]) suspect(p *part, row Row) {
	p.trial = row.Trial
	deaths := 0
	if p.trial != nil {
		deaths = p.trial.Deaths
	}
	if row.UncleanClaims < suspectClaims && deaths == 0 {
		return
	}
	l.log.Warn("processes have died here: one message at a time", "topic", p.Topic, "partition", p.Number, "next", row.Next,
		"unclean_claims", row.UncleanClaims, "deaths", deaths)
	l.beCareful(p)
}

// beCareful covers what two batches may have held: one that was written and one that
// was decoded beside it.
func (l *lane[T]) beCareful(p *part) {
	if !l.cfg.AtMostOnce { // there what kills is not read again
		p.careful = 2 * l.cfg.Batch.Messages
	}
}

// careful says whether messages are to be tried one by one.
func (l *lane[T]) careful() bool {
	for _, p := range l.parts {
		if p.careful > 0 {
			return true
		}
	}
	return false
}

// crowd is who works on messages in this process: many, or one that is careful.
var crowd struct {
	sync.RWMutex
	waiting atomic.Int32 // careful ones, for the others to make room
}

// among runs f beside the other lanes of the process.
func among(f func() error) error {
	crowd.RLock()
	defer crowd.RUnlock()
	return f()
}

// settleCarefully settles runs one message at a time.
func (l *lane[T]) settleCarefully(ctx context.Context, runs []Run) error {
	for _, s := range l.stretches(runs) {
		if !l.accept(s) {
			continue
		}
		var all batch
		all.add(s)
		err := l.oneByOne(ctx, s)
		l.unsettled(all)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lane[T]) oneByOne(ctx context.Context, s stretch) error {
	if len(s.items) == 0 {
		return l.trial(ctx, s)
	}
	for i := range s.items {
		one := s.cut(i, i+1)
		if l.drained() || !s.part.proven || s.part.next != one.from {
			return nil
		}
		if err := l.trial(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// trial settles a stretch of one message while nothing else in the process runs.
func (l *lane[T]) trial(ctx context.Context, s stretch) error {
	crowd.waiting.Add(1)
	crowd.Lock()
	crowd.waiting.Add(-1)
	defer crowd.Unlock()
	var b batch
	b.add(s)
	l.beside, l.next = func() {}, &upcoming{after: b.n}
	p := s.part
	if b.n == 0 {
		return l.commit(ctx, b)
	}
	t := Trial{At: s.from}
	if p.trial != nil && p.trial.At == s.from {
		t.Deaths = p.trial.Deaths
	}
	if t.Deaths >= deadlyTrials {
		return l.condemn(ctx, b, fmt.Sprintf("%d processes that tried it alone died", t.Deaths), "", t.Deaths)
	}
	if n := p.felled.attempts; p.felled.offset == s.from && (n-p.ended >= deadlyTrials || n >= endedTrials) {
		return l.condemn(ctx, b, "the session that tried it alone was lost each time", "", p.felled.attempts)
	}
	t.Running = true
	if err := l.record(ctx, func(ctx context.Context) error { return l.cfg.Store.Try(ctx, p.claim, t) }); err != nil {
		l.drop(b)
		return err
	}
	l.decode(b)
	l.mark(&b)
	err := l.commit(ctx, b)
	if p.next == s.from {
		p.trial = nil
		l.felled(p, s.from, err)
		// Best effort: a claim of this process says the same.
		_ = l.record(context.WithoutCancel(ctx), func(ctx context.Context) error { return l.cfg.Store.Survived(ctx, p.Partition, s.from) })
	}
	return err
}

func (l *lane[T]) record(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, min(l.cfg.CutOff/2, 5*time.Second))
	defer cancel()
	return f(ctx)
}

// felled counts sessions that a message alone has cost. One that was ended by command
// may have been by the message itself, through a function, or by a stranger who ends
// sessions: that takes longer to tell. A server that is full, or
// was demoted, or is shut down by somebody says so, and no message is to blame.
func (l *lane[T]) felled(p *part, at int64, err error) {
	f := asFailure(err)
	if f == nil || f.class != ClassOutage || f.source != "database" || f.tx == nil {
		return
	}
	code, _ := f.tx.Describe(f.err)
	if code != "" && code != "57P01" && code != "57P02" && !strings.HasPrefix(code, "08") {
		return
	}
	if p.felled.offset != at {
		p.felled, p.ended = trouble{offset: at}, 0
	}
	p.felled.attempts++
	if code == "57P01" {
		p.ended++
	}
}

// condemn buries a message without looking into it.
func (l *lane[T]) condemn(ctx context.Context, b batch, why, sqlstate string, attempts int) error {
	for _, s := range b.stretches {
		s.fill()
	}
	it, _ := l.only(b)
	it.attempts, it.sqlstate = attempts, sqlstate
	it.bury(DeadCrash, fmt.Errorf("a message that kills: %s", why), false)
	l.log.Error("buried a message that kills", "topic", it.Topic, "partition", it.Partition, "offset", it.Offset, "why", why)
	return l.commit(ctx, b)
}
