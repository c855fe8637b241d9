package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/lab"
	"github.com/semelhq/semel/postgres"
)

// limit is how long anything may take.
const limit = 4 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t testing.TB, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !fact(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// ofWorld is what sessions of a world's own are called.
const ofWorld = "world"

// world is a topic, a database, what was sent, and somebody who watches.
type world struct {
	t       testing.TB
	topic   string
	group   string
	parts   int32
	brokers []string
	url     string // of the database, past any proxy
	cl      *kgo.Client
	adm     *kadm.Client
	db      *pgxpool.Pool
	edits   []func(*spec)
	pad     string // in each message's value
	history lab.History
	watch   *watch

	mu   sync.Mutex // guards what is below
	next int
}

// newWorld uses the services that tests share.
func newWorld(t testing.TB, partitions int32, edit ...func(*spec)) *world {
	t.Helper()
	return makeWorld(t, testenv.Brokers(t), testenv.Topic(t, partitions), partitions, testenv.Postgres(t), edit...)
}

func makeWorld(t testing.TB, brokers []string, topic string, partitions int32, database string, edit ...func(*spec)) *world {
	t.Helper()
	w := &world{t: t, topic: topic, group: topic, parts: partitions, brokers: brokers, url: database, edits: edit}
	var err error
	w.cl, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.ProducerLinger(0))
	must(t, err)
	t.Cleanup(w.cl.Close)
	w.adm = kadm.NewClient(w.cl)
	cfg, err := pgxpool.ParseConfig(database)
	must(t, err)
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["application_name"] = ofWorld
	w.db, err = pgxpool.NewWithConfig(within(t), cfg)
	must(t, err)
	t.Cleanup(w.db.Close)
	c, err := w.db.Acquire(within(t))
	must(t, err)
	defer c.Release()
	_, err = postgres.Migrate(within(t), c.Conn(), postgres.MigrateConfig{})
	must(t, err)
	// No unique key: an effect that happens twice must show.
	_, err = c.Exec(within(t), `CREATE TABLE effect (mid text NOT NULL, d bigint NOT NULL);
		CREATE TABLE acct (id bigint PRIMARY KEY, bal bigint NOT NULL DEFAULT 0);
		INSERT INTO acct SELECT generate_series(0, 63)`)
	must(t, err)
	w.watch = startWatch(w)
	return w
}

// spec is what consumers of this world are like.
func (w *world) spec(edits []func(*spec)) spec {
	s := spec{
		Brokers: w.brokers, Topic: w.topic, Consumer: w.group, Database: w.url,
		Memory: inbox.MemoryInbox, Write: bySQL, Batch: 10,
		Session: 6 * time.Second, Rebalance: 20 * time.Second, Lock: time.Second,
	}
	for _, e := range append(w.edits, edits...) {
		e(&s)
	}
	return s
}

// Edits of a spec.
func position(s *spec) { s.Memory = inbox.MemoryPosition }
func latest(s *spec)   { s.Latest = true }
func loud(s *spec)     { s.Loud = true }

func writing(how string) func(*spec) { return func(s *spec) { s.Write = how } }

// shortSession makes the group forget a silent member as soon as the broker allows.
func shortSession(s *spec) {
	s.Session = time.Second
	if testenv.RealKafka() {
		s.Session = 6 * time.Second
	}
}

func stopAt(at step, nth int) func(*spec) {
	return func(s *spec) { s.StopAt, s.Nth = at, nth }
}

// send puts n new messages into a partition, one batch of the producer each ten or so.
func (w *world) send(partition int32, n int) {
	w.t.Helper()
	var rs []*kgo.Record
	for range n {
		w.mu.Lock()
		w.next++
		p := payload{ID: fmt.Sprintf("m-%d", w.next), Account: int64(partition), Amount: int64(w.next%7 + 1), Pad: w.pad}
		w.mu.Unlock()
		w.history.Sent(p.ID, p.Amount)
		rs = append(rs, w.record(partition, p))
	}
	w.produce(rs)
}

