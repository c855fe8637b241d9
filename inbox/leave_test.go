package inbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// farewell is a source that leaves without an answer, as one that is cut off does.
type farewell struct{ inbox.Source }

func (s farewell) Leave(ctx context.Context) error {
	return errors.Join(s.Source.Leave(ctx), errors.New("the coordinator gave no answer"))
}

// unreached is a store that this process alone can't reach while away is set.
type unreached struct {
	inbox.Store[*inboxtest.Tx]
	away  *atomic.Bool
	looks *atomic.Int64
}

var errUnreached = errors.New("no route to the database")

func (s unreached) Look(ctx context.Context, ps []semel.Partition) (inbox.Look, error) {
	if s.away.Load() {
		return inbox.Look{}, errUnreached
	}
	s.looks.Add(1)
	return s.Store.Look(ctx, ps)
}

func (s unreached) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.away.Load() {
		return nil, errUnreached
	}
	return s.Store.Begin(ctx, spans)
}

func (s unreached) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	if s.away.Load() {
		return inbox.Row{}, errUnreached
	}
	return s.Store.Claim(ctx, p, o, f)
}

func (s unreached) Class(err error) inbox.Class {
	if errors.Is(err, errUnreached) {
		return inbox.ClassOutage
	}
	return s.Store.Class(err)
}

// A process that is cut off from everything leaves, and nobody answers: what it had
// is another's. When it is back it must not claim that again, for then the two would
// fence one another for ever.
func TestWhoLeftWithoutAnAnswerHasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 3)
	var away atomic.Bool
	var looks, fenced atomic.Int64
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store, c.Source = unreached{c.Store, &away, &looks}, farewell{c.Source}
		c.CutOff = 50 * time.Millisecond
	})
	w.settledTo(3)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Observe.Fenced = func(inbox.Mismatch) { fenced.Add(1) } })
	away.Store(true)
	keys = append(keys, w.send(0, 3, 6)...)
	w.settledTo(6)
	away.Store(false)
	back := looks.Load()
	until(t, "it is back", func() bool { return looks.Load() > back+20 })
	keys = append(keys, w.send(0, 6, 9)...)
	w.settledTo(9)
	w.wantOnce(keys...)
	if n := fenced.Load(); n > 0 {
		t.Errorf("the owner was fenced %d times", n)
	}
}
