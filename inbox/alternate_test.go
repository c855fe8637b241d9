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

var errAlternate = errors.New("at every other attempt")

// alternating refuses every other transaction for something that isn't about the data.
type alternating struct {
	inbox.Store[*inboxtest.Tx]
	begun atomic.Int64
}

func (s *alternating) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.begun.Add(1)%2 == 0 {
		return nil, errAlternate
	}
	return s.Store.Begin(ctx, spans)
}

func (s *alternating) Class(err error) inbox.Class {
	if errors.Is(err, errAlternate) {
		return inbox.ClassRoute
	}
	return s.Store.Class(err)
}

// An error of the route that is met while a bad message is looked for, or buried, is answered, and not tried once more:
// where every other attempt meets one that would go on for good.
func TestAnErrorMetWhileIsolatingIsAnswered(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 8} {
		w := newWorld(t, 1)
		w.send(0, 0, n)
		s := &alternating{Store: w.db.NewStore()}
		p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
			c.Store = s
			c.Handler = func(context.Context, *inboxtest.Tx, semel.Message) error { return semel.Permanent(errors.New("bad")) }
		})
		var halt *inbox.HaltError
		if p.ends(t); !errors.As(p.err, &halt) || !errors.Is(p.err, errAlternate) {
			t.Errorf("%d messages: %v", n, p.err)
		}
		if tries := s.begun.Load(); tries > 4 {
			t.Errorf("%d messages: %d transactions begun", n, tries)
		}
	}
}
