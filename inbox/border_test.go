package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// stream is what a broker holds when a consumer starts.
type stream struct {
	partitions int
	messages   []semel.Message
}

// randomStream has repeats by the producer, within a partition and across, bad
// messages, and messages without ID.
func randomStream(seed uint64, partitions, n int) stream {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := stream{partitions: partitions}
	for i := range n {
		id := fmt.Sprint("id", i)
		if rng.IntN(4) == 0 {
			id = fmt.Sprint("id", rng.IntN(i+1))
		}
		m := message(rng.IntN(partitions), id, id)
		switch {
		case rng.IntN(10) == 0:
			m.Headers = nil
		case len(id)%2 == 0 && strings.HasSuffix(id, "3"): // what is bad is bad under the same ID
			m.Value = []byte("bad")
		}
		s.messages = append(s.messages, m)
	}
	return s
}

// end is what a consumer left of a stream.
type end struct {
	Values  map[string]int64
	Letters []string // by ID, or by place where there is none
	Halt    string
	Rows    []rowEnd
}

type rowEnd struct {
	Next    int64
	Settled inbox.Tally
	Outcome [6]inbox.Tally
}

// handlers that do the same in several ways; bad messages are refused.
var handlers = map[string]func(*inbox.Config[*inboxtest.Tx]){
	"per message": func(c *inbox.Config[*inboxtest.Tx]) { c.Handler = countGood },
	"per batch, culprit named": func(c *inbox.Config[*inboxtest.Tx]) {
		c.BatchHandler = func(ctx context.Context, tx *inboxtest.Tx, ms []semel.Message) error {
			for i, m := range ms {
				if err := countGood(ctx, tx, m); err != nil {
					return semel.FailedAt(i, err)
				}
			}
			return nil
		}
	},
	"per batch, culprit searched": func(c *inbox.Config[*inboxtest.Tx]) {
		c.BatchHandler = func(ctx context.Context, tx *inboxtest.Tx, ms []semel.Message) error {
			for _, m := range ms {
				if err := countGood(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}
	},
	"an effect":                func(c *inbox.Config[*inboxtest.Tx]) { c.Effect = goodRows{} },
	"an effect, culprit named": func(c *inbox.Config[*inboxtest.Tx]) { c.Effect = goodRows{names: true} },
	"an effect, refused late":  func(c *inbox.Config[*inboxtest.Tx]) { c.Effect = goodRows{late: true} },
}

// stepOf is how far apart the sizes of batches are that a handler is run with.
func stepOf(handler string) int {
	if strings.HasPrefix(handler, "an effect") {
		return 3
	}
	return 1
}

// goodRows is an effect that may be applied several times in a transaction.
type goodRows struct{ names, late bool }

func (goodRows) Separable() bool     { return true }
func (goodRows) Decode([]inbox.Item) {}

func (g goodRows) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for i, it := range items {
		if g.late && string(it.Value) == "bad" {
			tx.DB().RefuseLate()
		} else if err := countGood(ctx, tx.DB(), it.Message); err != nil {
			if g.names {
				err = semel.FailedAt(i, err)
			}
			return err
		}
	}
	return nil
}

func countGood(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
	if string(m.Value) == "bad" {
		return tx.Refuse()
	}
	return count(ctx, tx, m)
}

// consume runs lanes over the stream until it is settled or they halt.
func (s stream) consume(t *testing.T, lanes, batch int, edit ...func(*inbox.Config[*inboxtest.Tx])) (e end) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s.partitions)
		w.b.Send(s.messages...)
		ends := make([]int64, s.partitions)
		for _, m := range s.messages {
			ends[m.Partition]++
		}
		var ps []*process
		for range lanes {
			ps = append(ps, w.start(append([]func(*inbox.Config[*inboxtest.Tx]){func(c *inbox.Config[*inboxtest.Tx]) {
				c.Handler = nil
				c.Batch.Messages = batch
				c.OnError.InARow, c.OnError.Share = -1, -1
			}}, edit...)...))
		}
		settled := func() bool {
			rows := w.db.Rows(consumer)
			for i, r := range rows {
				if r.Next != ends[i] {
					return false
				}
			}
			return len(rows) == s.partitions
		}
		for !settled() && e.Halt == "" {
			time.Sleep(time.Millisecond)
			for _, p := range ps {
				select {
				case <-p.done:
					var h *inbox.HaltError
					if !errors.As(p.err, &h) {
						t.Fatalf("Run answers %v", p.err)
					}
					e.Halt = h.Error()
				default:
				}
			}
		}
		e.Values = w.db.Values()
		for _, l := range w.db.Letters() {
			name := l.SentID
			if l.Class == inbox.DeadMissingID {
				name = l.Message.Position().String()
			}
			e.Letters = append(e.Letters, fmt.Sprintf("%s %s", name, l.Class))
		}
		slices.Sort(e.Letters)
		for _, r := range w.db.Rows(consumer) {
			e.Rows = append(e.Rows, rowEnd{r.Next, r.Accounts.Settled, r.Accounts.Outcome})
		}
	})
	return e
}

