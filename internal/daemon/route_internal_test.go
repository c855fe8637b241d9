package daemon

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/inbox"
)

// fakeLane ends when it is told to.
type fakeLane struct {
	fail    chan error
	drained chan struct{}
}

func newFakeLane() *fakeLane {
	return &fakeLane{make(chan error, 1), make(chan struct{})}
}

func (l *fakeLane) Drain() { close(l.drained) }

func (l *fakeLane) Run(ctx context.Context) error {
	select {
	case err := <-l.fail:
		return err
	case <-l.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type fakeRoute struct {
	route
	made     chan *fakeLane
	said     atomic.Int64
	standing []State
}

func newFakeRoute(lanes int) *fakeRoute {
	f := &fakeRoute{made: make(chan *fakeLane, 100)}
	b := newBoard(time.Now, func(s Standing) { f.standing = append(f.standing, s.State) })
	b.add("r", lanes)
	f.route = route{
		name: "r", lanes: lanes, board: b,
		make: func(context.Context, int) (lane, error) {
			l := newFakeLane()
			f.made <- l
			return l, nil
		},
		orders: func(context.Context) (int64, error) { return f.said.Load(), nil },
	}
	return f
}

func TestAHaltOfOneLaneDrainsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRoute(2)
		soft, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.run(t.Context(), soft) }()
		first, second := <-f.made, <-f.made
		first.fail <- &inbox.HaltError{Why: "no such column", Hint: "add it"}
		<-second.drained
		synctest.Wait()
		if s := f.board.standings()[0]; s.State != Halted || s.Reason != "no such column (add it)" {
			t.Errorf("standing: %+v", s)
		}
		stop()
		if err := <-done; err == nil {
			t.Error("a route that stands halted at the end must say so")
		}
	})
}

func TestResumeTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRoute(1)
		soft, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.run(t.Context(), soft) }()
		(<-f.made).fail <- errors.New("broken")
		synctest.Wait()
		f.said.Add(1)
		<-f.made // a new lane
		synctest.Wait()
		if s := f.board.standings()[0]; s.State != Starting {
			t.Errorf("standing: %+v", s)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("after a clean drain: %v", err)
		}
		if s := f.board.standings()[0]; s.State != Stopped {
			t.Errorf("standing: %+v", s)
		}
	})
}

func TestAnAbortIsNoHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRoute(3)
		hard, abort := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.run(hard, t.Context()) }()
		<-f.made
		abort()
		if err := <-done; err != nil {
			t.Errorf("abort: %v", err)
		}
	})
}

func TestTheWorstLaneIsTheRoute(t *testing.T) {
	var told []Standing
	b := newBoard(time.Now, func(s Standing) { told = append(told, s) })
	b.add("r", 2)
	b.set("r", 0, Running, "")
	if got := b.standings()[0].State; got != Starting {
		t.Errorf("one of two runs: %s", got)
	}
	b.set("r", 1, Running, "")
	b.set("r", 1, Outage, "database: refused")
	b.set("r", 0, Running, "")
	if got := b.standings()[0]; got.State != Outage || got.Reason != "database: refused" {
		t.Errorf("one of two waits: %+v", got)
	}
	if len(told) != 2 {
		t.Errorf("told %d changes, want running and outage: %+v", len(told), told)
	}
}

func TestARouteThatSettlesNothingWhileMessagesWaitIsStuck(t *testing.T) {
	now := time.Unix(1e9, 0)
	b := newBoard(func() time.Time { return now }, nil)
	b.add("r", 1)
	b.set("r", 0, Running, "")
	b.moved("r", inbox.Mark{Next: 7}, 9)
	now = now.Add(patience + time.Second)
	if s := b.standings()[0]; s.State != Stuck || s.Healthy() {
		t.Errorf("standing: %+v", s)
	}
	b.moved("r", inbox.Mark{Next: 9}, 9)
	if s := b.standings()[0]; s.State != Running {
		t.Errorf("nothing waits: %+v", s)
	}
}
