package inbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

type olderBroker struct {
	inbox.Source
	end int64
}

func (s olderBroker) EpochEnd(_ context.Context, _ semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	if epoch > 0 {
		return inbox.EpochEnd{Number: -1, End: -1}, nil
	}
	return inbox.EpochEnd{Number: 0, End: s.end}, nil
}

func TestLogThatGoesOnInAnOlderEpochIsACut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 5)
	w.b.Cut(p0, 5) // another leader, and nothing is lost
	keys = append(keys, w.send(0, 5, 8)...)
	p := w.start()
	w.settledTo(8)
	p.stop(t)
	// The copy ends at 5; what came since took the offsets 5 to 11.
	w.b.Cut(p0, 5)
	for i := range 7 {
		k := fmt.Sprintf("new-%d", i)
		w.b.Send(message(0, k, k))
		keys = append(keys, k)
	}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = olderBroker{c.Source, 12} })
	until(t, "settled to the end", func() bool { return w.db.Rows(consumer)[0].Next == 12 })
	w.wantOnce(keys...)
}
