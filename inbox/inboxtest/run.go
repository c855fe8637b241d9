package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// Handler is a handler under test.
type Handler[T any] func(ctx context.Context, tx T, m semel.Message) error

// World is what [RunOn] runs a handler on: a fresh database each time.
type World[T any] struct {
	// Store opens a connection to it.
	Store func() inbox.Store[T]
	// Effects says what the handler did, wherever it did it: rows of its tables,
	// and whatever else it writes to. Two runs are compared by it, so leave out
	// what may differ, such as times.
	Effects func() map[string]int64
}

// Run runs a handler of [Tx] through repeats and crashes on a database in memory,
// see [RunOn]. What it does elsewhere isn't seen: for that there is [InMemory].
func Run(t testing.TB, handle Handler[*Tx], ms ...semel.Message) {
	t.Helper()
	RunOn(t, InMemory(nil), handle, ms...)
}

// InMemory is a world for RunOn on a database in memory. outside counts what the
// handler does elsewhere, from whenever it likes; nil: nothing.
func InMemory(outside func() map[string]int64) func() World[*Tx] {
	count := func() map[string]int64 {
		if outside == nil {
			return nil
		}
		return maps.Clone(outside())
	}
	return func() World[*Tx] {
		db, before := NewDB(), count()
		return World[*Tx]{
			Store: func() inbox.Store[*Tx] { return db.NewStore() },
			Effects: func() map[string]int64 {
				out := db.Values()
				for k, n := range count() {
					if n -= before[k]; n != 0 {
						out["outside: "+k] = n
					}
				}
				return out
			},
		}
	}
}

// RunOn runs a handler over the messages as they are; then with each message sent
// again by its producer, and with a crash at each step of each message; and
// fails t where the effects are not those of the first run. A handler fails here
// that writes outside the transaction, on another connection for example, or that
// remembers in the process what only the database may know.
//
// Messages without a message-id header get one. They go into one partition, in
// order, one a transaction; a message that the handler refuses is buried after one
// attempt, in every run alike.
func RunOn[T any](t testing.TB, world func() World[T], handle Handler[T], ms ...semel.Message) {
	t.Helper()
	for i := range ms {
		ms[i].Topic, ms[i].Partition = "inboxtest", 0
		if _, ok := ms[i].Header("message-id"); !ok {
			ms[i].Headers = append(slices.Clone(ms[i].Headers), semel.Header{Name: "message-id", Value: []byte(fmt.Sprint("inboxtest-", i))})
		}
	}
	r := run[T]{t: t, world: world, handle: handle}
	want, ok := r.effects("a plain run", ms, "", 0)
	if !ok {
		return
	}
	r.compare(want, "every message sent twice by its producer", twice(ms), "", 0)
	r.compare(want, "the whole stream sent twice by its producer", slices.Concat(ms, ms), "", 0)
	for _, at := range crashes {
		for i := range ms {
			r.compare(want, fmt.Sprintf("a crash at message %d, %s", i, at), ms, at, i+1)
		}
	}
}

func twice(ms []semel.Message) (out []semel.Message) {
	for _, m := range ms {
		out = append(out, m, m)
	}
	return out
}

// crash is a step of the loop at which the process dies.
type crash string

const (
	beforeEffect crash = "before its effect"
	afterEffect  crash = "between its effect and COMMIT"
	afterCommit  crash = "between COMMIT and ack"
)

var crashes = []crash{beforeEffect, afterEffect, afterCommit}

type run[T any] struct {
	t      testing.TB
	world  func() World[T]
	handle Handler[T]
}

func (r run[T]) compare(want map[string]int64, what string, ms []semel.Message, at crash, nth int) {
	r.t.Helper()
	got, ok := r.effects(what, ms, at, nth)
	if ok && !maps.Equal(got, want) {
		r.t.Errorf("inboxtest: after %s the effects differ from those of a plain run:%s", what, difference(got, want))
	}
}

func difference(got, want map[string]int64) string {
	keys := slices.Sorted(maps.Keys(got))
	for k := range want {
		if _, ok := got[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var out strings.Builder
	for _, k := range keys {
		if got[k] != want[k] {
			fmt.Fprintf(&out, "\n  %s: %d, not %d", k, got[k], want[k])
		}
	}
	return out.String()
}

// effects lets one process after the other run until everything is settled.
func (r run[T]) effects(what string, ms []semel.Message, at crash, nth int) (map[string]int64, bool) {
	r.t.Helper()
	w, b := r.world(), NewBroker()
	b.CreateTopic("inboxtest", 1)
	b.Send(ms...)
	c := &crasher{at: at, left: nth}
	for {
		err := r.process(w, b, c, int64(len(ms)))
		switch {
		case err == nil:
			return w.Effects(), true
		case errors.Is(err, errCrashed):
			b.Expire("inboxtest")
		default:
			r.t.Errorf("inboxtest: %s: %v", what, err)
			return nil, false
		}
	}
}

var errCrashed = errors.New("crashed")

// process runs until everything is settled, or until it crashes.
func (r run[T]) process(w World[T], b *Broker, c *crasher, end int64) error {
	settled, once := make(chan struct{}), sync.Once{}
	in, err := inbox.New(inbox.Config[T]{
		Consumer: "inboxtest", Source: crashSource{b.NewSource("inboxtest", StartEarliest, "inboxtest"), c},
		Store: crashStore[T]{w.Store(), c}, ID: semel.HeaderID("message-id"),
		Handler: func(ctx context.Context, tx T, m semel.Message) error {
			c.pass(beforeEffect)
			return r.handle(ctx, tx, m)
		},
		Batch:   inbox.BatchLimits{Messages: 1},
		OnError: inbox.ErrorPolicy{Attempts: 1, InARow: -1, Share: -1},
		Observe: inbox.Observer{Moved: func(m inbox.Mark, _ int64, _ time.Time) {
			if m.Next == end {
				once.Do(func() { close(settled) })
			}
		}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errCrashed
		defer func() { done <- err }()
		err = in.Run(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-settled:
		in.Drain()
		return <-done
	}
}

// crasher ends the process, once, at the nth time that a step is reached.
type crasher struct {
	at crash

	mu   sync.Mutex
	left int
}

func (c *crasher) pass(at crash) {
	c.mu.Lock()
	hit := at == c.at && c.left == 1
	if at == c.at && c.left > 0 {
		c.left--
	}
	c.mu.Unlock()
	if hit {
		runtime.Goexit()
	}
}

type crashSource struct {
	inbox.Source
	c *crasher
}

func (s crashSource) Ack(acks []inbox.Ack) {
	s.c.pass(afterCommit)
	s.Source.Ack(acks)
}

type crashStore[T any] struct {
	inbox.Store[T]
	c *crasher
}

func (s crashStore[T]) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[T], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	return crashTx[T]{tx, s.c}, nil
}

type crashTx[T any] struct {
	inbox.Tx[T]
	c *crasher
}

func (t crashTx[T]) Commit(ctx context.Context, settled []inbox.Settled) error {
	t.c.pass(afterEffect)
	return t.Tx.Commit(ctx, settled)
}
