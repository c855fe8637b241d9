package inbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

const consumer = "c"

var p0 = semel.Partition{Topic: "t", Number: 0}

// message is one with an ID in its header and a key that names the effect.
func message(partition int, id, key string) semel.Message {
	return semel.Message{
		Topic: "t", Partition: int32(partition), Key: []byte(key), Value: []byte("v"),
		Headers: []semel.Header{{Name: "message-id", Value: []byte(id)}},
	}
}

// count is a handler that adds one to the key's value.
func count(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
	return tx.Add(ctx, string(m.Key), 1)
}

type world struct {
	t  *testing.T
	b  *inboxtest.Broker
	db *inboxtest.DB
}

func newWorld(t *testing.T, partitions int) *world {
	w := &world{t: t, b: inboxtest.NewBroker(), db: inboxtest.NewDB()}
	w.b.CreateTopic("t", partitions)
	return w
}

func (w *world) config(edit ...func(*inbox.Config[*inboxtest.Tx])) inbox.Config[*inboxtest.Tx] {
	cfg := inbox.Config[*inboxtest.Tx]{
		Consumer: consumer, Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), Store: w.db.NewStore(),
		ID: semel.HeaderID("message-id"), Handler: count, Reread: 20 * time.Millisecond,
		OnError: inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond},
	}
	for _, e := range edit {
		e(&cfg)
	}
	return cfg
}

// process is a running consumer.
type process struct {
	in   *inbox.Inbox[*inboxtest.Tx]
	kill context.CancelFunc
	done chan struct{}
	err  error
}

func (w *world) start(edit ...func(*inbox.Config[*inboxtest.Tx])) *process {
	w.t.Helper()
	in, err := inbox.New(w.config(edit...))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{in: in, kill: cancel, done: make(chan struct{})}
	go func() { defer close(p.done); p.err = in.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-p.done })
	return p
}

// ends waits for the end of Run.
func (p *process) ends(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(*patience):
		t.Fatal("never: Run returns")
	}
}

// stop drains.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.in.Drain()
	<-p.done
	if p.err != nil {
		t.Fatalf("after a drain Run answers %v", p.err)
	}
}

// patience is how long a fact may take; tests that are meant to fail need less.
var patience = flag.Duration("patience", time.Minute, "how long to wait for a fact")

