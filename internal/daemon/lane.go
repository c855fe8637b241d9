package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// route joins the parts of a route of the file.
func (d *daemon) route(r config.Route) *route {
	var rate *inbox.Rate // of all its lanes
	if l := r.Limit; !l.IsZero() {
		rate = inbox.NewRate(l.Messages, l.Per)
	}
	return &route{
		name: r.Name, lanes: r.From.Concurrency, board: d.board,
		make: func(ctx context.Context, n int) (lane, error) {
			l, err := d.lane(ctx, r, n, rate)
			if err != nil && ctx.Err() == nil {
				d.recordHalt(ctx, r, err)
			}
			return l, err
		},
		orders: func(ctx context.Context) (int64, error) {
			es, err := d.parts.memory.Events(ctx, postgres.EventFilter{Consumer: r.Consumer, Kinds: []string{"resumed"}, Limit: 1})
			if len(es) == 0 {
				return 0, err
			}
			return es[0].Number, nil
		},
	}
}

// recordHalt keeps why a route halted before it had a lane: those record their own.
func (d *daemon) recordHalt(ctx context.Context, r config.Route, err error) {
	kind := "start"
	var h *inbox.HaltError
	if errors.As(err, &h) {
		kind = h.Kind
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := d.parts.memory.RecordHalt(ctx, r.Consumer, kind, reason(err)); err != nil {
		d.log.Warn("the halt could not be recorded", "route", r.Name, "error", err)
	}
}

// lane makes one member of the route's group with its own connection.
func (d *daemon) lane(ctx context.Context, r config.Route, n int, rate *inbox.Rate) (lane, error) {
	log := d.log.With("route", r.Name)
	table, err := d.prepare(ctx, r, n)
	if err != nil {
		return nil, err
	}
	if !d.cfg.AcceptChange {
		if err := d.parts.renamed(ctx, r); err != nil {
			return nil, err
		}
	}
	ids := idRule(r)
	if table.OwnIDs() {
		ids = semel.IDRule{Name: table.IDName(), Sent: table.SentID}
	}
	source, err := kafka.NewSource(d.parts.source(r, n, d.share(), log))
	if err != nil {
		return nil, err
	}
	one, _ := table.(*postgres.Table)
	many, _ := table.(*postgres.Tables)
	store := postgres.NewInboxStore(d.parts.pool, postgres.InboxConfig{
		Schema: d.parts.file.Database.Schema, SynchronousCommit: durability(d.parts.file.Database), Table: one, Tables: many, Rings: d.parts.rings, Logger: log,
	})
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer:     r.Consumer,
		Source:       source,
		Store:        store,
		ID:           ids,
		OwnIDs:       table.OwnIDs(),
		Effect:       table,
		Memory:       memory(r, table),
		Window:       r.Inbox.Window,
		AtMostOnce:   r.Guarantee == config.AtMostOnce,
		Target:       targetName(r),
		AcceptChange: d.cfg.AcceptChange,
		OnMissingID:  onMissing[r.OnMissingID],
		OnCollision:  onCollision[r.OnCollision],
		OnGap:        onGap[r.OnGap],
		OnError:      onError(r.OnError),
		Batch:        inbox.BatchLimits{Messages: r.Batch.Messages, Bytes: int(r.Batch.Bytes), Time: r.Batch.Time, Linger: r.Batch.Linger},
		Rate:         rate,
		Logger:       log,
		Observe:      d.observe(r.Name, n),
	})
	if err != nil {
		source.Close()
		store.Close()
		return nil, err
	}
	return in, nil
}

