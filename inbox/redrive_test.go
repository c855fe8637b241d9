package inbox_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// refusing refuses every message until it is mended.
type refusing struct{ mended atomic.Bool }

func (r *refusing) handler(c *inbox.Config[*inboxtest.Tx]) {
	c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
		if string(m.Key) == "bad" && !r.mended.Load() {
			return tx.Refuse()
		}
		return count(ctx, tx, m)
	}
}

func (w *world) wantStates(want ...string) {
	w.t.Helper()
	until(w.t, "letters are as wanted", func() bool { return slices.Equal(w.db.LetterStates(), want) })
}

func TestMarkedLetterTakesEffectOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.b.Send(message(0, "a", "bad"), message(0, "b", "b"))
	var r refusing
	w.start(r.handler)
	w.start(r.handler)
	w.settledTo(2, 0)
	r.mended.Store(true)
	w.db.Mark()
	w.wantStates("redriven applied")
	w.wantOnce("bad", "b")
	w.db.Mark() // nothing is left to mark
	w.b.Send(message(0, "a", "bad"))
	w.settledTo(3, 0)
	w.wantOnce("bad", "b")
	a := w.db.Rows(consumer)[0].Accounts
	if a.Redriven != 1 || a.Outcome[inbox.Dead].Count != 1 || a.Outcome[inbox.DuplicateID].Count != 1 {
		t.Errorf("accounts: %+v", a)
	}
}

func TestRedriveThatFailsAgainIsBuriedAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"), message(0, "b", "b"))
	var r refusing
	p := w.start(r.handler)
	w.settledTo(2)
	w.db.Mark()
	until(t, "an attempt is counted", func() bool { return w.db.Letters()[0].Attempts == 2 })
	w.wantStates("buried")
	if l := w.db.Letters()[0]; l.Class != inbox.DeadConstraint || l.SQLState != "23514" {
		t.Errorf("letter: %+v", l)
	}
	select {
	case <-p.done:
		t.Errorf("it ended: %v", p.err)
	default:
	}
	r.mended.Store(true)
	w.db.Mark()
	w.wantStates("redriven applied")
	w.wantOnce("bad", "b")
}

func TestRedriveDoesNotHaltTheRoute(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"))
	var halt atomic.Bool
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if string(m.Key) != "bad" {
				return count(ctx, tx, m)
			}
			if halt.Load() {
				panic("again")
			}
			return tx.Refuse()
		}
	})
	w.settledTo(1)
	halt.Store(true)
	w.db.Mark()
	until(t, "the panic is kept", func() bool { return w.db.Letters()[0].Class == inbox.DeadHandler })
	w.b.Send(message(0, "b", "b"))
	w.settledTo(2)
	p.stop(t)
}

// knowing says of every letter that its message was applied meanwhile.
type knowing struct {
	inbox.Store[*inboxtest.Tx]
}

type knownRedrive struct {
	inbox.Redrive[*inboxtest.Tx]
}

func (s knowing) Redrive(ctx context.Context, ps []semel.Partition, after int64) (inbox.Redrive[*inboxtest.Tx], error) {
	tx, err := s.Store.Redrive(ctx, ps, after)
	if tx == nil || err != nil {
		return nil, err
	}
	return knownRedrive{tx}, nil
}

func (knownRedrive) Readmit(context.Context, inbox.Admission) (inbox.Verdict, error) {
	return inbox.Duplicate, nil
}

func TestLetterWhoseMessageWasAppliedMeanwhileIsClosedWithoutEffect(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"))
	var r refusing
	p := w.start(r.handler, func(c *inbox.Config[*inboxtest.Tx]) { c.Store = knowing{c.Store} })
	w.settledTo(1)
	r.mended.Store(true)
	w.db.Mark()
	w.wantStates("redriven duplicate")
	w.wantOnce()
	p.stop(t)
	if n := w.db.Rows(consumer)[0].Accounts.Redriven; n != 0 {
		t.Errorf("%d redriven", n)
	}
}

// Closed as a duplicate it would leave no trace of a message that had no effect.
func TestLetterOfACollisionStaysBuried(t *testing.T) {
	w := newWorld(t, 1)
	one, two := message(0, "a", "one"), message(0, "a", "two") // the same ID for other content
	one.Value, two.Value = one.Key, two.Key
	w.b.Send(one, two)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Effect, c.Handler = digesting{}, nil })
	w.settledTo(2)
	w.db.Mark()
	until(t, "an attempt is counted", func() bool { return w.db.Letters()[0].Attempts == 2 })
	w.wantStates("buried")
	w.wantOnce("one")
	if l := w.db.Letters()[0]; l.Class != inbox.DeadCollision || l.SentID != "a" {
		t.Errorf("letter: %+v", l)
	}
}