// repeat sends messages again that were sent before, as new records.
func (w *world) repeat(r *rand.Rand, partition int32, n int) {
	w.t.Helper()
	var rs []*kgo.Record
	for range n {
		w.mu.Lock()
		k := 1 + r.IntN(w.next)
		w.mu.Unlock()
		rs = append(rs, w.record(partition, payload{ID: fmt.Sprintf("m-%d", k), Account: int64(partition), Amount: int64(k%7 + 1)}))
	}
	w.produce(rs)
}

func (w *world) record(partition int32, p payload) *kgo.Record {
	v, err := json.Marshal(p)
	must(w.t, err)
	return &kgo.Record{Topic: w.topic, Partition: partition, Value: v, Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(p.ID)}}}
}

func (w *world) produce(rs []*kgo.Record) {
	w.t.Helper()
	for len(rs) > 0 {
		n := min(10, len(rs))
		must(w.t, w.cl.ProduceSync(within(w.t), rs[:n]...).FirstErr())
		rs = rs[n:]
	}
}

func (w *world) produce1(partition int32, p payload) {
	w.t.Helper()
	w.produce([]*kgo.Record{w.record(partition, p)})
}

// transaction sends three messages in a Kafka transaction, which ends in a marker. Those of an aborted one are nothing
// to anybody.
func (w *world) transaction(k int, abort bool) {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionalID(fmt.Sprintf("%s-%d", w.group, k)))
	must(w.t, err)
	defer cl.Close()
	must(w.t, cl.BeginTransaction())
	for i := range 3 {
		p := payload{ID: fmt.Sprintf("t-%d-%d", k, i), Amount: 3}
		if !abort {
			w.history.Sent(p.ID, p.Amount)
		}
		must(w.t, cl.ProduceSync(within(w.t), w.record(0, p)).FirstErr())
	}
	must(w.t, cl.EndTransaction(within(w.t), kgo.TransactionEndTry(!abort)))
}

func (w *world) sendAll(n int) {
	w.t.Helper()
	for p := range w.parts {
		w.send(p, n)
	}
}

// load sends, a few messages at a time, until the answered function is called.
func (w *world) load(seed uint64, repeats bool) (stop func()) {
	r := rand.New(rand.NewPCG(seed, 1))
	quit := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			p := int32(r.IntN(int(w.parts)))
			w.send(p, 1+r.IntN(8))
			if repeats && r.IntN(4) == 0 {
				w.repeat(r, p, 1+r.IntN(3))
			}
			select {
			case <-quit:
				return
			case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond):
			}
		}
	})
	var once sync.Once
	stop = func() { once.Do(func() { close(quit) }); ended.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// row is a watermark as the database has it.
type row struct {
	next    int64
	balance int64 // of its accounts: settled minus all outcomes
	lost    int64
	applied int64
}

func (w *world) rows(ctx context.Context) (map[int32]row, error) {
	rows, err := w.db.Query(ctx, `SELECT partition, next_offset, settled - applied - duplicate - stale - superseded - dead - skipped, lost, applied
		FROM semel.watermark WHERE consumer = $1 AND topic = $2`, w.group, w.topic)
	if err != nil {
		return nil, err
	}
	out := map[int32]row{}
	var p int32
	var r row
	_, err = pgx.ForEachRow(rows, []any{&p, &r.next, &r.balance, &r.lost, &r.applied}, func() error { out[p] = r; return nil })
	return out, err
}

func (w *world) ends() map[int32]int64 {
	w.t.Helper()
	ends, err := w.adm.ListEndOffsets(within(w.t), w.topic)
	must(w.t, err)
	must(w.t, ends.Error())
	out := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) { out[o.Partition] = o.Offset })
	return out
}

