package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
)

// Viewer looks at routes from outside, whether a daemon runs or not.
type Viewer struct{ p *parts }

// NewViewer needs the database; the broker is asked where it can be reached.
func NewViewer(ctx context.Context, f *config.File, log *slog.Logger) (*Viewer, error) {
	p, err := prepare(f, log)
	if err != nil {
		return nil, err
	}
	if err := p.reachDatabase(ctx); err != nil {
		p.close()
		return nil, err
	}
	state, version, err := postgres.SchemaState(ctx, p.pool, f.Database.Schema)
	if err == nil && state != postgres.SchemaCurrent {
		e := &postgres.SchemaError{Schema: f.Database.Schema, State: state, Version: version}
		err = &StartError{What: "tables", Err: e, Hint: "semel migrate makes or upgrades them, semel run makes them in an empty database"}
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return &Viewer{p}, nil
}

// Memory is what is kept of consumers.
func (v *Viewer) Memory() *postgres.Status { return v.p.memory }

// Close ends the connections.
func (v *Viewer) Close() { v.p.close() }

// RouteStatus is a route as database and broker know it.
type RouteStatus struct {
	Route      string            `json:"route"`
	Consumer   string            `json:"consumer"`
	State      string            `json:"state"` // new, stopped, running (a living process owns a partition), paused, halted
	Reason     string            `json:"reason,omitempty"`
	Window     float64           `json:"window_seconds,omitempty"`
	IDs        int64             `json:"inbox_ids"`
	Buried     int64             `json:"dead_letters"`
	Partitions []PartitionStatus `json:"partitions"`
	// LockWaits says who holds its sessions up.
	LockWaits []postgres.LockWait `json:"lock_waits,omitempty"`
}

// PartitionStatus is a row and its log. What the broker didn't say is null.
type PartitionStatus struct {
	Topic      string           `json:"topic"`
	Partition  int32            `json:"partition"`
	Owner      string           `json:"owner,omitempty"`
	Watermark  int64            `json:"watermark"`
	End        *int64           `json:"end"` // the last stable offset
	Lag        *int64           `json:"lag"`
	LagSeconds *float64         `json:"lag_seconds"` // age of the first message that waits
	Settled    int64            `json:"settled"`
	Outcomes   map[string]int64 `json:"outcomes"`
	Lost       int64            `json:"lost"`
	Updated    time.Time        `json:"updated"`
}

// Status looks at the routes. broker says why the broker's part is missing.
func (v *Viewer) Status(ctx context.Context, routes []config.Route) (all []RouteStatus, broker error, err error) {
	broker = v.p.reachBroker(ctx)
	for _, r := range routes {
		s := RouteStatus{Route: r.Name, Consumer: r.Consumer, State: "new", Partitions: []PartitionStatus{}}
		c, ok, err := v.p.consumer(ctx, r.Consumer)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			why, err := v.halted(ctx, r.Consumer, nil)
			if err != nil {
				return nil, nil, err
			}
			if why != "" {
				s.State, s.Reason = "halted", why
			}
			all = append(all, s)
			continue
		}
		s.State, s.Reason, s.Window, s.IDs, s.Buried = "stopped", c.Reason, c.Window.Seconds(), max(0, c.Inbox), c.Dead
		rows, err := v.p.memory.Watermarks(ctx, r.Consumer)
		if err != nil {
			return nil, nil, err
		}
		var ends target
		if broker == nil {
			if ends, err = v.p.stable(ctx, topicsOf(rows)); err != nil {
				broker = err
			}
		}
		if s.LockWaits, err = v.p.memory.LockWaits(ctx, r.Consumer); err != nil {
			return nil, nil, err
		}
		waits := map[semel.Partition]int64{}
		for _, w := range rows {
			p := statusOf(w.Row)
			if end, ok := ends[w.Partition]; ok {
				lag := max(0, end-w.Next)
				p.End, p.Lag = &end, &lag
				if lag > 0 {
					waits[w.Partition] = w.Next
				}
			}
			if owned(w) {
				s.State = "running"
			}
			s.Partitions = append(s.Partitions, p)
		}
		v.ages(ctx, waits, s.Partitions)
		why, err := v.halted(ctx, r.Consumer, rows)
		switch {
		case err != nil:
			return nil, nil, err
		case c.Paused:
			s.State = "paused"
		case why != "" && s.State == "stopped":
			s.State, s.Reason = "halted", why
		}
		all = append(all, s)
	}
	return all, broker, nil
}

