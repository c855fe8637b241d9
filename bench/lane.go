package main

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// sourceBytes is what sources hold in semel run with its default memory.
const sourceBytes = 64 << 20

// route is how a variant writes.
type route struct {
	table postgres.TableConfig
	id    semel.IDRule
}

var (
	byPosition = route{table: postgres.TableConfig{Table: "orders", Write: postgres.WriteAppend}}
	fused      = route{table: postgres.TableConfig{Table: "orders", Write: postgres.WriteInsert, ID: []string{"value.id"}}}
	separate   = route{
		table: postgres.TableConfig{Table: "orders", Write: postgres.WriteAppend, Identified: true},
		id:    semel.HeaderID("message-id"),
	}
	upsert = route{table: postgres.TableConfig{Table: "states", Write: postgres.WriteUpsert, Version: "value.version"}}
)

// clock takes the time and the CPU between the first message and the last commit.
type clock struct {
	env   *env
	total int64
	once  sync.Once
	done  chan struct{}
	count atomic.Int64
	run   run
	began time.Time
	used  usage
}

// run is what one timed run took.
type run struct {
	messages int
	took     time.Duration
	used     usage
}

func (e *env) clock(total int) *clock {
	return &clock{env: e, total: int64(total), done: make(chan struct{})}
}

func (c *clock) start() {
	c.once.Do(func() { c.used, c.began = c.env.usage(), time.Now() })
}

func (c *clock) add(n int64) {
	if before := c.count.Add(n) - n; before < c.total && before+n >= c.total {
		took := time.Since(c.began)
		c.run = run{int(c.total), took, c.env.usage().minus(c.used)}
		close(c.done)
	}
}

// settle runs a lane on each source until the clock has stopped.
func (e *env) settle(ctx context.Context, r route, consumer string, c *clock, effect func(inbox.Effect[pgx.Tx]) inbox.Effect[pgx.Tx], sources ...inbox.Source) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, source := range sources {
		in, err := e.lane(ctx, r, consumer, c, effect, source)
		if err != nil {
			return err
		}
		g.Go(func() error { return in.Run(ctx) })
		g.Go(func() error {
			select {
			case <-c.done:
			case <-ctx.Done():
			}
			in.Drain()
			return nil
		})
	}
	return g.Wait()
}

func (e *env) lane(ctx context.Context, r route, consumer string, c *clock, effect func(inbox.Effect[pgx.Tx]) inbox.Effect[pgx.Tx], source inbox.Source) (*inbox.Inbox[pgx.Tx], error) {
	table, err := postgres.NewTable(ctx, e.pool, r.table)
	if err != nil {
		return nil, err
	}
	ids := r.id
	if table.OwnIDs() {
		ids = semel.IDRule{Name: table.IDName(), Sent: table.SentID}
	}
	var writes inbox.Effect[pgx.Tx] = table
	if effect != nil {
		writes = effect(writes)
	}
	return inbox.New(inbox.Config[pgx.Tx]{
		Consumer: consumer, Source: source, Store: postgres.NewInboxStore(e.pool, postgres.InboxConfig{Table: table, Rings: e.rings}),
		ID: ids, OwnIDs: table.OwnIDs(), Memory: table.Memory(), Effect: writes,
		Batch: inbox.BatchLimits{Messages: batchSize},
		Observe: inbox.Observer{
			Settled: func(_ semel.Partition, a inbox.Accounts) { c.add(a.Settled.Count) },
			Error:   func(_ inbox.Class, err error) { say("an error in a lane: %v", err) },
			State: func(s inbox.State, reason string) {
				if s == inbox.StateHalted || s == inbox.StateOutage {
					say("a lane is in %s: %s", s, reason)
				}
			},
		},
	})
}

// fromMemory settles logs; the clock runs from the first delivery.
func (e *env) fromMemory(ctx context.Context, r route, consumer, topic string, logs [][]semel.Message, from int, effect func(inbox.Effect[pgx.Tx]) inbox.Effect[pgx.Tx]) (run, error) {
	total := -from
	for _, l := range logs {
		total += len(l)
	}
	c := e.clock(total)
	err := e.settle(ctx, r, consumer, c, effect, newMemSource(topic, logs, c.start))
	return c.run, err
}

// decoded is an effect that finds its rows made: what remains is the path to the
// store.
type decoded struct {
	inbox.Effect[pgx.Tx]
	items [][]inbox.Item // by partition and offset
}

