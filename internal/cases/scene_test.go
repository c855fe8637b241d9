package cases_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/lab"
	"github.com/semelhq/semel/postgres"
)

// limit is how long anything may take; two cores are shared with all other tests.
var limit = 4 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func until(t testing.TB, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !fact(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// scene is a topic, a database with tables, and clients that stand beside the routes.
type scene struct {
	t       *testing.T
	brokers []string
	topic   string
	url     string // of the database, past any proxy
	via     string // how routes reach it
	more    string // of the file: further lines at the top
	db      *pgxpool.Pool
	cl      *kgo.Client
	adm     *kadm.Client
}

func newScene(t *testing.T, partitions int32, ddl string) *scene {
	t.Helper()
	return makeScene(t, testenv.Brokers(t), testenv.Topic(t, partitions), testenv.Postgres(t), ddl)
}

// sceneAt uses another broker.
func sceneAt(t *testing.T, brokers []string, topic, ddl string) *scene {
	t.Helper()
	return makeScene(t, brokers, topic, testenv.Postgres(t), ddl)
}

func makeScene(t *testing.T, brokers []string, topic, url, ddl string) *scene {
	t.Helper()
	s := &scene{t: t, brokers: brokers, topic: topic, url: url, via: url}
	cfg, err := pgxpool.ParseConfig(s.url)
	must(t, err)
	cfg.MaxConns = 3
	cfg.ConnConfig.RuntimeParams["application_name"] = "scene"
	cfg.ConnConfig.RuntimeParams["datestyle"] = "ISO"
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	s.db, err = pgxpool.NewWithConfig(context.Background(), cfg)
	must(t, err)
	t.Cleanup(s.db.Close)
	s.cl, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	must(t, err)
	t.Cleanup(s.cl.Close)
	s.adm = kadm.NewClient(s.cl)
	s.exec(ddl)
	return s
}

// create makes a topic, and returns when it can be used: a broker says it is made before it knows that itself. A topic
// of that name may just have been deleted.
func (s *scene) create(topic string, partitions int32, configs map[string]*string) {
	s.t.Helper()
	var made kadm.CreateTopicResponse
	until(s.t, "the topic is made", func() (ok bool) {
		var err error
		made, err = s.adm.CreateTopic(within(s.t), partitions, -1, configs, topic)
		return err == nil
	})
	until(s.t, "the broker leads it", func() bool {
		topics, err := s.adm.ListTopics(within(s.t), topic)
		must(s.t, err)
		if topics[topic].ID != made.ID {
			return false
		}
		led := int32(0)
		for _, p := range topics[topic].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		return led == partitions
	})
	s.cl.PurgeTopicsFromClient(topic) // what it knows may be older
}

func (s *scene) exec(sql string) {
	s.t.Helper()
	conn, err := s.db.Acquire(within(s.t))
	must(s.t, err)
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(within(s.t), sql).ReadAll(); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// ask gives one text; NULL as NULL.
func (s *scene) ask(sql string, args ...any) string {
	s.t.Helper()
	var text *string
	if err := s.db.QueryRow(within(s.t), "SELECT ("+sql+")::text", args...).Scan(&text); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	if text == nil {
		return "NULL"
	}
	return *text
}

func (s *scene) want(sql, want string) {
	s.t.Helper()
	if got := s.ask(sql); got != want {
		s.t.Errorf("%s\n got %s\nwant %s", sql, got, want)
	}
}

// send appends values to partition 0.
func (s *scene) send(values ...string) {
	s.t.Helper()
	rs := make([]*kgo.Record, len(values))
	for i, v := range values {
		rs[i] = &kgo.Record{Value: []byte(v)}
	}
	s.produce(rs...)
}

func (s *scene) produce(rs ...*kgo.Record) {
	s.t.Helper()
	for _, r := range rs {
		if r.Topic == "" {
			r.Topic = s.topic
		}
	}
	must(s.t, s.cl.ProduceSync(within(s.t), rs...).FirstErr())
}

// numbered makes n values.
func numbered(n int, value func(i int) string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = value(i)
	}
	return out
}

// route is a route of the file: the fields that it isn't given have values that fit the scene.
func (s *scene) route(lines ...string) string {
	given := map[string]bool{}
	for _, l := range lines {
		name, _, _ := strings.Cut(l, ":")
		given[name] = true
	}
	var b strings.Builder
	for i, l := range append([]string{
		"name: r", "consumer: TOPIC", "from: {topics: [TOPIC]}",
		`on_error: {backoff: {initial: 10ms, max: 100ms}, limit: {in_a_row: 0, share: "0%"}}`,
	}, lines...) {
		if name, _, _ := strings.Cut(l, ":"); i < 4 && given[name] {
			continue
		}
		b.WriteString("    " + strings.ReplaceAll(l, "TOPIC", s.topic) + "\n")
	}
	return "  -\n" + b.String()
}

func (s *scene) text(routes ...string) string {
	return fmt.Sprintf("kafka: {brokers: %q}\ndatabase: {url: %q}\nserver: {listen: \"\"}\nshutdown_grace: 3s\n%sroutes:\n%s",
		strings.Join(s.brokers, ","), s.via, s.more, strings.Join(routes, ""))
}

func (s *scene) file(routes ...string) *config.File {
	s.t.Helper()
	f, err := config.Parse("semel.yaml", []byte(s.text(routes...)), func(string) (string, bool) { return "", false })
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.text(routes...))
	}
	return f
}

