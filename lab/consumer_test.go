package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// spec says what a consumer under test is like. It crosses to another process as JSON.
type spec struct {
	Brokers  []string
	Via      string // a proxy in front of the broker
	Topic    string
	Consumer string // and group
	Database string
	Memory   inbox.Memory
	Latest   bool // begins with what comes after now
	Write    string
	Batch    int
	// AtMostOnce moves the watermark before the effect.
	AtMostOnce bool

	Session, Rebalance, Lock, Idle, BatchTime time.Duration

	// StopAt makes a process stand still when it comes by a step for the Nth time, until it is told to go on.
	StopAt step
	Nth    int
	// Deadly is the ID of a message that ends the process, without a word.
	Deadly string
	// Held is the ID of a message whose effect waits until another lane waits for it. Lanes have one partition each
	// then, and the one that gets Deadly gets it when that effect has begun.
	Held string
	// Refused are the IDs of messages that the handler refuses for good.
	Refused []string
	// Here redrives dead letters that are marked, and ends.
	Here bool
	// Lanes are members of the group in one process; 0 is one.
	Lanes int
	// Loud announces every step.
	Loud bool
}

// Ways to write effects.
const (
	bySQL   = "sql"   // two statements a batch
	byCopy  = "copy"  // COPY, and a statement
	byOne   = "one"   // two statements a message
	byTable = "table" // a route to the table: the effect is no handler, and the sum a trigger's
)

// step is a place in the loop where a process may stand still.
type step string

const (
	joined    step = "joined" // has partitions and has claimed none: no row names its member
	polled    step = "polled"
	claimed   step = "claimed"
	begun     step = "begun and fenced"
	admitted  step = "admitted"
	inEffect  step = "in the effect"
	effected  step = "effect made"
	committed step = "COMMIT answered"
	acked     step = "acked"

	// Of a redrive; the effect is as of a batch.
	redriving    step = "a mark is seen"
	letterLocked step = "the letter is locked"
	readmitted   step = "the letter's ID is admitted"
	closing      step = "the letter's effect is made"
	closed       step = "the letter's COMMIT answered"
)

var steps = []step{joined, polled, claimed, begun, admitted, inEffect, effected, committed, acked}

// payload is a message's value.
type payload struct {
	ID      string `json:"mid"`
	Account int64  `json:"acct"`
	Amount  int64  `json:"d"`
	Pad     string `json:"pad,omitempty"`
}

// consumer is the loop as a user would build it, with a wrapped source and store.
type consumer struct {
	*inbox.Inbox[pgx.Tx]
	pool *pgxpool.Pool

	settled, redelivered, fenced, wentBack, outages atomic.Int64
}

// build makes a consumer; pass is called at every step, and may be slow to return.
func (s spec) build(pass func(step), log *slog.Logger) (*consumer, error) {
	cfg, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	cfg.HealthCheckPeriod = time.Minute
	c := &consumer{}
	if c.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, err
	}
	source := kafka.SourceConfig{
		Brokers: s.Brokers, Topics: []string{s.Topic}, Group: s.Consumer, Start: kafka.StartEarliest(),
		SessionTimeout: s.Session, RebalanceTimeout: s.Rebalance, Logger: log,
	}
	if s.Latest {
		source.Start = kafka.StartLatest()
	}
	if s.Via != "" {
		source.Options = append(source.Options, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, s.Via)
		}))
	}
	src, err := kafka.NewSource(source)
	if err != nil {
		return nil, err
	}
	var table *postgres.Table
	if s.Write == byTable {
		if table, err = postgres.NewTable(context.Background(), c.pool, s.table()); err != nil {
			return nil, err
		}
	}
	store := postgres.NewInboxStore(c.pool, postgres.InboxConfig{LockTimeout: s.Lock, IdleTimeout: s.Idle, Table: table, Logger: log})
	var stepped inbox.Source = steppedSource{src, pass}
	if s.Held != "" {
		stepped = &apart{steppedSource: steppedSource{src, pass}, s: s}
	}
	ic := inbox.Config[pgx.Tx]{
		Consumer: s.Consumer, Source: stepped, Store: steppedStore{store, pass},
		Memory: s.Memory, AtMostOnce: s.AtMostOnce, Logger: log, Reread: 500 * time.Millisecond,
		Batch: inbox.BatchLimits{Messages: s.Batch, Time: s.BatchTime},
		Observe: inbox.Observer{
			Redelivered: func(_ semel.Partition, n int64) { c.redelivered.Add(n) },
			Fenced: func(m inbox.Mismatch) {
				c.fenced.Add(1)
				if m.Kind() == "went-back" {
					c.wentBack.Add(1)
				}
			},
			Batch: func(n int, _ time.Duration) { c.settled.Add(int64(n)) },
			Error: func(class inbox.Class, err error) {
				if class == inbox.ClassOutage {
					c.outages.Add(1)
				}
			},
		},
	}
	if s.Memory == inbox.MemoryInbox {
		ic.ID = semel.HeaderID("message-id")
	}
	switch s.Write {
	case byTable: // the writer knows the store's own transactions: nothing stands between
		ic.Store = store
		ic.Effect, ic.OwnIDs, ic.Memory = table, table.OwnIDs(), table.Memory()
		if table.OwnIDs() {
			ic.ID = semel.IDRule{Name: table.IDName(), Sent: table.SentID}
		}
	case byOne:
		ic.Handler = func(ctx context.Context, tx pgx.Tx, m semel.Message) error {
			return s.write(ctx, tx, []semel.Message{m}, insertRows, func() { pass(inEffect) })
		}
	case byCopy:
		ic.BatchHandler = func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
			return s.write(ctx, tx, ms, copyRows, func() { pass(inEffect) })
		}
	default:
		ic.BatchHandler = func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
			return s.write(ctx, tx, ms, insertRows, func() { pass(inEffect) })
		}
	}
	if c.Inbox, err = inbox.New(ic); err != nil {
		return nil, err
	}
	return c, nil
}