func TestOutageDuringARedriveKeepsTheMark(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"))
	var r refusing
	var out atomic.Int32
	w.start(r.handler, func(c *inbox.Config[*inboxtest.Tx]) {
		h := c.Handler
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if r.mended.Load() && out.Add(1) <= 3 {
				return semel.Outage(errors.New("the other service is down"))
			}
			return h(ctx, tx, m)
		}
	})
	w.settledTo(1)
	r.mended.Store(true)
	w.db.Mark()
	w.wantStates("redriven applied")
	w.wantOnce("bad")
	if l := w.db.Letters()[0]; l.Attempts != 1 {
		t.Errorf("%d attempts: an outage spends none", l.Attempts)
	}
}

func TestPausedConsumerRedrivesNothing(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"))
	var r refusing
	states := make(chan inbox.State, 100)
	w.start(r.handler, func(c *inbox.Config[*inboxtest.Tx]) {
		c.Observe.State = func(s inbox.State, _ string) { states <- s }
	})
	w.settledTo(1)
	w.db.Pause(consumer, "test", true)
	for s := range states {
		if s == inbox.StatePaused {
			break
		}
	}
	r.mended.Store(true)
	w.db.Mark()
	w.db.Pause(consumer, "", false)
	w.wantStates("redriven applied")
	w.wantOnce("bad")
}

// redriveStep is a place where a process dies while it redrives.
type redriveStep string

const (
	letterLocked   redriveStep = "the letter is locked"
	letterAdmitted redriveStep = "its ID is admitted"
	letterCommits  redriveStep = "before COMMIT"
	letterClosed   redriveStep = "after COMMIT"
)

// dyingStore dies at a step of the first redrive.
type dyingStore struct {
	inbox.Store[*inboxtest.Tx]
	at   redriveStep
	dead *atomic.Bool
	kill func()
}

func (s dyingStore) pass(ctx context.Context, at redriveStep) {
	if s.at == at && s.dead.CompareAndSwap(false, true) {
		s.kill()
		<-ctx.Done()
	}
}

func (s dyingStore) Redrive(ctx context.Context, ps []semel.Partition, after int64) (inbox.Redrive[*inboxtest.Tx], error) {
	tx, err := s.Store.Redrive(ctx, ps, after)
	if tx == nil || err != nil {
		return nil, err
	}
	s.pass(ctx, letterLocked)
	return dyingRedrive{tx, s}, nil
}

type dyingRedrive struct {
	inbox.Redrive[*inboxtest.Tx]
	s dyingStore
}

func (r dyingRedrive) Readmit(ctx context.Context, a inbox.Admission) (inbox.Verdict, error) {
	v, err := r.Redrive.Readmit(ctx, a)
	r.s.pass(ctx, letterAdmitted)
	return v, err
}

func (r dyingRedrive) Close(ctx context.Context, how inbox.Outcome) error {
	r.s.pass(ctx, letterCommits)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := r.Redrive.Close(ctx, how)
	r.s.pass(ctx, letterClosed)
	return err
}

func TestKilledAtAnyStepOfARedrive(t *testing.T) {
	for _, at := range []redriveStep{letterLocked, letterAdmitted, letterCommits, letterClosed} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.b.Send(message(0, "a", "bad"), message(0, "b", "b"))
			var r refusing
			var dead atomic.Bool
			var p *process
			started := make(chan struct{})
			p = w.start(r.handler, func(c *inbox.Config[*inboxtest.Tx]) {
				c.Store = dyingStore{c.Store, at, &dead, func() { <-started; p.kill() }}
			})
			close(started)
			w.settledTo(2)
			r.mended.Store(true)
			w.db.Mark()
			<-p.done
			if !dead.Load() {
				t.Fatal("it didn't die")
			}
			w.b.Expire(consumer)
			w.start(r.handler)
			w.wantStates("redriven applied")
			w.b.Send(message(0, "c", "c"))
			w.settledTo(3)
			w.wantOnce("bad", "b", "c")
			if n := w.db.Rows(consumer)[0].Accounts.Redriven; n != 1 {
				t.Errorf("%d redriven", n)
			}
		})
	}
}

func TestRedriveOfAConsumerThatDoesNotRun(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"), message(0, "b", "b"))
	var r refusing
	p := w.start(r.handler)
	w.settledTo(2)
	p.stop(t)
	w.db.Mark()
	r.mended.Store(true)
	cfg := w.config(r.handler)
	in, err := inbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Redrive(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantStates("redriven applied")
	w.wantOnce("bad", "b")
}

// The rule may have changed since it was buried: another message may have the ID that it would have now.
func TestRedriveKnowsALetterByTheIDItWasBuriedUnder(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "bad"))
	var r refusing
	p := w.start(r.handler)
	w.settledTo(1)
	p.stop(t)
	r.mended.Store(true)
	w.b.Send(message(0, "b", "bad"))
	byKey := func(c *inbox.Config[*inboxtest.Tx]) { c.ID, c.AcceptChange = semel.KeyID(), true }
	w.start(r.handler, byKey)
	w.settledTo(2)
	w.db.Mark()
	w.wantStates("redriven applied")
	if n := w.db.Values()["bad"]; n != 2 {
		t.Errorf("%d effects of two messages", n)
	}
}