// same compares without checksums, for they depend on topic IDs, which are random.
func wantSame(t *testing.T, what string, got, want end) {
	t.Helper()
	for _, e := range []*end{&got, &want} {
		for i := range e.Rows {
			e.Rows[i].Settled.Sum = 0
			for k := range e.Rows[i].Outcome {
				e.Rows[i].Outcome[k].Sum = 0
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v\none by one: %+v", what, got, want)
	}
}

// across adds partitions up: which of two messages with one ID comes first is
// decided by who is faster, what becomes of the two together is not.
func across(e end) end {
	var sum rowEnd
	for _, r := range e.Rows {
		sum.Next += r.Next
		sum.Settled = sum.Settled.Plus(r.Settled)
		for k := range r.Outcome {
			sum.Outcome[k] = sum.Outcome[k].Plus(r.Outcome[k])
		}
	}
	e.Rows = []rowEnd{sum}
	return e
}

func TestEveryBatchBorderGivesTheSame(t *testing.T) {
	t.Parallel()
	const n = 40
	for seed := range uint64(4) {
		for _, partitions := range []int{1, 3} {
			s := randomStream(seed, partitions, n)
			want := s.consume(t, 1, 1, handlers["per message"])
			if len(want.Letters) == 0 || want.Halt != "" {
				t.Fatalf("a stream without bad messages proves little: %+v", want)
			}
			for name, handler := range handlers {
				for batch := 1; batch <= n+1; batch += stepOf(name) {
					got := s.consume(t, 1, batch, handler)
					what := fmt.Sprintf("seed %d, %d partitions, %s, batches of %d", seed, partitions, name, batch)
					wantSame(t, what, across(got), across(want))
					if partitions == 1 {
						wantSame(t, what, got, want)
					}
				}
			}
		}
	}
}

func TestAnyNumberOfLanesGivesTheSame(t *testing.T) {
	t.Parallel()
	const n = 60
	for seed := range uint64(4) {
		s := randomStream(seed, 3, n)
		want := across(s.consume(t, 1, 1, handlers["per message"]))
		for name, handler := range handlers {
			for _, lanes := range []int{2, 3, 4} {
				for _, batch := range []int{1, 7, n} {
					got := across(s.consume(t, lanes, batch, handler))
					wantSame(t, fmt.Sprintf("seed %d, %d lanes, %s, batches of %d", seed, lanes, name, batch), got, want)
				}
			}
		}
	}
}

// What is buried before the limit halts, and where it halts, doesn't depend on
// the batches either.
func TestEveryBatchBorderHaltsAtTheSameMessage(t *testing.T) {
	t.Parallel()
	s := stream{partitions: 1}
	for i := range 50 {
		m := message(0, fmt.Sprint(i), fmt.Sprint(i))
		switch {
		case i == 3, i == 9, i == 10, i == 11, i >= 30 && i < 36:
			m.Value = []byte("bad")
		case i == 4, i == 36:
			m.Headers = nil // bad in another way
		case i == 33:
			m = message(0, "9", "9") // and a repeat breaks the row of bad ones
		}
		s.messages = append(s.messages, m)
	}
	for name, limit := range map[string]func(*inbox.Config[*inboxtest.Tx]){
		"in a row":        func(c *inbox.Config[*inboxtest.Tx]) { c.OnError.InARow = 4 },
		"share":           func(c *inbox.Config[*inboxtest.Tx]) { c.OnError.Share = 0.006 },
		"halt at the 1st": func(c *inbox.Config[*inboxtest.Tx]) { c.OnError.Halt = true },
	} {
		want := s.consume(t, 1, 1, handlers["per message"], limit)
		if want.Halt == "" {
			t.Fatalf("%s: no halt", name)
		}
		for kind, handler := range handlers {
			for batch := 2; batch <= len(s.messages)+1; batch += stepOf(kind) {
				got := s.consume(t, 1, batch, handler, limit)
				wantSame(t, fmt.Sprintf("%s, %s, batches of %d", name, kind, batch), got, want)
			}
		}
	}
}
