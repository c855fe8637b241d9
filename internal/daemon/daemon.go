package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
)

// Config says what to run.
type Config struct {
	File   *config.File
	Routes []string // of the file; none: all

	UntilCaughtUp bool // end when all that was there at the start is settled
	AcceptChange  bool // a changed route goes on under its old name
	Migrate       bool // older tables are upgraded

	Build  Build
	Logger *slog.Logger
}

// Result is what a run did.
type Result struct {
	Tallies []Tally
	Halted  []Standing // at the end
	Paused  []string   // that have messages left, where the run was to end when all is settled
	// Reburied are dead letters that were marked when it began, and are buried again.
	Reburied int64
	// Aborted: the time to stop in was over, and what was in flight was rolled
	// back.
	Aborted bool
}

// Buried counts the dead letters of this run.
func (r Result) Buried() int64 {
	var n int64
	for _, t := range r.Tallies {
		n += t.Accounts.Outcome[inbox.Dead].Count
	}
	return n
}

// StartError says that something is not there that every route needs.
type StartError struct {
	What string // "database", "broker", "server", "tables"
	Err  error
	Hint string
}

func (e *StartError) Error() string { return e.What + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Run runs routes until soft ends (what is in flight is finished), hard ends
// (it is rolled back), every route has halted, or, if asked for, all that was
// there at the start is settled. An error means that nothing was begun.
func Run(hard, soft context.Context, cfg Config) (Result, error) {
	routes, err := chosen(cfg.File, cfg.Routes)
	if err != nil {
		return Result{}, err
	}
	p, err := open(soft, cfg.File, cfg.Logger)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	if err := p.tables(soft, cfg.Migrate); err != nil {
		return Result{}, err
	}

	soft, drain := context.WithCancel(soft)
	defer drain()
	hard, abort := context.WithCancel(hard)
	defer abort()

	d := &daemon{cfg: cfg, routes: routes, parts: p, metrics: newMetrics(cfg.Build), log: cfg.Logger}
	d.board = newBoard(time.Now, func(s Standing) {
		d.tell(s)
		if d.allHalted() {
			drain()
		}
	})
	for _, r := range routes {
		d.board.add(r.Name, r.From.Concurrency)
	}
	var marked marks
	if cfg.UntilCaughtUp {
		if marked, err = d.marked(soft, routes); err != nil {
			return Result{}, err
		}
	}
	serve, err := d.server()
	if err != nil {
		return Result{}, err
	}

	var late atomic.Bool // the grace time was over
	defer context.AfterFunc(soft, func() {
		select {
		case <-hard.Done():
		case <-time.After(cfg.File.ShutdownGrace):
			late.Store(true)
			abort()
		}
	})()

	var helpers, all sync.WaitGroup
	aside, stop := context.WithCancel(context.WithoutCancel(hard))
	for _, r := range routes {
		d.warnOfWindow(soft, r)
		all.Go(func() { d.route(r).run(hard, soft) })
	}
	if serve != nil {
		helpers.Go(func() {
			if err := serve.run(aside); err != nil {
				d.log.Error("the server for health and metrics ended", "error", err)
			}
		})
	}
	helpers.Go(func() { d.gauges(aside, routes) })
	var paused []string
	if cfg.UntilCaughtUp {
		helpers.Go(func() {
			var ok bool
			if paused, ok = d.caughtUp(soft, routes, marked); ok {
				drain()
			}
		})
	}
	all.Wait()
	drain()
	stop()
	helpers.Wait()

	result := Result{Tallies: d.board.tallies(), Paused: paused, Aborted: late.Load()}
	result.Reburied = d.buriedAgain(context.WithoutCancel(soft), marked)
	for i := range result.Tallies {
		result.Tallies[i].UnknownFields = d.tables.unknownFields(result.Tallies[i].Route)
	}
	for _, s := range d.board.standings() {
		if s.State == Halted {
			result.Halted = append(result.Halted, s)
		}
	}
	return result, nil
}

// daemon is what the actors of a run share.
type daemon struct {
	cfg     Config
	routes  []config.Route
	parts   *parts
	board   *board
	metrics *metrics
	tables  tables
	log     *slog.Logger
}

// chosen are the routes to run.
func chosen(f *config.File, names []string) ([]config.Route, error) {
	if len(names) == 0 {
		return f.Routes, nil
	}
	var routes []config.Route
	for _, n := range names {
		r, err := Route(f, n)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// UnknownRouteError names a route that the file doesn't have.
type UnknownRouteError struct {
	Name string
	File string
	Have []string
}

func (e *UnknownRouteError) Error() string { return fmt.Sprintf("%s has no route %q", e.File, e.Name) }

// Route looks a route up by its name.
func Route(f *config.File, name string) (config.Route, error) {
	var have []string
	for _, r := range f.Routes {
		if r.Name == name {
			return r, nil
		}
		have = append(have, r.Name)
	}
	return config.Route{}, &UnknownRouteError{Name: name, File: f.Name, Have: have}
}

// tell passes a state on. The lanes log their own changes; that a route stands
// halted is said here, as it may never have had a lane.
func (d *daemon) tell(s Standing) {
	d.metrics.standing(s)
	if s.State == Halted {
		d.log.Error("route halted", "route", s.Route, "reason", s.Reason)
	}
}

func (d *daemon) allHalted() bool {
	for _, s := range d.board.standings() {
		if s.State != Halted {
			return false
		}
	}
	return true
}

// server listens as the file says; nil where it is off.
func (d *daemon) server() (*server, error) {
	cfg := d.cfg.File.Server
	if cfg.Listen == "" {
		return nil, nil
	}
	var token func() (string, error)
	if cfg.Token.IsSet() {
		token = cfg.Token.Reveal
		if _, err := token(); err != nil {
			return nil, &StartError{What: "server", Err: err, Hint: "server.token names the file"}
		}
	}
	s, err := listen(cfg.Listen, token, d.board.standings, d.metrics.handler())
	if err != nil {
		return nil, &StartError{What: "server", Err: err, Hint: `server.listen chooses another address, {listen: ""} turns it off`}
	}
	return s, nil
}