// caughtUp waits until every message there is is settled.
func (w *world) caughtUp() {
	w.t.Helper()
	ends := w.ends()
	var last map[int32]row
	defer func() {
		if w.t.Failed() {
			w.t.Logf("log ends at %v, watermarks %+v", ends, last)
		}
	}()
	until(w.t, "all is settled", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		rows, err := w.rows(ctx)
		if err != nil {
			return false
		}
		last = rows
		for p, end := range ends {
			if r, ok := rows[p]; !ok || r.next < end {
				return false
			}
		}
		return true
	})
}

// settled waits until so many messages are applied.
func (w *world) settled(n int64) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("%d messages are applied", n), func() bool { return w.applied() >= n })
}

func (w *world) applied() (n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	rows, _ := w.rows(ctx)
	for _, r := range rows {
		n += r.applied
	}
	return n
}

// check holds what the database has against what was sent.
func (w *world) check() {
	w.t.Helper()
	w.caughtUp()
	var effects []lab.Effect
	var sum, letters int64
	ctx := within(w.t)
	must(w.t, pgx.BeginTxFunc(ctx, w.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT mid, d FROM effect")
		if err != nil {
			return err
		}
		if effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[lab.Effect]); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT sum(bal)::bigint FROM acct").Scan(&sum); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT count(*) FROM semel.dead_letter").Scan(&letters)
	}))
	if v := w.history.Judge(effects, sum); !v.Once() {
		w.t.Error(v)
	}
	if letters != 0 {
		w.t.Errorf("%d messages were buried", letters)
	}
	rows, err := w.rows(ctx)
	must(w.t, err)
	for p, r := range rows {
		if r.balance != 0 {
			w.t.Errorf("partition %d: %d more messages settled than have an outcome", p, r.balance)
		}
	}
	w.watch.check()
}

// running is a consumer in this process.
type running struct {
	*consumer
	t     testing.TB
	abort context.CancelFunc
	done  chan struct{}
	err   error
}

// run starts one. It is aborted when the test ends.
func (w *world) run(edit ...func(*spec)) *running {
	w.t.Helper()
	return w.runStepped(nil, edit...)
}

func (w *world) runStepped(pass func(step), edit ...func(*spec)) *running {
	w.t.Helper()
	if pass == nil {
		pass = func(step) {}
	}
	c, err := w.spec(edit).build(pass, logger(w.t.Name()))
	must(w.t, err)
	r := &running{consumer: c, t: w.t, done: make(chan struct{})}
	var ctx context.Context
	ctx, r.abort = context.WithCancel(context.Background())
	go func() {
		defer close(r.done)
		r.err = c.Run(ctx)
		c.pool.Close()
	}()
	w.t.Cleanup(func() { r.abort(); <-r.done })
	return r
}

// drain stops it as SIGTERM would.
func (r *running) drain() {
	r.t.Helper()
	r.Drain()
	select {
	case <-r.done:
	case <-time.After(limit):
		r.t.Fatal("no end of a drain")
	}
	must(r.t, r.err)
}

// watch is a foreign client that looks every 50 ms at what the group has committed, and then at the watermarks.
type watch struct {
	w    *world
	stop func()

	samples atomic.Int64

	mu        sync.Mutex
	high      map[int32]int64 // the highest watermark ever seen
	committed map[int32]int64 // the highest offset committed
	wentBack  bool            // the database, and has not answered since
	mayDrop   bool            // the test moves offsets itself
	wrong     []string
}

func startWatch(w *world) *watch {
	v := &watch{w: w, high: map[int32]int64{}, committed: map[int32]int64{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				v.look(ctx)
			}
		}
	}()
	v.stop = func() { cancel(); <-done }
	w.t.Cleanup(v.stop)
	return v
}

