package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

func migrated(t testing.TB) (url string) {
	t.Helper()
	url = testenv.Postgres(t)
	migrate(t, url, "")
	return url
}

func migrate(t testing.TB, url, schema string) postgres.MigrateResult {
	t.Helper()
	res, err := postgres.Migrate(t.Context(), connect(t, url), postgres.MigrateConfig{Schema: schema})
	must(t, err)
	return res
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	must(t, err)
	cfg.ConnConfig.OnPgError = postgres.CloseOnFatal
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec1(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := c.Exec(t.Context(), sql, args...)
	must(t, err)
}

func ask[T any](t testing.TB, c *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	must(t, c.QueryRow(t.Context(), sql, args...).Scan(&v))
	return v
}

func record(name string) inbox.Record {
	return inbox.Record{
		Name: name, Cluster: "c", Topics: []string{"orders"}, IDRule: "header message-id", Target: "t",
		Memory: inbox.MemoryInbox, Window: time.Hour,
	}
}

func newStore(t testing.TB, url string, cfg postgres.InboxConfig) *postgres.InboxStore {
	t.Helper()
	s := postgres.NewInboxStore(newPool(t, url), cfg)
	t.Cleanup(s.Close)
	return s
}

// opened is a store of a consumer, with short patience.
func opened(t testing.TB, url, consumer string) *postgres.InboxStore {
	t.Helper()
	s := newStore(t, url, postgres.InboxConfig{LockTimeout: 200 * time.Millisecond})
	_, err := s.Open(t.Context(), record(consumer))
	must(t, err)
	return s
}

var (
	p0      = semel.Partition{Topic: "orders", Number: 0}
	p1      = semel.Partition{Topic: "orders", Number: 1}
	topicID = semel.TopicID{7: 7}
)

func introduce(t testing.TB, s *postgres.InboxStore, ps ...semel.Partition) {
	t.Helper()
	must(t, introduced(t.Context(), s, ps...))
}

func introduced(ctx context.Context, s *postgres.InboxStore, ps ...semel.Partition) error {
	_, err := s.Introduce(ctx, ps[0].Topic, func(known []inbox.Row) (added []inbox.Row, _ []inbox.Event, _ error) {
		for _, p := range ps {
			added = append(added, inbox.Row{Claim: inbox.Claim{Partition: p, TopicID: topicID}, Adopted: -1})
		}
		return added, nil, nil
	})
	return err
}

func keep(r inbox.Row) (inbox.Row, []inbox.Event, error) { return r, nil, nil }

func claim(t testing.TB, s *postgres.InboxStore, p semel.Partition) inbox.Row {
	t.Helper()
	r, err := s.Claim(t.Context(), p, inbox.Owner{Host: "h", PID: 1}, keep)
	must(t, err)
	return r
}

func span(r inbox.Row, n int64) inbox.Span {
	return inbox.Span{Claim: r.Claim, From: r.Next, To: r.Next + n}
}

func begin(t testing.TB, s *postgres.InboxStore, spans ...inbox.Span) inbox.Tx[pgx.Tx] {
	t.Helper()
	tx, err := s.Begin(t.Context(), spans)
	must(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// lane is a store with a claimed partition.
func lane(t testing.TB, url string) (*postgres.InboxStore, inbox.Row) {
	t.Helper()
	s := opened(t, url, "billing")
	introduce(t, s, p0)
	return s, claim(t, s, p0)
}

func look(t testing.TB, s *postgres.InboxStore, p semel.Partition) inbox.Row {
	t.Helper()
	l, err := s.Look(t.Context(), []semel.Partition{p})
	must(t, err)
	if len(l.Rows) != 1 {
		t.Fatalf("%d rows of %s", len(l.Rows), p)
	}
	return l.Rows[0]
}

func TestOpenRefusesAChangedConsumer(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	first, err := s.Open(t.Context(), record("billing"))
	must(t, err)
	if first.Database == "" || first.Scope == 0 {
		t.Errorf("registration %+v", first)
	}
	other := record("billing")
	other.Cluster, other.Topics, other.IDRule, other.Target, other.Memory = "d", []string{"a", "b"}, "key", "u", inbox.MemoryTarget
	_, err = s.Open(t.Context(), other)
	var changed *inbox.ChangedError
	if !errors.As(err, &changed) || len(changed.Changes) != 5 {
		t.Fatalf("got %v", err)
	}
	if s.Class(err) != inbox.ClassRoute {
		t.Errorf("class %s", s.Class(err))
	}
	other.AcceptChange = true
	_, err = s.Open(t.Context(), other)
	must(t, err)
	other.AcceptChange = false
	again, err := s.Open(t.Context(), other)
	must(t, err)
	if again != first {
		t.Errorf("%+v, before %+v", again, first)
	}
}

func TestOpenWithoutTablesSaysSo(t *testing.T) {
	t.Parallel()
	s := newStore(t, testenv.Postgres(t), postgres.InboxConfig{})
	_, err := s.Open(t.Context(), record("billing"))
	var schema *postgres.SchemaError
	if !errors.As(err, &schema) || schema.State != postgres.SchemaMissing || s.Class(err) != inbox.ClassRoute {
		t.Errorf("got %v", err)
	}
}

func TestRowsComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	s := opened(t, migrated(t), "billing")
	want := inbox.Row{
		Claim: inbox.Claim{Partition: p1, TopicID: topicID, Generation: 3, Token: inbox.Token{1: 9}},
		Start: 5, Adopted: 4, Next: math.MaxInt64, UncleanClaims: 2,
		Owner:    &inbox.Owner{Member: "m\x00", Host: "h", PID: 9, Started: "1", Name: "n", At: time.Unix(1, 0).UTC()},
		Epochs:   []inbox.Epoch{{Number: 1, First: 2}, {Number: 3, First: 4}},
		Accounts: inbox.Accounts{Settled: inbox.Tally{Count: 1, Sum: math.MaxUint64}, Holes: 7, Lost: 8, Redriven: 9},
	}
	for i := range want.Accounts.Outcome {
		want.Accounts.Outcome[i] = inbox.Tally{Count: int64(i), Sum: math.MaxUint64 - uint64(i)}
	}
	_, err := s.Introduce(t.Context(), "orders", func(known []inbox.Row) ([]inbox.Row, []inbox.Event, error) {
		return []inbox.Row{want}, []inbox.Event{{Partition: p1, Kind: "start", Detail: map[string]any{"note": "a\x00b"}}}, nil
	})
	must(t, err)
	got := look(t, s, p1)
	if got.Updated.IsZero() {
		t.Error("no time")
	}
	got.Updated = time.Time{}
	want.Owner.Member = "m\ufffd"
	if fmt.Sprint(*got.Owner) != fmt.Sprint(*want.Owner) {
		t.Errorf("owner %+v", got.Owner)
	}
	got.Owner, want.Owner = nil, nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestClaimTakesANewTokenAndGeneration(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := opened(t, url, "billing")
	introduce(t, s, p0)
	a, b := claim(t, s, p0), claim(t, s, p0)
	if b.Generation != a.Generation+1 || a.Token == b.Token || b.Token == (inbox.Token{}) {
		t.Errorf("%+v then %+v", a.Claim, b.Claim)
	}
	if got := look(t, s, p0); got.Claim != b.Claim || got.Owner == nil || got.Owner.Host != "h" {
		t.Errorf("row %+v", got)
	}
	if _, err := s.Claim(t.Context(), p1, inbox.Owner{}, keep); !errors.Is(err, inbox.ErrNoRow) {
		t.Errorf("claim of no row: %v", err)
	}
	must(t, s.Release(t.Context(), []inbox.Claim{a.Claim}))
	if look(t, s, p0).Owner == nil {
		t.Error("an old claim cleared the owner")
	}
	must(t, s.Release(t.Context(), []inbox.Claim{b.Claim}))
	if look(t, s, p0).Owner != nil {
		t.Error("the owner stands after the release")
	}
}

func TestClaimWhoseDecisionFailsChangesNothing(t *testing.T) {
	t.Parallel()
	s, row := lane(t, migrated(t))
	no := errors.New("no")
	_, err := s.Claim(t.Context(), p0, inbox.Owner{}, func(r inbox.Row) (inbox.Row, []inbox.Event, error) {
		r.Next = 99
		return r, []inbox.Event{{Kind: "x"}}, no
	})
	if err != no {
		t.Errorf("got %v", err)
	}
	if got := look(t, s, p0); got.Claim != row.Claim || got.Next != 0 {
		t.Errorf("row %+v", got)
	}
}

func TestCommitMovesTheWatermarkAndAddsWithoutOverflow(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE t (n int)")
	add := inbox.Accounts{Settled: inbox.Tally{Count: 2, Sum: math.MaxUint64 - 4}, Holes: 3}
	add.Outcome[inbox.Skipped] = inbox.Tally{Count: 2, Sum: 1 << 63}
	var want inbox.Accounts
	for i := range 12 {
		sp := span(row, 5)
		sp.Epochs = []inbox.Epoch{{Number: int32(i), First: sp.From}}
		tx := begin(t, s, sp)
		_, err := tx.DB().Exec(t.Context(), "INSERT INTO t VALUES ($1)", i)
		must(t, err)
		must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp, Accounts: add}}))
		row.Next += 5
		want = want.Plus(add)
	}
	got := look(t, s, p0)
	if got.Next != 60 || got.Accounts != want || ask[int](t, c, "SELECT count(*)::int FROM t") != 12 {
		t.Errorf("row %+v, want accounts %+v", got, want)
	}
	if len(got.Epochs) != 8 || got.Epochs[7].Number != 11 {
		t.Errorf("epochs %v", got.Epochs)
	}
}

