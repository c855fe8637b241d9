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
	told chan time.Time // the place that it goes by
}

func (s forgetful) Forget(_ context.Context, place time.Time) (bool, error) {
	select {
	case s.told <- place:
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
	s := forgetful{w.db.NewStore(), make(chan time.Time)}
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

// What waits in the log may repeat what the window is about to leave: the window goes
// by the record time that the slowest partition has come to, and where that can't be
// known by none.
func TestWhoIsBehindForgetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	send := func(partition int, id string) {
		m := message(partition, id, id)
		m.Timestamp = old
		w.b.Send(m)
	}
	send(0, "good")
	send(0, "stuck")
	send(1, "other")
	s := forgetful{w.db.NewStore(), make(chan time.Time)}
	free := make(chan struct{})
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store, c.Batch.Messages = s, 1
		c.OnError.Attempts, c.OnError.Backoff, c.OnError.MaxBackoff = 1<<30, time.Millisecond, time.Millisecond
		c.Handler = func(_ context.Context, _ *inboxtest.Tx, m semel.Message) error {
			select {
			case <-free:
			default:
				if string(m.Key) == "stuck" {
					return errors.New("not now")
				}
			}
			return nil
		}
	})
	told := func(what string, want func(time.Time) bool) {
		t.Helper()
		patience := time.After(*patience)
		for {
			select {
			case place := <-s.told:
				if want(place) {
					return
				}
				if !place.IsZero() && !place.Equal(old) {
					t.Fatalf("%s: goes by %s, and the slowest partition has come to %s", what, place, old)
				}
			case <-patience:
				t.Fatal(what)
			}
		}
	}
	told("one is stuck", old.Equal)
	close(free)
	told("nothing waits", func(place time.Time) bool { return time.Since(place) < time.Minute })
}