func (v *watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	v.mu.Lock()
	free := v.mayDrop
	v.mu.Unlock()
	offsets, err := v.w.adm.FetchOffsets(ctx, v.w.group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return
	}
	rows, err := v.w.rows(ctx) // after the offsets: watermarks only rise
	v.mu.Lock()
	defer v.mu.Unlock()
	if free || v.mayDrop {
		clear(v.committed)
	}
	v.samples.Add(1)
	for p, r := range rows {
		v.high[p] = max(v.high[p], r.next)
	}
	for p := range v.w.parts {
		at := int64(-1)
		if o, ok := offsets.Lookup(v.w.topic, p); ok {
			at = o.At
		}
		if was, ok := v.committed[p]; ok && at < was {
			v.wrong = append(v.wrong, fmt.Sprintf("the group's offset of partition %d went back from %d to %d", p, was, at))
		}
		if at >= 0 {
			v.committed[p] = at
		}
		if v.wentBack && err != nil {
			v.high[p] = max(v.high[p], at)
		}
		// Without a row there is a start at most: it is signed in the transaction that writes the row.
		if high, claimed := v.high[p]; claimed && err == nil && at > high && !v.mayDrop {
			v.wrong = append(v.wrong, fmt.Sprintf("the group's offset of partition %d is %d, and the highest watermark was %d", p, at, high))
		}
	}
	if err == nil {
		v.wentBack = false
	}
}

// goesBack is called while the database is down: it will come back older.
func (v *watch) goesBack() {
	v.mu.Lock()
	v.wentBack = true
	v.mu.Unlock()
	// What is acked of commits that the watch didn't see counts as seen.
	n := v.samples.Load()
	until(v.w.t, "the watch has looked", func() bool { return v.samples.Load() >= n+2 })
}

// back makes the database go back under it.
func (v *watch) back(f func()) {
	// Nothing may be under way that it hasn't seen.
	n := v.samples.Load()
	until(v.w.t, "the watch has looked", func() bool { return v.samples.Load() >= n+2 })
	f()
}

// offsetsMove lets the test itself move offsets.
func (v *watch) offsetsMove(f func()) {
	v.mu.Lock()
	v.mayDrop = true
	v.mu.Unlock()
	f()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mayDrop = false
	clear(v.committed)
}

func (v *watch) check() {
	v.w.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.samples.Load() == 0 {
		v.w.t.Error("the watch has seen nothing")
	}
	if len(v.wrong) > 0 {
		v.w.t.Error(strings.Join(v.wrong[:min(5, len(v.wrong))], "\n"))
	}
}

// offset is what the group has committed; -1 none.
func (w *world) offset(p int32) int64 {
	w.t.Helper()
	os, err := w.adm.FetchOffsets(within(w.t), w.group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1
	}
	must(w.t, err)
	if o, ok := os.Lookup(w.topic, p); ok {
		return o.At
	}
	return -1
}

// ackedAll waits until the group's offsets are the watermarks.
func (w *world) ackedAll() {
	w.t.Helper()
	until(w.t, "the group's offsets are the watermarks", func() bool {
		rows, err := w.rows(within(w.t))
		must(w.t, err)
		for p, r := range rows {
			if w.offset(p) != r.next {
				return false
			}
		}
		return len(rows) == int(w.parts)
	})
}

// proxied gives a proxy in front of the database.
func (w *world) proxied() (*lab.PostgresProxy, func(*spec)) {
	w.t.Helper()
	p, err := lab.NewPostgresProxy(w.url)
	must(w.t, err)
	w.t.Cleanup(p.Close)
	return p, func(s *spec) { s.Database = p.URL() }
}

// kafkaProxied gives one in front of the broker.
func (w *world) kafkaProxied() (*lab.KafkaProxy, func(*spec)) {
	w.t.Helper()
	p, err := lab.NewKafkaProxy(w.brokers[0])
	must(w.t, err)
	w.t.Cleanup(p.Close)
	return p, func(s *spec) { s.Via = p.Addr() }
}

// seed is printed where it matters: SEMEL_SEED repeats a run.
func seed(t testing.TB) uint64 {
	n := rand.Uint64() >> 32
	if s := seedVariable(); s != 0 {
		n = s
	}
	t.Logf("seed %d (SEMEL_SEED=%d repeats its choices)", n, n)
	return n
}
