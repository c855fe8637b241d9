package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
)

// Tried is what a route would make of its next messages.
type Tried struct {
	Route string
	Items []inbox.Item
	Rows  []string // of the table, as JSON
}

// DryRun takes the next messages of each route, as many as n, makes their
// effects and rolls them back. It joins no group and claims nothing.
func DryRun(ctx context.Context, cfg Config, n int) ([]Tried, error) {
	routes, err := chosen(cfg.File, cfg.Routes)
	if err != nil {
		return nil, err
	}
	p, err := open(ctx, cfg.File, cfg.Logger)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var all []Tried
	for _, r := range routes {
		t, err := p.try(ctx, r, n)
		if err != nil {
			return nil, &StartError{What: "route " + r.Name, Err: err}
		}
		all = append(all, t)
	}
	return all, nil
}

func (p *parts) try(ctx context.Context, r config.Route, n int) (t Tried, err error) {
	t.Route = r.Name
	table, err := p.writer(ctx, r)
	if err != nil {
		return t, err
	}
	places, err := p.places(ctx, r)
	if err != nil {
		return t, err
	}
	if t.Items, err = p.peek(ctx, places, n); err != nil || len(t.Items) == 0 {
		return t, err
	}
	table.Decode(t.Items)
	var down *semel.OutageError
	for i := range t.Items {
		if errors.As(t.Items[i].Err, &down) {
			return t, fmt.Errorf("format: %w", down.Err)
		}
	}
	identify(r, t.Items)
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return t, err
	}
	defer conn.Release()
	t.Rows, err = table.Try(ctx, conn.Conn(), p.file.Database.Schema, r.Consumer, t.Items)
	return t, err
}

// identify gives items their IDs, where the table doesn't.
func identify(r config.Route, items []inbox.Item) {
	ids := idRule(r)
	if ids.ByPosition() {
		return
	}
	for i := range items {
		it := &items[i]
		id, err := ids.Of(&it.Message)
		switch it.ID = id; {
		case err == nil, it.Err != nil, r.OnMissingID == config.MissingIDPosition:
		default:
			it.Err, it.Class = err, inbox.DeadMissingID
		}
	}
}

// span is a stretch of a log that waits.
type span struct {
	semel.Partition
	from, to int64
}

// places are what waits in each partition: from the watermark on, or from where
// the consumer would begin.
func (p *parts) places(ctx context.Context, r config.Route) ([]span, error) {
	src, err := kafka.NewSource(p.source(r, 0, 1<<20, slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer src.Close()
	topics, err := p.topics(ctx, r)
	if err != nil || len(topics) == 0 {
		return nil, err
	}
	ws, err := src.Witness(ctx, topics)
	if err != nil {
		return nil, err
	}
	next := map[semel.Partition]int64{}
	if rows, err := p.memory.Watermarks(ctx, r.Consumer); err == nil { // else the tables aren't there yet
		for _, w := range rows {
			next[w.Partition] = w.Next
		}
	}
	var spans []span
	for _, w := range ws {
		at, known := next[w.Partition]
		switch {
		case known:
		case w.FollowGroup && w.Acked >= 0:
			at = w.Acked
		default:
			at = w.Begin
		}
		if at = max(at, w.Start); at < w.Stable {
			spans = append(spans, span{w.Partition, at, w.Stable})
		}
	}
	return spans, nil
}

// peekWithin bounds how long a dry run waits for its messages.
const peekWithin = 10 * time.Second

// peek reads at most n messages of the spans.
func (p *parts) peek(ctx context.Context, spans []span, n int) ([]inbox.Item, error) {
	if len(spans) == 0 {
		return nil, nil
	}
	at := map[string]map[int32]kgo.Offset{}
	ends := map[semel.Partition]int64{}
	for _, s := range spans {
		if at[s.Topic] == nil {
			at[s.Topic] = map[int32]kgo.Offset{}
		}
		at[s.Topic][s.Number] = kgo.NewOffset().At(s.from)
		ends[s.Partition] = s.to
	}
	cl, err := p.reader(at, kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, peekWithin)
	defer cancel()
	var items []inbox.Item
	for len(items) < n && len(ends) > 0 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			at := semel.Partition{Topic: r.Topic, Number: r.Partition}
			if !r.Attrs.IsControl() && r.Offset < ends[at] && len(items) < n {
				items = append(items, inbox.Item{Message: message(r)})
			}
			if end, ok := ends[at]; ok && r.Offset >= end-1 {
				delete(ends, at)
			}
		})
	}
	return items, nil
}

func message(r *kgo.Record) semel.Message {
	m := semel.Message{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: h.Key, Value: h.Value})
	}
	return m
}