// Runs says whether somebody runs the route, as far as the database knows: a process
// that has not stopped cleanly, and that this host doesn't know to be dead.
func (v *Viewer) Runs(ctx context.Context, r config.Route) (bool, error) {
	rows, err := v.p.memory.Watermarks(ctx, r.Consumer)
	return slices.ContainsFunc(rows, owned), err
}

func owned(w postgres.WatermarkRow) bool { return w.Owner != nil && !w.Owner.Dead() }

// Halted is why the route stands halted; "": it doesn't.
func (v *Viewer) Halted(ctx context.Context, r config.Route) (why string, err error) {
	rows, err := v.p.memory.Watermarks(ctx, r.Consumer)
	if err != nil || slices.ContainsFunc(rows, owned) {
		return "", err
	}
	return v.halted(ctx, r.Consumer, rows)
}

// halted is why the consumer halted, if nobody told it to go on and nothing has moved
// since.
func (v *Viewer) halted(ctx context.Context, consumer string, rows []postgres.WatermarkRow) (why string, err error) {
	es, err := v.p.memory.Events(ctx, postgres.EventFilter{Consumer: consumer, Kinds: []string{"halt", "resumed"}, Limit: 1})
	if err != nil || len(es) == 0 || es[0].Kind != "halt" {
		return "", err
	}
	for _, w := range rows {
		if w.Updated.After(es[0].At) {
			return "", nil
		}
	}
	why, _ = es[0].Detail["why"].(string)
	return strings.TrimPrefix(why, "halted: "), nil
}

func topicsOf(rows []postgres.WatermarkRow) []string {
	var ts []string
	for _, r := range rows {
		if len(ts) == 0 || ts[len(ts)-1] != r.Topic {
			ts = append(ts, r.Topic)
		}
	}
	return ts
}

func statusOf(w inbox.Row) PartitionStatus {
	p := PartitionStatus{
		Topic: w.Topic, Partition: w.Number, Watermark: w.Next, Lost: w.Accounts.Lost,
		Settled: w.Accounts.Settled.Count, Updated: w.Updated, Outcomes: map[string]int64{},
	}
	if w.Ahead != nil && w.Owner != nil && !w.Owner.Dead() {
		p.Lost -= w.Ahead.Count // at most once, and under way
	}
	if w.Owner != nil {
		p.Owner = fmt.Sprintf("%s/%d", w.Owner.Name, w.Owner.PID)
		if w.Owner.Dead() {
			p.Owner += " (gone)"
		}
	}
	for i, o := range inbox.Outcomes {
		p.Outcomes[o.String()] = w.Accounts.Outcome[i].Count
	}
	return p
}

// agesWithin bounds how long status waits for the messages that wait.
const agesWithin = 2 * time.Second

// ages reads the first message that waits in each partition, for its time. What
// doesn't come in time stays unknown.
func (v *Viewer) ages(ctx context.Context, waits map[semel.Partition]int64, ps []PartitionStatus) {
	zero := 0.0
	for i := range ps {
		if ps[i].Lag != nil && *ps[i].Lag == 0 {
			ps[i].LagSeconds = &zero
		}
	}
	if len(waits) == 0 {
		return
	}
	at := map[string]map[int32]kgo.Offset{}
	for p, next := range waits {
		if at[p.Topic] == nil {
			at[p.Topic] = map[int32]kgo.Offset{}
		}
		at[p.Topic][p.Number] = kgo.NewOffset().At(next)
	}
	cl, err := v.p.reader(at)
	if err != nil {
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, agesWithin)
	defer cancel()
	for len(waits) > 0 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachPartition(func(f kgo.FetchTopicPartition) {
			p := semel.Partition{Topic: f.Topic, Number: f.Partition}
			if _, ok := waits[p]; !ok || len(f.Records) == 0 {
				return
			}
			delete(waits, p)
			age := max(0, time.Since(f.Records[0].Timestamp).Seconds())
			for i := range ps {
				if ps[i].Topic == p.Topic && ps[i].Partition == p.Number {
					ps[i].LagSeconds = &age
				}
			}
		})
	}
}

// reader reads committed messages from the given offsets on, in no group.
func (p *parts) reader(at map[string]map[int32]kgo.Offset, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append(more, p.kafka...),
		kgo.SeedBrokers(p.file.Kafka.Brokers...),
		kgo.ClientID("semel"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(at),
	)...)
}
