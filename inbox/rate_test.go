package inbox_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// calm counts polls that are made while a transaction is open.
type calm struct {
	inbox.Source
	inbox.Store[*inboxtest.Tx]
	open, polls, bad atomic.Int32
}

type (
	calmSource struct{ *calm }
	calmStore  struct{ *calm }
)

func (c calmSource) Poll(ctx context.Context, most int) (inbox.Delivery, error) {
	c.polls.Add(1)
	if c.open.Load() > 0 {
		c.bad.Add(1)
	}
	return c.Source.Poll(ctx, most)
}

func (c calmSource) Close() { c.Source.Close() }
func (c calmStore) Close()  { c.Store.Close() }

func (c calmStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := c.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &calmTx{Tx: tx, ends: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type calmTx struct {
	inbox.Tx[*inboxtest.Tx]
	ends func()
}

func (t *calmTx) Commit(ctx context.Context, s []inbox.Settled) error {
	defer t.ends()
	return t.Tx.Commit(ctx, s)
}

func (t *calmTx) Rollback(ctx context.Context) { t.Tx.Rollback(ctx); t.ends() }

// Whatever the time looked at, no more is taken than the rate allows in it, and what a
// second allows, once for each lane.
func TestARateBoundsWhatLanesTakeTogether(t *testing.T) {
	const perSecond, partitions, each = 100, 4, 300
	for _, lanes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, partitions)
			var keys []string
			for p := range partitions {
				keys = append(keys, w.send(p, 0, each)...)
			}
			rate := inbox.NewRate(perSecond, time.Second)
			var mu sync.Mutex
			var at []time.Time
			var watched []*calm
			for range lanes {
				w.start(func(c *inbox.Config[*inboxtest.Tx]) {
					calm := &calm{Source: c.Source, Store: c.Store}
					watched = append(watched, calm)
					c.Source, c.Store, c.Rate = calmSource{calm}, calmStore{calm}, rate
					c.Batch.Messages = 10 // some are read ahead
					c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
						mu.Lock()
						at = append(at, time.Now())
						mu.Unlock()
						return count(ctx, tx, m)
					}
				})
			}
			began := time.Now()
			for end := began.Add(time.Minute); len(w.db.Values()) < len(keys) && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			took := time.Since(began)
			w.settledTo(each, each, each, each)
			w.wantOnce(keys...)
			if most := 2 * time.Second * partitions * each / perSecond; took > most {
				t.Errorf("%d lanes: it took %s", lanes, took)
			}
			for i := range at {
				for j := i; j < len(at); j++ {
					allowed := perSecond*at[j].Sub(at[i]).Seconds() + float64(lanes*perSecond) + 1
					if n := float64(j - i + 1); n > allowed {
						t.Fatalf("%d lanes: %v messages in %s, %v are allowed", lanes, n, at[j].Sub(at[i]), allowed)
					}
				}
			}
			for _, c := range watched {
				if n := c.bad.Load(); n > 0 {
					t.Errorf("%d of %d polls with a transaction open", n, c.polls.Load())
				}
			}
		})
	}
}

func TestWhoWaitsForARateStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.send(0, 0, 5)
		p := w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Rate = inbox.NewRate(1, time.Minute) })
		w.settledTo(1)
		time.Sleep(time.Second) // now it waits for the next minute
		began := time.Now()
		p.stop(t)
		if took := time.Since(began); took > time.Second {
			t.Errorf("it stopped after %s", took)
		}
		if r := w.db.Rows(consumer)[0]; r.Owner != nil || r.Next != 1 {
			t.Errorf("the row after a stop: %+v", r)
		}
		if next, _ := w.b.Committed(consumer, p0); next != 1 {
			t.Errorf("acked %d", next)
		}
	})
}

func TestWhoWaitsForARateLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		keys := append(w.send(0, 0, 3), w.send(1, 0, 3)...)
		w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Rate = inbox.NewRate(1, time.Minute) })
		until(t, "one is settled", func() bool { return len(w.db.Values()) == 1 })
		began := time.Now()
		w.start() // without a rate: what it is given is settled at once
		until(t, "the other has settled its partition", func() bool { return len(w.db.Values()) >= 4 })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the other had its partition after %s", took)
		}
		for end := time.Now().Add(10 * time.Minute); len(w.db.Values()) < len(keys) && time.Now().Before(end); {
			time.Sleep(time.Second)
		}
		w.settledTo(3, 3)
		w.wantOnce(keys...)
	})
}
