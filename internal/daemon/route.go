package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// lane is one member of a route's group with one connection to the database;
// [inbox.Inbox] is one.
type lane interface {
	Run(ctx context.Context) error
	Drain()
}

// route runs its lanes, and starts them again after a halt if somebody says so.
// When one lane halts the others are drained: what one of them met, the next
// would meet on the same partition.
type route struct {
	name  string
	lanes int
	// make may wait until what a lane needs can be reached.
	make func(ctx context.Context, lane int) (lane, error)
	// orders is the number of the newest order to go on.
	orders func(ctx context.Context) (int64, error)
	board  *board
}

// resumeEvery is how often a halted route looks whether it may go on.
const resumeEvery = 2 * time.Second

// run ends when soft does, after a drain, or when hard does, at once. It answers
// why the route stands halted, nil if it doesn't.
func (r *route) run(hard, soft context.Context) error {
	for {
		r.board.setAll(r.name, Starting, "")
		err := r.once(hard, soft)
		if err == nil || hard.Err() != nil {
			r.board.setAll(r.name, Stopped, "")
			return nil
		}
		r.board.setAll(r.name, Halted, reason(err))
		if !r.wait(soft) {
			return err
		}
	}
}

// once runs all lanes to their end; the first error counts. Lanes that were made
// and not run hold nothing but memory.
func (r *route) once(hard, soft context.Context) error {
	lanes := make([]lane, r.lanes)
	for i := range lanes {
		l, err := r.make(soft, i)
		if soft.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		lanes[i] = l
	}
	drain := sync.OnceFunc(func() {
		for _, l := range lanes {
			l.Drain()
		}
	})
	defer context.AfterFunc(soft, drain)()
	ended := make(chan error)
	for _, l := range lanes {
		go func() { ended <- l.Run(hard) }()
	}
	var first error
	for range lanes {
		if err := <-ended; err != nil && first == nil {
			first = err
			drain()
		}
	}
	return first
}

// wait answers true when there is an order that wasn't there when it was called;
// false when soft ends.
func (r *route) wait(soft context.Context) bool {
	tick := time.NewTicker(resumeEvery)
	defer tick.Stop()
	was, err := r.orders(soft)
	for known := err == nil; ; {
		select {
		case <-soft.Done():
			return false
		case <-tick.C:
		}
		switch now, err := r.orders(soft); {
		case err != nil:
		case !known:
			was, known = now, true
		case now > was:
			return true
		}
	}
}

// reason is an error in one line, with its hint; that it halted is said by whoever
// prints it.
func reason(err error) string {
	var halt *inbox.HaltError
	if !errors.As(err, &halt) {
		return strings.Join(strings.Split(err.Error(), "\n"), "; ")
	}
	why := halt.Why
	if halt.Partition != (semel.Partition{}) {
		why = halt.Partition.String() + ": " + why
	}
	if halt.Hint != "" {
		why += " (" + halt.Hint + ")"
	}
	return why
}