func predecode(logs [][]semel.Message) func(inbox.Effect[pgx.Tx]) inbox.Effect[pgx.Tx] {
	return func(e inbox.Effect[pgx.Tx]) inbox.Effect[pgx.Tx] {
		d := &decoded{Effect: e, items: make([][]inbox.Item, len(logs))}
		for p, log := range logs {
			d.items[p] = make([]inbox.Item, len(log))
			for i, m := range log {
				d.items[p][i].Message = m
			}
			e.Decode(d.items[p])
		}
		return d
	}
}

func (d *decoded) Decode(items []inbox.Item) {
	for i := range items {
		it := &items[i]
		made := &d.items[it.Partition][it.Offset]
		it.ID, it.Digest, it.Load, it.Err = made.ID, made.Digest, made.Load, made.Err
	}
}

// fromKafka settles a topic with so many members of one group; the clock runs
// from the moment when every member has its share and stands where it begins.
func (e *env) fromKafka(ctx context.Context, r route, topic string, total, members int) (run, error) {
	c := e.clock(total)
	consumer := e.name("bench")
	g := &gate{members: members, opened: make(chan struct{}), open: c.start, ready: map[*gated]bool{}}
	var sources []inbox.Source
	for range members {
		s, err := kafka.NewSource(kafka.SourceConfig{Brokers: e.brokers, Topics: []string{topic}, Group: consumer, Start: kafka.StartEarliest(), MaxBytes: sourceBytes / members})
		if err != nil {
			return run{}, err
		}
		sources = append(sources, &gated{Source: s, gate: g, has: map[semel.Partition]bool{}})
	}
	err := e.settle(ctx, r, consumer, c, nil, sources...)
	return c.run, err
}

// gate holds members back until each is ready.
type gate struct {
	members int
	open    func()
	opened  chan struct{}
	mu      sync.Mutex
	ready   map[*gated]bool
}

func (g *gate) set(s *gated, ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready[s] = ready
	n := 0
	for _, r := range g.ready {
		if r {
			n++
		}
	}
	if n == g.members && g.open != nil {
		g.open()
		g.open = nil
		close(g.opened)
	}
}

// gated is a source that gives no messages before the gate opens.
type gated struct {
	inbox.Source
	gate *gate
	has  map[semel.Partition]bool // assigned; true: sought
}

func (s *gated) Poll(ctx context.Context, max int) (inbox.Delivery, error) {
	for {
		select {
		case <-s.gate.opened:
			return s.Source.Poll(ctx, max)
		default:
		}
		closed, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-s.gate.opened:
				cancel()
			case <-closed.Done():
			}
		}()
		d, err := s.Source.Poll(closed, 0)
		cancel()
		for _, p := range d.Lost {
			delete(s.has, p)
		}
		for _, p := range d.Gained {
			s.has[p] = false
		}
		s.tell()
		if err != nil || ctx.Err() != nil || len(d.Gained)+len(d.Lost)+len(d.Doubted) > 0 {
			return d, err
		}
	}
}

func (s *gated) Seek(ctx context.Context, to []inbox.Mark) error {
	err := s.Source.Seek(ctx, to)
	for _, m := range to {
		s.has[m.Partition] = true
	}
	s.tell()
	return err
}

func (s *gated) tell() {
	n := 0
	for _, sought := range s.has {
		if sought {
			n++
		}
	}
	s.gate.set(s, n == len(s.has) && n == partitions/s.gate.members)
}

// copyRaw is what everything is compared with: rows that are ready to be sent, a
// transaction a batch, nothing remembered.
func (e *env) copyRaw(ctx context.Context, s *stream, batches [][]byte) (run, error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return run{}, err
	}
	defer conn.Release()
	c := e.clock(s.rows)
	c.start()
	for _, b := range batches {
		tag, err := conn.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(b), "COPY orders FROM STDIN (FORMAT binary)")
		if err != nil {
			return run{}, err
		}
		c.add(tag.RowsAffected())
	}
	select {
	case <-c.done:
		return c.run, nil
	default:
		return run{}, errors.New("COPY took fewer rows than were sent")
	}
}

// copyValues is the same from Go values, by pgx's own encoders.
func (e *env) copyValues(ctx context.Context, s *stream) (run, error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return run{}, err
	}
	defer conn.Release()
	c := e.clock(s.rows)
	c.start()
	for from := 0; from < len(s.orders); from += batchSize {
		batch := s.orders[from:min(from+batchSize, len(s.orders))]
		n, err := conn.Conn().CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id", "account", "amount", "at", "payload"},
			pgx.CopyFromSlice(len(batch), func(i int) ([]any, error) {
				o := &batch[i]
				return []any{[16]byte(o.id), o.account, o.amount, o.at, o.payload}, nil
			}))
		if err != nil {
			return run{}, err
		}
		c.add(n)
	}
	return c.run, nil
}