// run settles all that is there.
func (s *scene) run(routes ...string) daemon.Result {
	s.t.Helper()
	r, err := s.try(routes...)
	must(s.t, err)
	for _, h := range r.Halted {
		s.t.Fatalf("halted: %s", h.Reason)
	}
	return r
}

func (s *scene) try(routes ...string) (daemon.Result, error) {
	s.t.Helper()
	ctx := within(s.t)
	r, err := daemon.Run(ctx, ctx, daemon.Config{File: s.file(routes...), UntilCaughtUp: true, Logger: quiet})
	if err == nil && ctx.Err() != nil {
		s.t.Fatal("it never caught up")
	}
	return r, err
}

var quiet = slog.New(slog.DiscardHandler)

// alone settles n messages by a table's loop, without anybody who looks on: a daemon asks the database for its own sake.
func (s *scene) alone(n int64, cfg postgres.TableConfig, edit ...func(*inbox.Config[pgx.Tx])) {
	s.t.Helper()
	ctx := within(s.t)
	pool, err := pgxpool.New(ctx, s.via)
	must(s.t, err)
	defer pool.Close()
	must(s.t, pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := postgres.Migrate(ctx, c.Conn(), postgres.MigrateConfig{})
		return err
	}))
	table, err := postgres.NewTable(ctx, pool, cfg)
	must(s.t, err)
	source, err := kafka.NewSource(kafka.SourceConfig{Brokers: s.brokers, Topics: []string{s.topic}, Group: s.topic, Start: kafka.StartEarliest(), Logger: quiet})
	must(s.t, err)
	settled, drain := int64(0), func() {}
	c := inbox.Config[pgx.Tx]{
		Consumer: s.topic, Source: source, Store: postgres.NewInboxStore(pool, postgres.InboxConfig{Table: table}), Effect: table, Memory: table.Memory(), OwnIDs: table.OwnIDs(),
		Logger: quiet, Reread: time.Hour, Batch: inbox.BatchLimits{Messages: int(n), Bytes: 64 << 20, Time: limit},
		Observe: inbox.Observer{Settled: func(_ semel.Partition, a inbox.Accounts) {
			if settled += a.Settled.Count; settled == n {
				drain()
			}
		}},
	}
	for _, e := range edit {
		e(&c)
	}
	in, err := inbox.New(c)
	must(s.t, err)
	drain = in.Drain
	must(s.t, in.Run(ctx))
	if settled != n {
		s.t.Fatalf("%d settled of %d", settled, n)
	}
}

// running is a daemon in this process.
type running struct {
	s      *scene
	soft   context.CancelFunc
	done   chan struct{}
	result daemon.Result
	err    error
}

func (s *scene) start(routes ...string) *running {
	s.t.Helper()
	return s.startFile(s.file(routes...))
}

func (s *scene) startFile(f *config.File) *running {
	s.t.Helper()
	hard, abort := context.WithCancel(context.Background())
	soft, drain := context.WithCancel(hard)
	r := &running{s: s, soft: drain, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.result, r.err = daemon.Run(hard, soft, daemon.Config{File: f, Logger: quiet})
	}()
	s.t.Cleanup(func() { abort(); <-r.done })
	return r
}

// stop is a clean one.
func (r *running) stop() daemon.Result {
	r.s.t.Helper()
	r.soft()
	select {
	case <-r.done:
	case <-time.After(limit):
		r.s.t.Fatal("it never stopped")
	}
	must(r.s.t, r.err)
	return r.result
}

func (r *running) alive() {
	r.s.t.Helper()
	select {
	case <-r.done:
		r.s.t.Fatalf("it has ended: %+v, %v", r.result, r.err)
	default:
	}
}

// outcomes is what the accounts say of all partitions, without zeros.
func (s *scene) outcomes() string {
	s.t.Helper()
	return s.ask(`SELECT coalesce(string_agg(n || ' ' || o, ', ' ORDER BY at), '') FROM (
		SELECT at, o, sum(n) AS n FROM semel.watermark, LATERAL (VALUES (1, 'applied', applied), (2, 'duplicate', duplicate), (3, 'stale', stale),
			(4, 'superseded', superseded), (5, 'dead', dead), (6, 'skipped', skipped), (7, 'lost', lost)) v (at, o, n)
		GROUP BY at, o HAVING sum(n) > 0) a`)
}