func TestFencedBeginLeavesNoEffect(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := opened(t, url, "billing")
	introduce(t, s, p0, p1)
	r0, r1 := claim(t, s, p0), claim(t, s, p1)
	wrong := map[string]func(*inbox.Span){
		"token": func(sp *inbox.Span) { sp.Token[0]++ },
		"topic": func(sp *inbox.Span) { sp.TopicID[0]++ },
		"below": func(sp *inbox.Span) { sp.From-- },
		"above": func(sp *inbox.Span) { sp.From++ },
		"row":   func(sp *inbox.Span) { sp.Partition.Number = 77 },
	}
	for name, change := range wrong {
		bad := span(r1, 3)
		change(&bad)
		_, err := s.Begin(t.Context(), []inbox.Span{span(r0, 3), bad})
		var fenced *inbox.FencedError
		if !errors.As(err, &fenced) || len(fenced.Mismatches) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		m := fenced.Mismatches[0]
		if m.Partition != bad.Partition || m.From != bad.From || m.Mine == (name == "token" || name == "row") || (m.Row == nil) != (name == "row") {
			t.Errorf("%s: %+v", name, m)
		}
		if s.Class(err) != inbox.ClassFenced {
			t.Errorf("%s: class %s", name, s.Class(err))
		}
	}
	c := connect(t, url)
	if n := ask[int](t, c, "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"); n != 0 {
		t.Errorf("%d transactions are still open", n)
	}
	// Another lane's claim moved the row away from where this store last saw it.
	r0 = claim(t, opened(t, url, "billing"), p0)
	begin(t, s, span(r0, 3), span(r1, 3)).Rollback(t.Context())
}

