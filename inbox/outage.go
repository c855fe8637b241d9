package inbox

import (
	"context"
	"errors"
	"time"
)

// outage is a time without database or broker.
type outage struct {
	what  string // broker, database, handler or format
	since time.Time
	tries int
	left  bool // the group, so that others can take over
}

// weather handles what ended a turn: nil means that the loop goes on.
func (l *lane[T]) weather(ctx context.Context, err error) error {
	var fenced *FencedError
	var broker *brokerError
	var format *decodeOutage
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case halted(err):
		return err
	case errors.As(err, &fenced):
		l.fenced(fenced)
		return nil
	case errors.As(err, &broker):
		tell2(l.cfg.Observe.Error, ClassOutage, err)
		return l.wait(ctx, err, "broker")
	case errors.As(err, &format): // its partitions are put back already
		tell2(l.cfg.Observe.Error, ClassOutage, err)
		return l.wait(ctx, err, "format")
	}
	what := "database"
	if f := asFailure(err); f != nil { // an outage met inside a transaction
		what = f.source
		if l.strikes++; l.strikes%suspectClaims == 0 && f.tx != nil {
			// The database is reached, and lost again with this batch: its doing?
			for _, p := range l.parts {
				l.beCareful(p)
			}
		}
	} else {
		class := l.cfg.Store.Class(err)
		tell2(l.cfg.Observe.Error, class, err)
		if class == ClassRoute || class == ClassPoison {
			return &HaltError{Kind: "store", Why: err.Error(), Err: err}
		}
	}
	for _, p := range l.parts {
		l.unprove(p)
	}
	return l.wait(ctx, err, what)
}

// wait sits out an outage, with a place in the group while that helps.
func (l *lane[T]) wait(ctx context.Context, err error, what string) error {
	now := time.Now()
	if l.outage.since.IsZero() {
		l.outage.since, l.outage.what = now, what
		l.log.Warn(what+" can't be used: waiting", "error", err)
	}
	l.outage.tries++
	l.setState(StateOutage, what+": "+err.Error())
	pause := backoff(50*time.Millisecond, 2*time.Second, max(l.outage.tries, l.strikes))
	for _, p := range l.parts {
		if until := now.Add(pause); p.due.at.Before(until) { // it may wait longer, for a retry
			p.due.at = until
		}
	}
	if what == "database" && !l.outage.left && now.Sub(l.outage.since) > l.cfg.CutOff {
		l.log.Warn("no database for too long: leaving the group, so that a member that has one can take over")
		// Also without an answer: the source has given all partitions up. (Else they
		// are claimed again when the database is back, from whoever has them then.)
		if err := l.cfg.Source.Leave(ctx); err != nil {
			l.log.Warn("the group could not be left", "error", err)
		}
		l.outage.left = true
		for p := range l.parts {
			tell(l.cfg.Observe.Dropped, p)
		}
		clear(l.parts)
	}
	if len(l.parts) > 0 && what != "broker" {
		return nil // Poll waits, and lets rebalances through
	}
	select {
	case <-ctx.Done():
	case <-l.draining:
	case <-time.After(pause):
	}
	return nil
}

// comeBack asks for the database from outside the group.
func (l *lane[T]) comeBack(ctx context.Context) error {
	ctx, cancel := l.soon(ctx)
	defer cancel()
	if _, err := l.cfg.Store.Look(ctx, nil); err != nil {
		return err
	}
	l.outage = outage{}
	return nil
}

// ofBatch says that the outage is over when a batch commits, not before.
func (o outage) ofBatch() bool { return o.what == "handler" || o.what == "format" }

// over ends an outage of what.
func (l *lane[T]) over(what string) {
	if l.outage.what == what {
		l.outage = outage{}
	}
}

// soon bounds a call of the store. A host that is gone says nothing, and a network
// that drops what is sent to it lets a connection wait for a quarter of an hour,
// while the group's heartbeats go on and nobody else gets the partitions. Calls
// that only the server's work can make long have half the time that an outage may
// last.
func (l *lane[T]) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.cfg.CutOff/2)
}

// due is a time to try again; the zero value is now.
type due struct {
	at    time.Time
	tries int
}

func (d *due) after(base, most time.Duration) {
	d.tries++
	d.at = time.Now().Add(backoff(base, most, d.tries))
}

// backoff is base doubled with each try, up to most.
func backoff(base, most time.Duration, tries int) time.Duration {
	d := base
	for i := 1; i < tries && d < most; i++ {
		d *= 2
	}
	return min(d, most)
}

// brokerError is an error of the source.
type brokerError struct{ err error }

func (e *brokerError) Error() string { return e.err.Error() }
func (e *brokerError) Unwrap() error { return e.err }

func isBroker(err error) bool {
	var b *brokerError
	return errors.As(err, &b)
}