// dead are the dead letters, "partition/offset class sqlstate".
func (s *scene) dead() string {
	s.t.Helper()
	return s.ask(`SELECT coalesce(string_agg(concat_ws(' ', partition || '/' || "offset", class, sqlstate), ', ' ORDER BY partition, "offset"), '') FROM semel.dead_letter`)
}

// acked is the group's offset; -1 none.
func (s *scene) acked(partition int32) int64 {
	s.t.Helper()
	var os kadm.OffsetResponses
	until(s.t, "the coordinator answers", func() bool { // a broker that has had no group yet makes its place first
		var err error
		os, err = s.adm.FetchOffsets(within(s.t), s.topic)
		if kerr.IsRetriable(err) {
			return false
		}
		if !errors.Is(err, kerr.GroupIDNotFound) {
			must(s.t, err)
		}
		return true
	})
	if o, ok := os.Lookup(s.topic, partition); ok && o.Err == nil {
		return o.At
	}
	return -1
}

func (s *scene) watermark(partition int32) int64 {
	s.t.Helper()
	var n int64
	s.db.QueryRow(within(s.t), "SELECT next_offset FROM semel.watermark WHERE topic = $1 AND partition = $2", s.topic, partition).Scan(&n)
	return n
}

// count is a number, 0 while there is nothing to count in.
func (s *scene) count(from string) (n int64) {
	s.db.QueryRow(within(s.t), "SELECT count(*) FROM "+from).Scan(&n)
	return n
}

// sums compares what everybody settled with what there was.
func (s *scene) sums() {
	s.t.Helper()
	s.want("SELECT coalesce(bool_and(settled = applied + duplicate + stale + superseded + dead + skipped), true) FROM semel.watermark", "true")
}

// watch samples offset and watermark until the answer is called: an offset never passes the watermark, and never goes
// back.
func (s *scene) watch(partitions int32) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	samples := 0
	go func() {
		defer close(done)
		highest := make([]int64, partitions)
		for {
			for p := range partitions {
				at := s.acked(p)
				if at < 0 {
					continue // not there yet, or the embedded broker has no such group while nobody is in it
				}
				if at < highest[p] {
					s.t.Errorf("the group's offset of partition %d went from %d to %d", p, highest[p], at)
				}
				highest[p] = max(highest[p], at)
				if next := s.watermark(p); at > next {
					s.t.Errorf("the group's offset of partition %d is %d, the watermark %d", p, at, next)
				}
			}
			samples++
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() {
		s.t.Helper()
		close(stop)
		<-done
		if samples < 3 {
			s.t.Errorf("only %d samples", samples)
		}
	}
}

// proxied puts a proxy before the database, for routes alone.
func (s *scene) proxied() *lab.PostgresProxy {
	s.t.Helper()
	p, err := lab.NewPostgresProxy(s.url)
	must(s.t, err)
	s.t.Cleanup(p.Close)
	s.via = p.URL()
	return p
}

// built is the command, without the race detector, built once for all tests.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// process is a command, most often `semel run`.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out bytes.Buffer
	end chan struct{}
	err error
}

// spawn starts `semel run` with more environment, like TZ=UTC.
func (s *scene) spawn(env []string, args []string, text string) *process {
	s.t.Helper()
	return s.command(env, text, append([]string{"run", "FILE"}, args...)...)
}

// command starts one; FILE stands for the file's name.
func (s *scene) command(env []string, text string, args ...string) *process {
	s.t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "semel-cases-*"); built.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", built.dir, "../../cmd/semel").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	must(s.t, built.err)
	file := filepath.Join(s.t.TempDir(), "semel.yaml")
	must(s.t, os.WriteFile(file, []byte(text), 0o600))
	p := &process{t: s.t, end: make(chan struct{})}
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "FILE", file)
	}
	p.cmd = exec.Command(filepath.Join(built.dir, "semel"), args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	must(s.t, p.cmd.Start())
	go func() { p.err = p.cmd.Wait(); close(p.end) }()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("a process said:\n%.20000s", p.out.String())
		}
	})
	return p
}

func (p *process) signal(sig syscall.Signal) { p.cmd.Process.Signal(sig) }

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.end
}

// wait answers the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.end:
	case <-time.After(limit / 2):
		p.signal(syscall.SIGQUIT) // it says where it stands
		<-p.end
		p.t.Fatal("a process never ended")
	}
	var failed *exec.ExitError
	if p.err != nil && !errors.As(p.err, &failed) {
		p.t.Fatal(p.err)
	}
	return p.cmd.ProcessState.ExitCode()
}