func TestRowThatIsHeldElsewhereIsAFence(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "BEGIN; SELECT FROM semel.watermark FOR UPDATE")
	_, err := s.Begin(t.Context(), []inbox.Span{span(row, 1)})
	var fenced *inbox.FencedError
	if !errors.As(err, &fenced) || !fenced.Mismatches[0].Mine || s.Class(err) != inbox.ClassFenced {
		t.Fatalf("got %v", err)
	}
	// A stranger is not ended by a claim: it is a conflict, again and again.
	_, err = s.Claim(t.Context(), p0, inbox.Owner{}, keep)
	if err == nil || s.Class(err) != inbox.ClassConflict {
		t.Fatalf("got %v", err)
	}
	exec1(t, c, "COMMIT")
	claim(t, s, p0)
}

// beZombie claims, begins a COPY, and waits in it to be stopped.
func beZombie(url string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	pool, err := pgxpool.New(ctx, url)
	fail(err)
	s := postgres.NewInboxStore(pool, postgres.InboxConfig{})
	_, err = s.Open(ctx, record("billing"))
	fail(err)
	fail(introduced(ctx, s, p0))
	row, err := s.Claim(ctx, p0, inbox.Owner{}, keep)
	fail(err)
	tx, err := s.Begin(ctx, []inbox.Span{{Claim: row.Claim, To: 5}})
	fail(err)
	_, err = tx.DB().Conn().PgConn().CopyFrom(ctx, &stuck{}, "COPY t FROM STDIN")
	fail(err)
}

