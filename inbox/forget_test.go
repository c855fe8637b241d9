package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// forgetful tells of each Forget, and has always more to do.
type forgetful struct {
	inbox.Store[*inboxtest.Tx]
	told chan struct{}
}

func (s forgetful) Forget(context.Context, time.Time) (bool, error) {
	select {
	case s.told <- struct{}{}:
	default:
	}
	return true, nil
}

// endless is a source of which every Poll brings a message.
type endless struct {
	inbox.Source
	w *world
	n int
}

func (s *endless) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	if s.n++; s.n > 5 {
		k := fmt.Sprintf("e-%d", s.n)
		s.w.b.Send(message(0, k, k))
	}
	return s.Source.Poll(ctx, n)
}

func TestInboxForgetsUnderConstantLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s := forgetful{w.db.NewStore(), make(chan struct{})}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store, c.Source = s, &endless{Source: c.Source, w: w}
	})
	until(t, "messages come without a pause", func() bool {
		rows := w.db.Rows(consumer)
		return len(rows) == 1 && rows[0].Next > 100
	})
	select {
	case <-s.told:
	case <-time.After(*patience):
		t.Fatal("never forgets while messages come")
	}
}

// What waits in the log may repeat what the window is about to leave: who is
// behind forgets nothing.
func TestWhoIsBehindForgetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 0, 5)
	s := forgetful{w.db.NewStore(), make(chan struct{})}
	tried := make(chan struct{}, 100)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store = s
		c.OnError.Attempts, c.OnError.Backoff, c.OnError.MaxBackoff = 1000, 100*time.Millisecond, 100*time.Millisecond
		c.Handler = func(context.Context, *inboxtest.Tx, semel.Message) error {
			tried <- struct{}{}
			return errors.New("not now")
		}
	})
	for range 3 {
		select {
		case <-tried:
		case <-s.told:
			t.Fatal("forgets while messages wait")
		}
	}
}
