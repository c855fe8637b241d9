package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// leaderless is a broker on which nobody leads a partition.
type leaderless struct {
	inbox.Source
	p semel.Partition
}

func (s leaderless) EpochEnd(ctx context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	if p == s.p {
		return inbox.EpochEnd{}, errors.New("nobody leads it")
	}
	return s.Source.EpochEnd(ctx, p, epoch)
}

func TestPartitionThatCannotBeProvedDoesNotHoldTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 3), w.send(1, 0, 3)...)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = leaderless{c.Source, p0} })
	w.settledTo(3, 3)
	w.b.Cut(p0, 3) // another leader, which is gone at once
	for n := 3; n < 30; n += 3 {
		keys = append(keys, w.send(1, n, n+3)...)
		w.settledTo(3, int64(n+3))
	}
	w.wantOnce(keys...)
}