// table is what a route to the table of effects says of it.
func (s spec) table() postgres.TableConfig {
	cfg := postgres.TableConfig{Table: "effect", Write: postgres.WriteAppend, Identified: s.Memory == inbox.MemoryInbox}
	if s.Memory == inbox.MemoryTarget {
		cfg.Write, cfg.ID = postgres.WriteInsert, []string{"value.mid"}
	}
	return cfg
}

// write makes the effect: a row for each message, and a sum. middle is called between the two, or inside COPY.
func (s spec) write(ctx context.Context, tx pgx.Tx, ms []semel.Message, rows func(context.Context, pgx.Tx, []payload, func()) error, middle func()) error {
	ps := make([]payload, len(ms))
	sums := map[int64]int64{}
	for i, m := range ms {
		if err := json.Unmarshal(m.Value, &ps[i]); err != nil {
			return semel.FailedAt(i, semel.Permanent(err))
		}
		if ps[i].ID == s.Deadly && s.Deadly != "" {
			os.Exit(137)
		}
		if ps[i].ID == s.Held && s.Held != "" {
			fmt.Println(sayHeld)
			holding.begin()
			for !holding.otherWaits() {
				time.Sleep(time.Millisecond)
			}
			fmt.Println(sayWaits)
		}
		if slices.Contains(s.Refused, ps[i].ID) {
			return semel.FailedAt(i, semel.Permanent(errors.New("refused")))
		}
		sums[ps[i].Account] += ps[i].Amount
	}
	if err := rows(ctx, tx, ps, middle); err != nil {
		return err
	}
	for account, d := range sums {
		tag, err := tx.Exec(ctx, "UPDATE acct SET bal = bal + $2 WHERE id = $1", account, d)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("account %d isn't there", account)
		}
	}
	return nil
}

func insertRows(ctx context.Context, tx pgx.Tx, ps []payload, middle func()) error {
	ids, ds := make([]string, len(ps)), make([]int64, len(ps))
	for i, p := range ps {
		ids[i], ds[i] = p.ID, p.Amount
	}
	_, err := tx.Exec(ctx, "INSERT INTO effect SELECT * FROM unnest($1::text[], $2::bigint[])", ids, ds)
	middle()
	return err
}

func copyRows(ctx context.Context, tx pgx.Tx, ps []payload, middle func()) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"mid", "d"}, pgx.CopyFromSlice(len(ps), func(i int) ([]any, error) {
		if i == len(ps)/2 {
			middle() // the server is in COPY, and waits for us
		}
		return []any{ps[i].ID, ps[i].Amount}, nil
	}))
	return err
}

type steppedSource struct {
	*kafka.Source
	pass func(step)
}

func (s steppedSource) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	d, err := s.Source.Poll(ctx, n)
	if len(d.Gained) > 0 {
		s.pass(joined)
	}
	if len(d.Runs) > 0 {
		s.pass(polled)
	}
	return d, err
}