// until waits for a fact.
func until(t *testing.T, what string, fact func() bool) {
	t.Helper()
	end := time.Now().Add(*patience)
	for !fact() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// settledTo waits for the watermarks.
func (w *world) settledTo(marks ...int64) {
	w.t.Helper()
	end := time.Now().Add(*patience)
	for {
		rows := w.db.Rows(consumer)
		ok := len(rows) == len(marks)
		for i := range rows {
			ok = ok && i < len(marks) && rows[i].Next == marks[i]
		}
		if ok {
			for _, r := range rows {
				if d, ok := r.Accounts.Check(); !ok {
					w.t.Fatalf("%s: settled and outcomes differ by %+v", r.Partition, d)
				}
				if got := r.Accounts.Settled.Count + r.Accounts.Holes + r.Accounts.Lost; got != r.Next-r.Start {
					w.t.Fatalf("%s: %d offsets accounted for of %d", r.Partition, got, r.Next-r.Start)
				}
			}
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("never settled to %v: %+v", marks, rows)
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *world) wantOnce(keys ...string) {
	w.t.Helper()
	got := w.db.Values()
	if len(got) != len(keys) {
		w.t.Errorf("effects: %v, want one of each of %v", got, keys)
	}
	for _, k := range keys {
		if got[k] != 1 {
			w.t.Errorf("effect %s happened %d times", k, got[k])
		}
	}
}

func (w *world) send(partition, from, to int) (keys []string) {
	for i := from; i < to; i++ {
		k := fmt.Sprintf("p%d-%d", partition, i)
		w.b.Send(message(partition, k, k))
		keys = append(keys, k)
	}
	return keys
}

func TestEachMessageTakesEffectOnce(t *testing.T) {
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 250), w.send(1, 0, 30)...)
	w.b.Hole(p0)
	p := w.start()
	w.settledTo(251, 30)
	w.wantOnce(keys...)
	p.stop(t)
	if next, _ := w.b.Committed(consumer, p0); next != 251 {
		t.Errorf("acked %d after a drain, the watermark is 251", next)
	}
	for _, r := range w.db.Rows(consumer) {
		if r.Owner != nil {
			t.Errorf("%s has an owner after a clean stop", r.Partition)
		}
	}
}

func TestProducersRepeatIsADuplicate(t *testing.T) {
	w := newWorld(t, 2)
	w.b.Send(message(0, "a", "a"), message(0, "a", "a"), message(0, "b", "b"))
	w.start()
	w.settledTo(3, 0)
	w.b.Send(message(0, "b", "b"), message(1, "a", "a"))
	w.settledTo(4, 1)
	w.wantOnce("a", "b")
	if a := w.db.Rows(consumer)[0].Accounts; a.Outcome[inbox.DuplicateID].Count != 2 {
		t.Errorf("duplicates: %+v", a)
	}
}

func TestMessageWithoutIDIsBuried(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(semel.Message{Topic: "t", Key: []byte("x"), Value: []byte("v")}, message(0, "a", "a"))
	w.start()
	w.settledTo(2)
	w.wantOnce("a")
	if ls := w.db.Letters(); len(ls) != 1 || ls[0].Class != inbox.DeadMissingID {
		t.Errorf("letters: %+v", ls)
	}
}

func TestPoisonIsIsolatedAndTheRestKept(t *testing.T) {
	w := newWorld(t, 1)
	var keys []string
	for i := range 90 {
		k := fmt.Sprint(i)
		w.b.Send(message(0, k, k))
		if i != 0 && i != 41 && i != 89 {
			keys = append(keys, k)
		}
	}
	bad := func(m semel.Message) bool { return m.Offset == 0 || m.Offset == 41 || m.Offset == 89 }
	t.Run("named by the handler", func(t *testing.T) {
		w := &world{t, w.b, inboxtest.NewDB()}
		w.start(func(c *inbox.Config[*inboxtest.Tx]) {
			c.Source, c.Consumer = w.b.NewSource("g1", inboxtest.StartGroup, "t"), consumer
			c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
				if bad(m) {
					return tx.Refuse()
				}
				return count(ctx, tx, m)
			}
		})
		w.settledTo(90)
		w.wantOnce(keys...)
		if n := len(w.db.Letters()); n != 3 {
			t.Errorf("%d letters", n)
		}
	})
	t.Run("searched by halving", func(t *testing.T) {
		w := &world{t, w.b, inboxtest.NewDB()}
		w.start(func(c *inbox.Config[*inboxtest.Tx]) {
			c.Source = w.b.NewSource("g2", inboxtest.StartGroup, "t")
			c.Handler = nil
			c.BatchHandler = func(ctx context.Context, tx *inboxtest.Tx, ms []semel.Message) error {
				for _, m := range ms {
					if bad(m) {
						return tx.Refuse()
					}
					if err := count(ctx, tx, m); err != nil {
						return err
					}
				}
				return nil
			}
		})
		w.settledTo(90)
		w.wantOnce(keys...)
		ls := w.db.Letters()
		if len(ls) != 3 || ls[1].Message.Offset != 41 || ls[1].Class != inbox.DeadConstraint {
			t.Errorf("letters: %+v", ls)
		}
	})
}

func TestHandlerErrorsAreTriedAgainThenBuried(t *testing.T) {
	w := newWorld(t, 2)
	w.b.Send(message(0, "a", "a"), message(0, "b", "b"), message(0, "c", "c"), message(1, "d", "d"))
	tries := map[string]int{}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.OnError.Attempts = 4
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			k := string(m.Key)
			tries[k]++
			switch {
			case k == "b":
				panic("always")
			case k == "c" && tries[k] < 3:
				return errors.New("not yet")
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(3, 1)
	w.wantOnce("a", "c", "d")
	ls := w.db.Letters()
	if len(ls) != 1 || ls[0].Attempts != 4 || ls[0].Class != inbox.DeadHandler {
		t.Errorf("letters: %+v", ls)
	}
}

func TestSwallowedFailureIsFound(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "a"), message(0, "b", "b"))
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.OnError.Attempts = 1
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if string(m.Key) == "a" {
				_ = tx.Refuse()
				return nil
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(2)
	w.wantOnce("b")
}

func TestLimitHaltsInsteadOfBuryingATopic(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 100 {
		w.b.Send(semel.Message{Topic: "t", Value: []byte(fmt.Sprint(i))})
	}
	p := w.start()
	p.ends(t)
	var h *inbox.HaltError
	if !errors.As(p.err, &h) || h.Kind != "limit" {
		t.Fatalf("Run answers %v", p.err)
	}
	if n := len(w.db.Letters()); n != 20 {
		t.Errorf("%d buried, the limit is 20", n)
	}
	w.settledTo(20)
}
