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

type mute struct {
	inbox.Store[*inboxtest.Tx]
	on *chan struct{}
}

func (s mute) silent() bool {
	select {
	case <-*s.on:
		return true
	default:
		return false
	}
}

func (s mute) Look(ctx context.Context, ps []semel.Partition) (inbox.Look, error) {
	if s.silent() {
		<-ctx.Done()
		return inbox.Look{}, ctx.Err()
	}
	return s.Store.Look(ctx, ps)
}

func (s mute) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.silent() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Begin(ctx, spans)
}

func (s mute) Class(err error) inbox.Class {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return inbox.ClassOutage
	}
	return s.Store.Class(err)
}

func TestServerThatFallsSilentCostsTheMembership(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 3)
	on := make(chan struct{})
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store, c.CutOff = mute{c.Store, &on}, 50*time.Millisecond
	})
	w.settledTo(3)
	w.start()
	close(on)
	keys = append(keys, w.send(0, 3, 6)...)
	w.settledTo(6)
	w.wantOnce(keys...)
}
