package daemon

import (
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// State is what a route is doing.
type State string

// The states, from the one that says most about a route of several lanes.
const (
	Halted   State = "halted"   // a person has to decide something
	Outage   State = "outage"   // waiting for database or broker
	Stuck    State = "stuck"    // messages wait, and none was settled for a while
	Starting State = "starting" // nothing proved yet
	Paused   State = "paused"   // by an operator
	Running  State = "running"
	Stopped  State = "stopped" // cleanly
)

var states = []State{Halted, Outage, Stuck, Starting, Paused, Running, Stopped}

// Standing is a route's state with its reason, for health and logs.
type Standing struct {
	Route  string    `json:"route"`
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// Healthy says that nobody has to be woken.
func (s Standing) Healthy() bool { return s.State != Halted && s.State != Outage && s.State != Stuck }

// Ready says that the route can work, or is not meant to.
func (s Standing) Ready() bool {
	return s.State == Running || s.State == Paused || s.State == Stopped || s.State == Stuck
}

// patience is how long messages may wait, with none settled, before a route that
// says it runs is called stuck.
const patience = 2 * time.Minute

// board is where the lanes' states come together. It is read by health, status
// and the end of the process, and written by the lanes.
type board struct {
	now     func() time.Time
	changed func(Standing) // called outside the lock, once per change

	mu     sync.Mutex // guards what follows
	routes []*routeBoard
}

type routeBoard struct {
	name     string
	lanes    []laneState
	standing Standing
	tally    inbox.Accounts // of this run
	places   map[semel.Partition]place
	commit   time.Time // the last one, or the start
}

type laneState struct {
	state  State
	reason string
}

// place is a partition of ours as last seen.
type place struct{ next, end int64 }

func newBoard(now func() time.Time, changed func(Standing)) *board {
	return &board{now: now, changed: changed}
}

// add puts a route on the board.
func (b *board) add(route string, lanes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &routeBoard{name: route, lanes: make([]laneState, lanes), places: map[semel.Partition]place{}, commit: b.now()}
	for i := range r.lanes {
		r.lanes[i].state = Starting
	}
	r.standing = Standing{Route: route, State: Starting, Since: b.now()}
	b.routes = append(b.routes, r)
}

func (b *board) route(name string) *routeBoard {
	for _, r := range b.routes {
		if r.name == name {
			return r
		}
	}
	panic("daemon: no route " + name)
}

// set says what a lane does.
func (b *board) set(route string, lane int, s State, reason string) {
	b.change(route, func(r *routeBoard) { r.lanes[lane] = laneState{s, reason} })
}

// setAll says what all lanes of a route do.
func (b *board) setAll(route string, s State, reason string) {
	b.change(route, func(r *routeBoard) {
		for i := range r.lanes {
			r.lanes[i] = laneState{s, reason}
		}
		if s != Running {
			clear(r.places)
		}
	})
}

func (b *board) change(route string, f func(*routeBoard)) {
	b.mu.Lock()
	r := b.route(route)
	f(r)
	now := worst(r.lanes)
	was := r.standing
	if was.State != now.state || was.Reason != now.reason {
		r.standing = Standing{Route: route, State: now.state, Reason: now.reason, Since: b.now()}
		if now.state == Running {
			r.commit = b.now()
		}
	}
	is := r.standing
	b.mu.Unlock()
	if is != was && b.changed != nil {
		b.changed(is)
	}
}

// worst is the lane whose state says most.
func worst(lanes []laneState) laneState {
	for _, s := range states {
		for _, l := range lanes {
			if l.state == s {
				return l
			}
		}
	}
	return laneState{state: Stopped}
}

// settled adds to what this run has done.
func (b *board) settled(route string, a inbox.Accounts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.route(route)
	r.tally = r.tally.Plus(a)
	r.commit = b.now()
}

// lost adds to what this run has found lost.
func (b *board) lost(route string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.route(route).tally.Lost += n
}

// moved notes where a partition is.
func (b *board) moved(route string, m inbox.Mark, end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.route(route).places[m.Partition] = place{m.Next, end}
}

// dropped forgets a partition that is no longer ours.
func (b *board) dropped(route string, p semel.Partition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.route(route).places, p)
}

// standings lists all routes, in the order of the file.
func (b *board) standings() []Standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Standing
	for _, r := range b.routes {
		s := r.standing
		if s.State == Running && b.now().Sub(r.commit) > patience && r.waits() {
			s.State, s.Since = Stuck, r.commit
			s.Reason = "messages wait, and none was settled since " + r.commit.UTC().Format(time.RFC3339)
		}
		all = append(all, s)
	}
	return all
}

func (r *routeBoard) waits() bool {
	for _, p := range r.places {
		if p.end > p.next {
			return true
		}
	}
	return false
}

// tallies are the accounts of this run, by route.
func (b *board) tallies() []Tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Tally
	for _, r := range b.routes {
		all = append(all, Tally{Route: r.name, Accounts: r.tally})
	}
	return all
}

// Tally is what a route did in this run.
type Tally struct {
	Route    string
	Accounts inbox.Accounts
	// UnknownFields counts fields of messages for which the table has no column.
	UnknownFields int64
}
