package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// Frame is one message on its way through a proxy.
type Frame struct {
	Conn   int  // which connection, counted from 1
	Answer bool // it comes from the server
	// Kind is the protocol's own name: of a PostgreSQL message (Query, Parse, Bind, Execute, Sync, CopyData,
	// CommandComplete, ReadyForQuery …), or of a Kafka request (Fetch, OffsetCommit …), which its answer bears too.
	Kind string
	SQL  string // PostgreSQL: the statement that a Query, Parse, Bind, Describe or Execute is about

	id   int64 // Kafka: what an answer says to which request it belongs
	ends int64 // PostgreSQL: the ReadyForQuery that ends the answer, counted per connection
}

// Action is what happens at a frame.
type Action uint8

const (
	// CutBefore cuts the connection instead of handing the frame on.
	CutBefore Action = iota
	// CutAfter hands it on and cuts the connection at once: nobody knows whether the server got to it.
	CutAfter
	// LoseAnswer hands a request on, waits until the server has answered, and cuts the connection without a word to the
	// client: done, and the client can't know.
	LoseAnswer
	// HoldAnswer is LoseAnswer with the connection left open, and silent, until [Injection.Release].
	HoldAnswer
	// Hold keeps the frame, and what comes behind it, until [Injection.Release]; then it goes on its way.
	Hold
)

func (a Action) String() string {
	return [...]string{"cut before", "cut after", "lose the answer to", "hold the answer to", "hold"}[a]
}

// Fault says at which frames what happens.
type Fault struct {
	At    func(Frame) bool // is called for one frame at a time; nil: every one
	Do    Action
	Skip  int // so many go by first
	Times int // then it fires so often; 0: once; negative: always
}

// IsCommit is a COMMIT on its way to the server, in either protocol.
func IsCommit(f Frame) bool { return !f.Answer && ran(f) && verb(f.SQL) == "commit" }

func ran(f Frame) bool { return f.Kind == "Query" || f.Kind == "Execute" }

// Is makes a condition: a request of one of these kinds.
func Is(kinds ...string) func(Frame) bool {
	return func(f Frame) bool { return !f.Answer && slices.Contains(kinds, f.Kind) }
}

// Sometimes makes a condition that holds with a probability, where the other one does.
func Sometimes(r *rand.Rand, p float64, at func(Frame) bool) func(Frame) bool {
	return func(f Frame) bool { return at(f) && r.Float64() < p }
}

// Injection is a fault at work.
type Injection struct {
	fault Fault

	mu      sync.Mutex
	seen    int
	begun   int // firings, those included that wait for an answer
	fired   int
	change  chan struct{} // closed, and made anew, when fired changes
	release chan struct{}
	let     bool
	removed bool
}

func inject(f Fault) *Injection {
	if f.Times == 0 {
		f.Times = 1
	}
	return &Injection{fault: f, change: make(chan struct{}), release: make(chan struct{})}
}

// fires says whether it does at this frame, and counts.
func (i *Injection) fires(f Frame) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.removed || i.fault.Times >= 0 && i.begun >= i.fault.Times || i.fault.At != nil && !i.fault.At(f) {
		return false
	}
	if i.seen++; i.seen <= i.fault.Skip {
		return false
	}
	i.begun++
	return true
}

func (i *Injection) done() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fired++
	close(i.change)
	i.change = make(chan struct{})
}

// missed takes a firing back: the connection ended first, or had an answer to lose already.
func (i *Injection) missed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begun--
}

// Fired is how often it has. A lost or held answer counts when the server has given it.
func (i *Injection) Fired() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fired
}

// Wait returns when it has fired so often.
func (i *Injection) Wait(ctx context.Context, times int) error {
	for {
		i.mu.Lock()
		fired, change := i.fired, i.change
		i.mu.Unlock()
		if fired >= times {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("the fault fired %d times instead of %d: %w", fired, times, context.Cause(ctx))
		}
	}
}

// Release lets go what is held, now and later.
func (i *Injection) Release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.let {
		i.let = true
		close(i.release)
	}
}

// Remove ends the fault and releases what it holds.
func (i *Injection) Remove() {
	i.mu.Lock()
	i.removed = true
	i.mu.Unlock()
	i.Release()
}