type stuck struct{ calls int }

func (s *stuck) Read(b []byte) (int, error) {
	if s.calls++; s.calls == 1 {
		return copy(b, "1\n"), nil
	}
	fmt.Println("in COPY")
	select {}
}

func TestClaimEndsAZombieStoppedInsideCopy(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE t (n int)")
	zombie := exec.Command(os.Args[0])
	zombie.Env = append(os.Environ(), "SEMEL_TEST_ZOMBIE="+url)
	out, err := zombie.StdoutPipe()
	must(t, err)
	must(t, zombie.Start())
	defer func() {
		zombie.Process.Kill()
		zombie.Wait()
	}()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "in COPY\n" {
		t.Fatalf("the zombie said %q", line)
	}
	must(t, zombie.Process.Signal(syscall.SIGSTOP))

	s := opened(t, url, "billing")
	before := look(t, s, p0)
	row := claim(t, s, p0) // it would wait for good
	if row.Generation != before.Generation+1 {
		t.Errorf("%+v after %+v", row.Claim, before.Claim)
	}
	if kind := ask[string](t, c, "SELECT kind FROM semel.event ORDER BY number DESC LIMIT 1"); kind != "zombie-ended" {
		t.Errorf("event %s", kind)
	}
	sp := span(row, 5)
	must(t, begin(t, s, sp).Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	must(t, zombie.Process.Signal(syscall.SIGCONT))
	if n := ask[int](t, c, "SELECT count(*)::int FROM t"); n != 0 {
		t.Errorf("the zombie left %d rows", n)
	}
}

// A handler's savepoint, or a table's, makes the lock on the row one that the row's xmax doesn't name: a multixact.
func TestClaimEndsAZombieThatAdvancedUnderASavepoint(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	zombie := opened(t, url, "billing")
	introduce(t, zombie, p0, p1)
	a, b := claim(t, zombie, p0), claim(t, zombie, p1)
	tx := begin(t, zombie, span(a, 5), span(b, 5))
	for _, sql := range []string{"SAVEPOINT s", "UPDATE semel.watermark SET updated_at = now()"} {
		_, err := tx.DB().Exec(t.Context(), sql)
		must(t, err)
	}
	for _, p := range []semel.Partition{p1, p0} {
		claim(t, opened(t, url, "billing"), p)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.event WHERE kind = 'zombie-ended'"); n != 1 {
		t.Errorf("%d sessions were ended", n)
	}
}

// proxy stands between a store and its server. mute lets everything through to
// the server and nothing back; cut closes when the client sends the next bytes,
// which don't arrive.
type proxy struct {
	net.Listener
	mute, cut atomic.Bool
	heard     chan struct{} // the server answered while mute
	wg        sync.WaitGroup
}

func startProxy(t *testing.T, server string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{Listener: l, heard: make(chan struct{}, 16)}
	target := u.Host
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			p.wg.Go(func() { pump(server, client, &p.cut, nil) })
			p.wg.Go(func() { pump(client, server, &p.mute, p.heard) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

func pump(to, from net.Conn, stop *atomic.Bool, heard chan<- struct{}) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 && stop.Load() {
			if heard != nil {
				heard <- struct{}{}
				io.Copy(io.Discard, from)
			}
			return
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

func TestUnansweredCommitIsAmbiguous(t *testing.T) {
	t.Parallel()
	for name, ctxEnds := range map[string]bool{"context ends": true, "connection lost": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			p, through := startProxy(t, url)
			s, row := lane(t, through)
			sp := span(row, 1)
			must(t, begin(t, s, sp).Commit(t.Context(), []inbox.Settled{{Span: sp}})) // statements are prepared
			row.Next++
			sp = span(row, 1)
			tx := begin(t, s, sp)
			p.mute.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-p.heard
				if ctxEnds {
					cancel()
					return
				}
				c, err := pgx.Connect(context.Background(), url)
				if err != nil {
					return
				}
				defer c.Close(context.Background())
				c.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			}()
			err := tx.Commit(ctx, []inbox.Settled{{Span: sp}})
			var ambiguous *postgres.AmbiguousError
			if !errors.As(err, &ambiguous) || tx.Class(err) != inbox.ClassAmbiguous || s.Class(err) != inbox.ClassAmbiguous {
				t.Fatalf("got %v", err)
			}
			p.mute.Store(false)
			_, err = s.Begin(t.Context(), []inbox.Span{sp})
			var fenced *inbox.FencedError
			if !errors.As(err, &fenced) || fenced.Mismatches[0].Kind() != "answer-lost" {
				t.Errorf("afterwards %v", err)
			}
		})
	}
}

func TestCommitThatNeverArrivedIsAmbiguousToo(t *testing.T) {
	t.Parallel()
	p, through := startProxy(t, migrated(t))
	s, row := lane(t, through)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	p.cut.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := tx.Commit(ctx, []inbox.Settled{{Span: sp}})
	if err == nil || tx.Class(err) != inbox.ClassAmbiguous {
		t.Fatalf("got %v", err)
	}
	p.cut.Store(false)
	tx = begin(t, s, sp)
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
}

func TestCommitUnderAnEndedContextIsDefinite(t *testing.T) {
	t.Parallel()
	s, row := lane(t, migrated(t))
	sp := span(row, 1)
	tx := begin(t, s, sp)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := tx.Commit(ctx, []inbox.Settled{{Span: sp}})
	if !errors.Is(err, context.Canceled) || tx.Class(err) == inbox.ClassAmbiguous {
		t.Fatalf("got %v, class %s", err, tx.Class(err))
	}
	if look(t, s, p0).Next != 0 {
		t.Error("it was committed")
	}
}

func TestDeferredConstraintFailsDefinitelyAtCommit(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	exec1(t, connect(t, url), "CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	sp := span(row, 1)
	tx := begin(t, s, sp)
	_, err := tx.DB().Exec(t.Context(), "INSERT INTO t VALUES (1), (1)")
	must(t, err)
	err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	if tx.Class(err) != inbox.ClassPoison {
		t.Fatalf("got %v, class %s", err, tx.Class(err))
	}
	if state, text := tx.Describe(err); state != "23505" || !strings.Contains(text, "(1)") {
		t.Errorf("%s %s", state, text)
	}
	if look(t, s, p0).Next != 0 {
		t.Error("the watermark moved")
	}
}

// Code of the user's that runs at COMMIT may divide by zero as well.
func TestDeferredTriggerThatDividesByZeroIsPoison(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE t (n int)")
	exec1(t, c, "CREATE FUNCTION part() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 / NEW.n; RETURN NULL; END'")
	exec1(t, c, "CREATE CONSTRAINT TRIGGER part AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION part()")
	sp := span(row, 1)
	tx := begin(t, s, sp)
	_, err := tx.DB().Exec(t.Context(), "INSERT INTO t VALUES (0)")
	must(t, err)
	err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	if err == nil || tx.Class(err) != inbox.ClassPoison {
		t.Fatalf("got %v, class %s", err, tx.Class(err))
	}
}

func TestTriggerThatSwallowsTheWatermarkIsNoCommit(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	exec1(t, c, "CREATE TRIGGER no BEFORE UPDATE ON semel.watermark FOR EACH ROW EXECUTE FUNCTION no()")
	exec1(t, c, "CREATE TABLE t (n int)")
	sp := span(row, 1)
	tx := begin(t, s, sp)
	_, err := tx.DB().Exec(t.Context(), "INSERT INTO t VALUES (1)")
	must(t, err)
	err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	if err == nil || tx.Class(err) != inbox.ClassRoute {
		t.Fatalf("got %v", err)
	}
	if ask[int](t, c, "SELECT count(*)::int FROM t") != 0 {
		t.Error("the effect was committed without the watermark")
	}
}

func TestWholeTurnInEveryModeOfThePool(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			database := migrated(t)
			s, row := lane(t, with(t, with(t, database, "default_query_exec_mode", mode), "pool_max_conns", "1"))
			for range 3 {
				sp := span(row, 200)
				sp.Epochs = []inbox.Epoch{{Number: 1, First: row.Next}}
				tx := begin(t, s, sp)
				for _, n := range []int{5, 100} {
					var ids []inbox.Admission
					for i := range n {
						ids = append(ids, inbox.Admission{ID: semel.IDOf(fmt.Append(nil, row.Next, n, i)), Digest: inbox.Digest{1}})
					}
					for _, want := range []inbox.Verdict{inbox.Fresh, inbox.Duplicate} {
						vs, err := tx.Admit(t.Context(), ids)
						must(t, err)
						for _, v := range vs {
							if v != want {
								t.Fatalf("%d: verdict %d, want %d", n, v, want)
							}
						}
					}
				}
				must(t, tx.Bury(t.Context(), []inbox.DeadLetter{{Message: semel.Message{Topic: "orders", Key: []byte{0}}, Class: inbox.DeadValue}}))
				must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
				row.Next += 200
			}
			must(t, s.Record(t.Context(), []inbox.Event{{Partition: p0, Kind: "halt"}, {Kind: "all"}}))
			_, err := s.Forget(t.Context(), time.Now())
			must(t, err)
			must(t, s.Release(t.Context(), []inbox.Claim{row.Claim}))
			if got := look(t, s, p0); got.Next != 600 || got.Owner != nil {
				t.Errorf("row %+v", got)
			}
		})
	}
}

