package inbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// lookingUp is an effect that needs a service to read messages, from the third
// on: it is down for so many calls.
type lookingUp struct{ down *atomic.Int32 }

func (e lookingUp) Decode(items []inbox.Item) {
	for i := range items {
		if it := &items[i]; it.Offset >= 2 && e.down.Load() > 0 {
			e.down.Add(-1)
			it.Err, it.Class = semel.Outage(errors.New("no answer")), inbox.DeadDecode
		}
	}
}

func (lookingUp) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for _, it := range items {
		if err := count(ctx, tx.DB(), it.Message); err != nil {
			return err
		}
	}
	return nil
}

func TestOutageWhileMessagesAreReadBuriesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 5), w.send(1, 0, 5)...)
	var down atomic.Int32
	down.Store(4)
	var reason atomic.Value
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Handler, c.Effect = nil, lookingUp{&down}
		c.Batch.Messages = 2
		c.Observe.State = func(s inbox.State, why string) {
			if s == inbox.StateOutage {
				reason.Store(why)
			}
		}
	})
	w.settledTo(5, 5)
	p.stop(t)
	w.wantOnce(keys...)
	if ls := w.db.Letters(); len(ls) != 0 {
		t.Errorf("buried: %+v", ls)
	}
	if reason.Load() != "format: no answer" {
		t.Errorf("the state says %q", reason.Load())
	}
}

func TestOutageWhileALetterIsReadLeavesItMarked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 3)
	var down, bad atomic.Int32
	bad.Store(1)
	var waited atomic.Bool
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Handler, c.Effect = nil, badThenDown{lookingUp{&down}, &bad}
		c.Observe.State = func(s inbox.State, _ string) {
			if s == inbox.StateOutage {
				waited.Store(true)
			}
		}
	})
	w.settledTo(3)
	bad.Store(0)
	down.Store(2)
	w.db.Mark()
	w.wantStates("redriven applied")
	p.stop(t)
	w.wantOnce(keys...)
	if !waited.Load() {
		t.Error("the outage wasn't met")
	}
}

// badThenDown can't read the third message at first.
type badThenDown struct {
	lookingUp
	bad *atomic.Int32
}

func (e badThenDown) Decode(items []inbox.Item) {
	e.lookingUp.Decode(items)
	for i := range items {
		if it := &items[i]; it.Offset == 2 && e.bad.Load() > 0 {
			it.Err, it.Class = errors.New("unknown schema"), inbox.DeadDecode
		}
	}
}
