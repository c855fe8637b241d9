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

// full is a store of a server whose disk is full: rows are read and claims made,
// batches fail.
type full struct {
	inbox.Store[*inboxtest.Tx]
	tries *atomic.Int64
}

type fullTx struct{ inbox.Tx[*inboxtest.Tx] }

func (s full) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	s.tries.Add(1)
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	return fullTx{tx}, nil
}

func (fullTx) Class(error) inbox.Class { return inbox.ClassOutage }

func TestOutageInsideABatchIsTriedLessAndLessOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 0, 1)
	var tries atomic.Int64
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store = full{c.Store, &tries}
		c.Handler = func(context.Context, *inboxtest.Tx, semel.Message) error { return context.DeadlineExceeded }
	})
	began := time.Now()
	until(t, "six tries", func() bool { return tries.Load() >= 6 })
	if took := time.Since(began); took < time.Second { // 50, 100, 200, 400 and 800 ms apart
		t.Errorf("six tries in %s", took)
	}
}

// unheard is a broker that delivers, and answers no question.
type unheard struct {
	inbox.Source
	tries *atomic.Int64
}

func (s unheard) Witness(context.Context, []string) ([]inbox.Witness, error) {
	s.tries.Add(1)
	return nil, errors.New("not authorized")
}

func TestUnansweredWitnessIsAskedLessAndLessOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var tries atomic.Int64
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = unheard{c.Source, &tries} })
	began := time.Now()
	until(t, "six tries", func() bool { return tries.Load() >= 6 })
	if took := time.Since(began); took < time.Second { // 50, 100, 200, 400 and 800 ms apart
		t.Errorf("six tries in %s", took)
	}
}