// prepare looks at the table and the topics. What is wrong with them is an
// error; an outage is waited out.
func (d *daemon) prepare(ctx context.Context, r config.Route, n int) (writer, error) {
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		table, err := d.parts.fitted(ctx, r)
		if err == nil && len(r.From.Topics) > 0 {
			_, err = d.parts.admin.Topics(ctx, r.From.Topics...)
		}
		var unknown *inbox.UnknownTopicError
		switch {
		case err == nil:
			d.tables.add(r.Name, table)
			return table, nil
		case tableErrors(err) != nil:
			return nil, err
		case errors.As(err, &unknown):
			return nil, &inbox.HaltError{Kind: "unknown-topic", Why: unknown.Error(), Hint: "make it: semel send --create does", Err: err}
		}
		d.board.set(r.Name, n, Outage, Plain(err).Error())
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// share is what a lane's source may hold of the memory. As much again are the
// rows made of it, what their messages cost beside their bytes, and what the
// collector has not yet taken back: [CollectFor] keeps the sum inside.
func (d *daemon) share() int {
	lanes := 0
	for _, r := range d.routes {
		lanes += r.From.Concurrency
	}
	return max(1<<20, int(d.parts.file.Memory)/4/max(1, lanes))
}

// CollectFor makes the collector work harder near the memory that a file gives,
// less what isn't the collector's. GOMEMLIMIT, if it is set, stands.
func CollectFor(memory int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory * 3 / 4)
	}
}

// source is a member of the route's group; n is its lane.
func (p *parts) source(r config.Route, n, bytes int, log *slog.Logger) kafka.SourceConfig {
	cfg := kafka.SourceConfig{
		Brokers: p.file.Kafka.Brokers, Topics: r.From.Topics, Matching: r.From.Matching, Group: r.From.Group, Start: start(r.From.Start),
		ServerSide: r.From.GroupProtocol == config.GroupConsumer, SessionTimeout: r.From.SessionTimeout, MaxBytes: bytes, Options: p.kafka, Logger: log,
	}
	if id := r.From.InstanceID; id != "" {
		cfg.Instance = fmt.Sprintf("%s-%d", id, n) // lanes are members of their own
	}
	return cfg
}

func start(s config.Start) kafka.Start {
	switch s.Mode {
	case config.StartEarliest:
		return kafka.StartEarliest()
	case config.StartLatest:
		return kafka.StartLatest()
	case config.StartTime:
		return kafka.StartAt(s.Time)
	}
	return kafka.StartGroup()
}

// onError gives the machine's words for the file's: 0 is no bound there, and the
// default here.
func onError(e config.OnError) inbox.ErrorPolicy {
	p := inbox.ErrorPolicy{
		Halt: e.Then == config.ThenHalt, Attempts: e.Attempts, Backoff: e.Initial, MaxBackoff: e.Max,
		InARow: e.InARow, Share: e.Share,
	}
	if p.InARow == 0 {
		p.InARow = -1
	}
	if p.Share == 0 {
		p.Share = -1
	}
	return p
}

// durability leaves the server's setting alone unless the file asks for less:
// it may ask for more than we know.
func durability(db config.Database) *bool {
	if db.SynchronousCommit {
		return nil
	}
	off := false
	return &off
}

// observe tells metrics and board what a lane does.
func (d *daemon) observe(route string, n int) inbox.Observer {
	o := d.metrics.observe(route, time.Now)
	count, lose, move, drop := o.Settled, o.Lost, o.Moved, o.Dropped
	o.Settled = func(p semel.Partition, a inbox.Accounts) {
		count(p, a)
		a.Lost = 0 // at most once, and under way
		d.board.settled(route, a)
	}
	o.Lost = func(p semel.Partition, n int64) {
		lose(p, n)
		d.board.lost(route, n)
	}
	o.Moved = func(m inbox.Mark, end int64, newest time.Time) {
		move(m, end, newest)
		d.board.moved(route, m, end)
	}
	o.Dropped = func(p semel.Partition) {
		drop(p)
		d.board.dropped(route, p)
	}
	o.State = func(s inbox.State, reason string) {
		switch s {
		case inbox.StateStarting, inbox.StateRunning, inbox.StatePaused, inbox.StateOutage:
			d.board.set(route, n, State(s), reason)
		}
		// How a lane ended is the route's to say, when all have.
	}
	return o
}