func TestLookTellsTheDesiredState(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := opened(t, url, "billing")
	exec1(t, connect(t, url), "UPDATE semel.consumer SET desired_state = 'paused', reason = 'why'")
	l, err := s.Look(t.Context(), nil)
	must(t, err)
	if !l.Paused || l.Reason != "why" {
		t.Errorf("%+v", l)
	}
}

func TestForgetTurnsTheRing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	old := named("old", 100)
	a.wantFresh(t, true, old)
	forget := func(place time.Time) (steps int) {
		t.Helper()
		exec1(t, c, "UPDATE semel.ring SET seen = '1 hour'") // by the process's own clock
		for more := true; more; steps++ {
			var err error
			more, err = a.s.Forget(t.Context(), place)
			must(t, err)
		}
		return steps - 1
	}
	if n := forget(time.Now()); n != 0 {
		t.Fatalf("%d steps before one was due", n)
	}
	pass(t, c, 2*time.Hour) // the window is one
	if n := forget(time.Time{}); n != 0 {
		t.Fatalf("%d steps at an unknown place", n)
	}
	if n := forget(time.Now().Add(-2 * time.Hour)); n != 0 {
		t.Fatalf("%d steps of one that is behind", n)
	}
	if n := forget(time.Now()); n != 2 {
		t.Fatalf("%d steps, of both and frozen", n)
	}
	a.wantFresh(t, false, old)
	pass(t, c, 2*time.Hour)
	if n := forget(time.Now()); n != 2 {
		t.Fatalf("%d steps, of dropped and emptied", n)
	}
	a.wantFresh(t, true, old)
}

