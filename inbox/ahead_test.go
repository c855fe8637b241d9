package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func atMostOnce(c *inbox.Config[*inboxtest.Tx]) {
	c.ID, c.AtMostOnce = semel.PositionID(), true
}

// lostEvents are the stretches that were recorded as lost.
func (w *world) lostEvents() (stretches []string) {
	for _, e := range w.db.Events() {
		if e.Kind == inbox.EventLost {
			stretches = append(stretches, fmt.Sprint(e.Partition, " ", e.Detail["from"], "-", e.Detail["to"], ": ", e.Detail["lost"]))
		}
	}
	return stretches
}

func TestAtMostOnceWithoutAFaultIsOnce(t *testing.T) {
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 250), w.send(1, 0, 30)...)
	w.b.Hole(p0)
	p := w.start(atMostOnce)
	w.settledTo(251, 30)
	p.stop(t)
	w.wantOnce(keys...)
	for _, r := range w.db.Rows(consumer) {
		if r.Accounts.Lost != 0 || r.Ahead != nil {
			t.Errorf("%s: %+v, ahead %+v", r.Partition, r.Accounts, r.Ahead)
		}
	}
	if lost := w.lostEvents(); lost != nil {
		t.Errorf("lost: %v", lost)
	}
}

// The place has moved, and the broker was told, when the effect begins.
func TestAtMostOnceMovesBeforeTheEffect(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 5)
	seen := make(chan int64, 10)
	p := w.start(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) {
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			acked, _ := w.b.Committed(consumer, p0)
			seen <- min(w.db.Rows(consumer)[0].Next, acked)
			return count(ctx, tx, m)
		}
	})
	w.settledTo(5)
	until(t, "all have their effect", func() bool { return len(w.db.Values()) == 5 })
	p.stop(t)
	for range 5 {
		if at := <-seen; at != 5 {
			t.Errorf("in the effect row and broker stand at %d", at)
		}
	}
}

func TestAtMostOnceLosesWhatACrashLeaves(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 30)
	p := w.start(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) {
		c.Batch.Messages = 10
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if m.Offset == 15 {
				runtime.Goexit() // nothing of it happens any more
			}
			return count(ctx, tx, m)
		}
	})
	p.ends(t)
	row := w.db.Rows(consumer)[0]
	if row.Next != 20 || row.Accounts.Lost != 10 || row.Ahead == nil || row.Ahead.From != 10 || row.Ahead.To != 20 || row.Ahead.Count != 10 {
		t.Errorf("after the crash: %+v, ahead %+v", row, row.Ahead)
	}
	w.start(atMostOnce)
	w.settledTo(30)
	until(t, "the rest has its effect", func() bool { return len(w.db.Values()) == 20 })
	w.wantOnce(append(keys[:10:10], keys[20:]...)...)
	if got := fmt.Sprint(w.lostEvents()); got != "[t/0 10-20: 10]" {
		t.Errorf("recorded: %s", got)
	}
}

// COMMIT of the effect isn't answered: the row knows whether it is in.
func TestAtMostOnceAsksTheRowAfterALostAnswer(t *testing.T) {
	for _, in := range []bool{false, true} {
		t.Run(fmt.Sprint(in), func(t *testing.T) {
			w := newWorld(t, 1)
			keys := w.send(0, 0, 10)
			w.start(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) {
				c.Store = &unansweredStore{Store: c.Store, nth: 2, in: in}
			})
			w.settledTo(10)
			next := w.send(0, 10, 13)
			w.settledTo(13)
			if in {
				until(t, "all have their effect", func() bool { return len(w.db.Values()) == 13 })
				w.wantOnce(append(keys, next...)...)
				return
			}
			until(t, "the rest has its effect", func() bool { return len(w.db.Values()) == 3 })
			w.wantOnce(next...)
			if got := fmt.Sprint(w.lostEvents()); got != "[t/0 0-10: 10]" {
				t.Errorf("recorded: %s", got)
			}
		})
	}
}

// unansweredStore loses the answer to its nth COMMIT; in: it was executed.
type unansweredStore struct {
	inbox.Store[*inboxtest.Tx]
	nth int
	in  bool
}

func (s *unansweredStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	return unansweredTx{tx, s}, nil
}

type unansweredTx struct {
	inbox.Tx[*inboxtest.Tx]
	s *unansweredStore
}

func (t unansweredTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	if t.s.nth--; t.s.nth != 0 {
		return t.Tx.Commit(ctx, settled)
	}
	if t.s.in {
		if err := t.Tx.Commit(ctx, settled); err != nil {
			return err
		}
	} else {
		t.Rollback(ctx)
	}
	return inboxtest.ErrUnanswered()
}

func TestAtMostOnceBuriesTheBadAndKeepsTheRest(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 20)
	p := w.start(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) {
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if m.Offset == 7 {
				return tx.Refuse()
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(20)
	until(t, "all others have their effect", func() bool { return len(w.db.Values()) == 19 })
	p.stop(t)
	w.wantOnce(append(keys[:7:7], keys[8:]...)...)
	if row := w.db.Rows(consumer)[0]; row.Accounts.Lost != 0 || row.Accounts.Outcome[inbox.Dead].Count != 1 || len(w.db.Letters()) != 1 {
		t.Errorf("%+v", row.Accounts)
	}
}

// A zombie between its two transactions: the successor has taken its messages for lost,
// and it is refused.
func TestAtMostOnceRefusesAZombiesEffect(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 10)
	in, goOn := make(chan struct{}), make(chan struct{})
	src := w.b.NewSource(consumer, inboxtest.StartGroup, "t")
	zombie := w.start(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) {
		c.Source = src
		c.Store = &stoppedStore{Store: c.Store, nth: 2, in: in, goOn: goOn}
	})
	<-in // its place has moved
	w.b.Expire(consumer)
	next := w.start(atMostOnce)
	until(t, "the successor has taken them for lost", func() bool { return len(w.lostEvents()) == 1 })
	close(goOn)
	keys := w.send(0, 10, 12)
	w.settledTo(12)
	until(t, "what comes later has its effect", func() bool { return len(w.db.Values()) == 2 })
	w.wantOnce(keys...)
	next.stop(t)
	zombie.stop(t)
}

// stoppedStore stands still before its nth Begin.
type stoppedStore struct {
	inbox.Store[*inboxtest.Tx]
	nth      int
	in, goOn chan struct{}
}

func (s *stoppedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.nth--; s.nth == 0 {
		close(s.in)
		<-s.goOn
	}
	return s.Store.Begin(ctx, spans)
}

func TestAtMostOnceKeepsNoIDs(t *testing.T) {
	w := newWorld(t, 1)
	if _, err := inbox.New(w.config(atMostOnce, func(c *inbox.Config[*inboxtest.Tx]) { c.Memory = inbox.MemoryInbox })); err == nil {
		t.Error("an inbox is taken")
	}
}