func (s steppedSource) More(n int) []inbox.Run {
	runs := s.Source.More(n)
	if len(runs) > 0 {
		s.pass(polled)
	}
	return runs
}

func (s steppedSource) Ack(acks []inbox.Ack) {
	s.Source.Ack(acks)
	s.pass(acked)
}

// apart gives lanes one partition each, and the deadly message when the effect that is held has begun.
type apart struct {
	steppedSource
	s    spec
	mine int
}

func (a *apart) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	if a.mine != 1 {
		n = 0
	}
	d, err := a.steppedSource.Poll(ctx, n)
	a.mine += len(d.Gained) - len(d.Lost)
	for _, r := range d.Runs {
		for _, m := range r.Messages {
			if strings.Contains(string(m.Value), fmt.Sprintf("%q", a.s.Deadly)) {
				<-holding.begun
			}
		}
	}
	return d, err
}

// Ack says that what was to be held is settled without an effect, where it is.
func (a *apart) Ack(acks []inbox.Ack) {
	a.steppedSource.Ack(acks)
	for _, ack := range acks {
		if ack.Next > 0 {
			holding.begin()
		}
	}
}

// holding is the effect that is held in this process.
var holding = hold{begun: make(chan struct{})}

type hold struct {
	once  sync.Once
	begun chan struct{}
}

func (h *hold) begin() { h.once.Do(func() { close(h.begun) }) }

// otherWaits says whether a lane stands before the gate that lets one that is careful work alone.
func (h *hold) otherWaits() bool {
	buf := make([]byte, 1<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, " [sync.") && strings.Contains(g, "sync.(*RWMutex).") && strings.Contains(g, "semel/inbox.(*lane[") {
			return true
		}
	}
	return false
}

type steppedStore struct {
	*postgres.InboxStore
	pass func(step)
}

func (s steppedStore) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	r, err := s.InboxStore.Claim(ctx, p, o, f)
	if err == nil {
		s.pass(claimed)
	}
	return r, err
}

func (s steppedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[pgx.Tx], error) {
	tx, err := s.InboxStore.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	s.pass(begun)
	return steppedTx{tx, s.pass}, nil
}

func (t steppedTx) CommitAndBegin(ctx context.Context, s []inbox.Settled, next []inbox.Span) (inbox.Tx[pgx.Tx], error) {
	t.pass(effected)
	then, err := t.Tx.(inbox.Chainer[pgx.Tx]).CommitAndBegin(ctx, s, next)
	if err == nil {
		t.pass(committed)
	}
	if then == nil {
		return nil, err
	}
	t.pass(begun)
	return steppedTx{then, t.pass}, err
}

func (s steppedStore) Redrive(ctx context.Context, ps []semel.Partition, after int64) (inbox.Redrive[pgx.Tx], error) {
	s.pass(redriving)
	tx, err := s.InboxStore.Redrive(ctx, ps, after)
	if tx == nil || err != nil {
		return nil, err
	}
	s.pass(letterLocked)
	return steppedRedrive{tx, s.pass}, nil
}

type steppedRedrive struct {
	inbox.Redrive[pgx.Tx]
	pass func(step)
}

func (r steppedRedrive) Readmit(ctx context.Context, a inbox.Admission) (inbox.Verdict, error) {
	v, err := r.Redrive.Readmit(ctx, a)
	if err == nil {
		r.pass(readmitted)
	}
	return v, err
}

func (r steppedRedrive) Close(ctx context.Context, how inbox.Outcome) error {
	r.pass(closing)
	err := r.Redrive.Close(ctx, how)
	if err == nil {
		r.pass(closed)
	}
	return err
}

type steppedTx struct {
	inbox.Tx[pgx.Tx]
	pass func(step)
}

func (t steppedTx) Admit(ctx context.Context, as []inbox.Admission) ([]inbox.Verdict, error) {
	v, err := t.Tx.Admit(ctx, as)
	if err == nil {
		t.pass(admitted)
	}
	return v, err
}

func (t steppedTx) Commit(ctx context.Context, s []inbox.Settled) error {
	t.pass(effected)
	err := t.Tx.Commit(ctx, s)
	if err == nil {
		t.pass(committed)
	}
	return err
}

// logger is silent unless somebody wants to hear.
func logger(who string) *slog.Logger {
	if os.Getenv("SEMEL_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("who", who)
}