// with sets a parameter of a database's URL.
func with(t *testing.T, database, name, value string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// Another lane has the pool's only connection: that is an outage, and says so.
func TestPoolWithoutAConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	pool := newPool(t, with(t, url, "pool_max_conns", "1"))
	c, err := pool.Acquire(t.Context())
	must(t, err)
	defer c.Release()
	s := postgres.NewInboxStore(pool, postgres.InboxConfig{})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Open(ctx, record("c"))
	if err == nil || s.Class(err) != inbox.ClassOutage {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(err.Error(), "pool") {
		t.Errorf("the error doesn't say what is missing: %v", err)
	}
}

func TestLongSnapshotDoesNotSlowTheWatermark(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	if ask[int](t, connect(t, url), "SELECT current_setting('server_version_num')::int") < 150000 {
		t.Log("PostgreSQL 14 hands its counters over when it likes")
		return
	}
	s, row := lane(t, url)
	commit := func(n int) {
		t.Helper()
		for range n {
			sp := span(row, 1)
			tx := begin(t, s, sp)
			_, err := tx.DB().Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
			must(t, err)
			must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
			row.Next = sp.To
		}
	}
	commit(10) // plans are kept
	old, c := connect(t, url), connect(t, url)
	exec1(t, old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM semel.watermark")
	exec1(t, c, "DO $$ BEGIN FOR i IN 1..4000 LOOP UPDATE semel.watermark SET updated_at = now(); COMMIT; END LOOP; END $$")
	commit(2)
	const read = `SELECT pg_stat_get_tuples_returned('semel.watermark'::regclass) + sum(pg_stat_get_tuples_returned(indexrelid))::bigint
		FROM pg_index WHERE indrelid = 'semel.watermark'::regclass`
	before := ask[int](t, c, read)
	commit(10)
	if n := ask[int](t, c, read) - before; n > 100 {
		t.Errorf("10 commits read %d rows", n)
	}
}

// chained commits a span and begins the next one; the store knows the row's place.
func chained(t *testing.T, s *postgres.InboxStore, row inbox.Row) (inbox.Tx[pgx.Tx], inbox.Span, inbox.Span) {
	t.Helper()
	first := span(row, 1)
	must(t, begin(t, s, first).Commit(t.Context(), []inbox.Settled{{Span: first}}))
	row.Next = first.To
	sp := span(row, 1)
	row.Next = sp.To
	return begin(t, s, sp), sp, span(row, 1)
}

func commitAndBegin(t *testing.T, tx inbox.Tx[pgx.Tx], sp, next inbox.Span) (inbox.Tx[pgx.Tx], error) {
	t.Helper()
	return tx.(inbox.Chainer[pgx.Tx]).CommitAndBegin(t.Context(), []inbox.Settled{{Span: sp}}, []inbox.Span{next})
}

// What fails at COMMIT begins nothing, and the store goes on.
func TestFailedCommitBeginsNothing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	exec1(t, connect(t, url), "CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	tx, sp, next := chained(t, s, row)
	_, err := tx.DB().Exec(t.Context(), "INSERT INTO t VALUES (1), (1)")
	must(t, err)
	then, err := commitAndBegin(t, tx, sp, next)
	if then != nil || tx.Class(err) != inbox.ClassPoison {
		t.Fatalf("begun %v, got %v, class %s", then != nil, err, tx.Class(err))
	}
	if look(t, s, p0).Next != sp.From {
		t.Error("the watermark moved")
	}
	must(t, begin(t, s, sp).Commit(t.Context(), []inbox.Settled{{Span: sp}}))
}

// The next row is held by somebody: the commit stands, and Begin says so.
func TestRowHeldAtCommitBeginsNothing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := opened(t, url, "billing")
	introduce(t, s, p0, p1)
	row, other := claim(t, s, p0), claim(t, s, p1)
	next := span(other, 1)
	must(t, begin(t, s, next).Commit(t.Context(), []inbox.Settled{{Span: next}}))
	other.Next = next.To
	next = span(other, 1)
	tx, sp, _ := chained(t, s, row)
	exec1(t, connect(t, url), "BEGIN; SELECT FROM semel.watermark WHERE partition = 1 FOR UPDATE")
	then, err := commitAndBegin(t, tx, sp, next)
	must(t, err)
	if then != nil {
		t.Error("begun while another holds the row")
	}
	if got := look(t, s, p0).Next; got != sp.To {
		t.Errorf("the watermark is at %d", got)
	}
	_, err = s.Begin(t.Context(), []inbox.Span{next})
	var fenced *inbox.FencedError
	if !errors.As(err, &fenced) {
		t.Errorf("Begin answers %v", err)
	}
}

// A transaction that COMMIT has begun is one like any other: its time, its name and
// its limits are its own.
func TestBegunByCommitIsATransactionLikeAnyOther(t *testing.T) {
	t.Parallel()
	s, row := lane(t, migrated(t))
	tx, sp, next := chained(t, s, row)
	const settings = "SELECT current_setting('application_name') || current_setting('lock_timeout') || current_setting('jit') || current_setting('idle_in_transaction_session_timeout')"
	var before, after string
	var was, is time.Time
	must(t, tx.DB().QueryRow(t.Context(), settings).Scan(&before))
	must(t, tx.DB().QueryRow(t.Context(), "SELECT now()").Scan(&was))
	then, err := commitAndBegin(t, tx, sp, next)
	must(t, err)
	if then == nil {
		t.Fatal("not begun")
	}
	must(t, then.DB().QueryRow(t.Context(), settings).Scan(&after))
	must(t, then.DB().QueryRow(t.Context(), "SELECT now()").Scan(&is))
	if before != after || !is.After(was) {
		t.Errorf("%q at %s, then %q at %s", before, was, after, is)
	}
	tx.Rollback(t.Context()) // of what has ended: nothing
	must(t, then.Commit(t.Context(), []inbox.Settled{{Span: next}}))
	if got := look(t, s, p0).Next; got != next.To {
		t.Errorf("the watermark is at %d", got)
	}
}
