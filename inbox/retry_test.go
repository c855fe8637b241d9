package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func TestOutageDoesNotShortenARetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 0, 1)
	var calls []time.Time
	outage := false
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Observe.State = func(s inbox.State, _ string) { outage = outage || s == inbox.StateOutage }
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if calls = append(calls, time.Now()); len(calls) == 1 {
				time.AfterFunc(50*time.Millisecond, func() { w.db.SetDown(true) })
				time.AfterFunc(150*time.Millisecond, func() { w.db.SetDown(false) })
				return semel.RetryAfter(500*time.Millisecond, errors.New("later"))
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(1)
	p.stop(t)
	if !outage {
		t.Error("the outage never fired")
	}
	if len(calls) != 2 || calls[1].Sub(calls[0]) < 500*time.Millisecond {
		t.Errorf("%d calls, the second after %s; asked for 500ms", len(calls), calls[1].Sub(calls[0]))
	}
}

func TestOutageThatTheHandlerMetSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 2)
	calls, reason := 0, ""
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.OnError.Attempts = 1
		c.Observe.State = func(s inbox.State, why string) {
			if s == inbox.StateOutage {
				reason = why
			}
		}
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if calls++; calls <= 3 {
				return semel.Outage(errors.New("the price list is down"))
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(2)
	p.stop(t)
	w.wantOnce(keys...)
	if ls := w.db.Letters(); len(ls) != 0 {
		t.Errorf("buried: %+v", ls)
	}
	if want := "handler: outage: the price list is down"; reason != want {
		t.Errorf("the state says %q, want %q", reason, want)
	}
}
