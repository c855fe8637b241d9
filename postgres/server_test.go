package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// route is a table's consumer beside a session that looks on.
type route struct {
	t    *testing.T
	c    *pgx.Conn
	b    *inboxtest.Broker
	done chan error
	in   *inbox.Inbox[pgx.Tx]

	mu  sync.Mutex
	met map[string]int // failures by class and SQLSTATE
}

// startRoute consumes two partitions into a table; url is how the route reaches the
// database that c is connected to.
func startRoute(t *testing.T, c *pgx.Conn, url, table string, policy inbox.ErrorPolicy) *route {
	t.Helper()
	r := &route{t: t, c: c, b: inboxtest.NewBroker(), done: make(chan error, 1), met: map[string]int{}}
	r.b.CreateTopic("t", 2)
	to, err := postgres.NewTable(t.Context(), c, postgres.TableConfig{Table: table, Write: postgres.WriteInsert})
	must(t, err)
	policy.Backoff, policy.MaxBackoff = time.Millisecond, 20*time.Millisecond
	r.in, err = inbox.New(inbox.Config[pgx.Tx]{
		Consumer: "route", Source: r.b.NewSource("route", inboxtest.StartGroup, "t"),
		Store:  postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{Table: to}),
		Effect: to, Memory: to.Memory(), OnError: policy, Reread: 50 * time.Millisecond,
		Observe: inbox.Observer{Error: func(class inbox.Class, err error) {
			code := ""
			var pg *pgconn.PgError
			if errors.As(err, &pg) {
				code = pg.Code
			}
			r.mu.Lock()
			r.met[strings.TrimSpace(class.String()+" "+code)]++
			r.mu.Unlock()
		}},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.done <- r.in.Run(ctx) }()
	t.Cleanup(cancel)
	return r
}

func (r *route) send(partition int32, values ...string) {
	for _, v := range values {
		r.b.Send(semel.Message{Topic: "t", Partition: partition, Value: []byte(v)})
	}
}

// until waits for a fact.
func (r *route) until(what string, fact func() bool) {
	r.t.Helper()
	for end := time.Now().Add(90 * time.Second); !fact(); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-r.done:
			r.t.Fatalf("until %s: Run answers %v", what, err)
		default:
		}
		if time.Now().After(end) {
			r.t.Fatalf("in vain until %s; met %v", what, r.failures())
		}
	}
}

func (r *route) failures() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]int{}
	for k, n := range r.met {
		out[k] = n
	}
	return out
}

func (r *route) settled(p int) int {
	r.t.Helper()
	return ask[int](r.t, r.c, "SELECT coalesce(max(next_offset), 0)::int FROM semel.watermark WHERE partition = $1", p)
}

func (r *route) stop() {
	r.t.Helper()
	r.in.Drain()
	must(r.t, <-r.done)
}

// dead are the letters: partition/offset, class, SQLSTATE, attempts.
func (r *route) dead() string {
	r.t.Helper()
	return ask[string](r.t, r.c, `SELECT coalesce(string_agg(concat_ws(' ', partition || '/' || "offset", class, sqlstate, attempts), ', ' ORDER BY partition, "offset"), '') FROM semel.dead_letter`)
}

func numbered(from, to int) (values []string) {
	for i := from; i < to; i++ {
		values = append(values, fmt.Sprintf(`{"id":%d}`, i))
	}
	return values
}

func TestATriggerThatRaisesBuriesItsMessage(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE t (id int PRIMARY KEY);
		CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id % 10 = 3 THEN RAISE 'nein, %', NEW.id; END IF; RETURN NEW; END $$;
		CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()`)
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{Share: -1})
	r.send(0, numbered(0, 30)...)
	r.until("all is settled", func() bool { return r.settled(0) == 30 })
	r.stop()
	if got := r.dead(); got != "0/3 handler P0001 1, 0/13 handler P0001 1, 0/23 handler P0001 1" {
		t.Error(got)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM t"); n != 27 {
		t.Errorf("%d rows", n)
	}
}

func TestAMessageThatEndsItsOwnSessionIsBuried(t *testing.T) {
	t.Parallel()
	aMessageEndsItsOwnSession(t, migrated(t))
}

func aMessageEndsItsOwnSession(t *testing.T, url string) {
	t.Helper()
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE t (id int PRIMARY KEY); CREATE SEQUENCE ended;
		CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 13 THEN PERFORM nextval('ended'), pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF; RETURN NEW; END $$;
		CREATE TRIGGER leave BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave()`)
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{})
	r.send(0, numbered(0, 20)...)
	r.send(1, numbered(20, 40)...)
	r.until("all is settled", func() bool { return r.settled(0) == 20 && r.settled(1) == 20 })
	r.stop()
	if got := r.dead(); got != "0/13 crash 10" {
		t.Error(got)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM t"); n != 39 {
		t.Errorf("%d rows", n)
	}
	if n, met := ask[int](t, c, "SELECT last_value::int FROM ended"), r.failures()["outage 57P01"]; n < 13 || met < 13 { // three in batches, ten alone
		t.Errorf("%d sessions ended, %d noticed", n, met)
	}
}

func TestTooManyConnectionsAreWaitedOut(t *testing.T) {
	t.Parallel()
	to := migrated(t)
	c := connect(t, to)
	role := "r" + strings.ToLower(strings.ReplaceAll(testenv.Unique(t), "-", "_"))
	role = role[max(0, len(role)-40):]
	exec1(t, c, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'x'", pgx.Identifier{role}.Sanitize()))
	t.Cleanup(func() {
		c := connectAside(t, to)
		defer c.Close(context.Background())
		_, _ = c.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", pgx.Identifier{role}.Sanitize()))
	})
	exec1(t, c, fmt.Sprintf("CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT, INSERT ON t TO %s", pgx.Identifier{role}.Sanitize()))
	exec1(t, c, postgres.GrantSQL("semel", role))
	u, err := url.Parse(to)
	must(t, err)
	u.User = url.UserPassword(role, "x")
	r := startRoute(t, c, u.String(), "t", inbox.ErrorPolicy{})
	r.send(0, numbered(0, 10)...)
	r.until("it runs", func() bool { return r.settled(0) == 10 })
	exec1(t, c, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT 0", pgx.Identifier{role}.Sanitize()))
	r.until("its session is ended", func() bool {
		return ask[int](t, c, "SELECT count(pg_terminate_backend(pid))::int FROM pg_stat_activity WHERE usename = $1", role) > 0
	})
	r.send(0, numbered(10, 20)...)
	r.until("it is refused", func() bool { return r.failures()["outage 53300"] > 3 })
	exec1(t, c, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT -1", pgx.Identifier{role}.Sanitize()))
	r.until("it goes on", func() bool { return r.settled(0) == 20 })
	r.stop()
	if rows, dead := ask[int](t, c, "SELECT count(*)::int FROM t"), r.dead(); rows != 20 || dead != "" {
		t.Errorf("%d rows, dead: %s", rows, dead)
	}
}

func connectAside(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	must(t, err)
	return c
}

// The file of the table is a device that is full: the server meets what a full disk
// says, where it writes.
func TestAFullDiskIsWaitedOut(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	migrate(t, server.URL(), "")
	c := connect(t, server.URL())
	exec1(t, c, "CREATE TABLE t (id int, PRIMARY KEY (id))")
	file := filepath.Join(server.Dir(), "data", ask[string](t, c, "SELECT pg_relation_filepath('t')"))
	exec1(t, c, "CHECKPOINT")
	must(t, os.Rename(file, file+".aside"))
	must(t, os.Symlink("/dev/full", file))
	r := startRoute(t, c, server.URL(), "t", inbox.ErrorPolicy{})
	r.send(0, numbered(0, 20)...)
	r.until("the disk is full", func() bool { return r.failures()["outage 53100"] > 4 })
	if n := r.settled(0); n != 0 {
		t.Errorf("settled to %d", n)
	}
	must(t, os.Rename(file+".aside", file))
	r.until("it goes on", func() bool { return r.settled(0) == 20 })
	r.stop()
	if rows, dead := ask[int](t, connect(t, server.URL()), "SELECT count(*)::int FROM t"), r.dead(); rows != 20 || dead != "" {
		t.Errorf("%d rows, dead: %s", rows, dead)
	}
}

// A row that another partition brings later is waited for, while other partitions go
// on; one that never comes makes its message dead after its attempts.
func TestAForeignKeyWhoseRowComesLaterHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, parent int REFERENCES parent)`)
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{Attempts: 100_000})
	r.send(0, `{"id":0}`, `{"id":1,"parent":7}`, `{"id":2}`)
	r.until("it is tried again", func() bool { return r.failures()["poison 23503"] > 3 })
	r.send(1, numbered(10, 20)...)
	r.until("the others go on", func() bool { return r.settled(1) == 10 })
	if n := r.settled(0); n != 1 {
		t.Errorf("its partition is at %d", n)
	}
	exec1(t, c, "INSERT INTO parent VALUES (7)")
	r.until("its row has come", func() bool { return r.settled(0) == 3 })
	r.stop()
	if rows, dead := ask[int](t, c, "SELECT count(*)::int FROM t"), r.dead(); rows != 13 || dead != "" {
		t.Errorf("%d rows, dead: %s", rows, dead)
	}
}

func TestAForeignKeyWhoseRowNeverComesIsDeadAfterItsAttempts(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, parent int REFERENCES parent)`)
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{Attempts: 4})
	r.send(0, `{"id":0}`, `{"id":1,"parent":7}`, `{"id":2}`, `{"id":3,"parent":8}`, `{"id":4}`)
	r.until("all is settled", func() bool { return r.settled(0) == 5 })
	r.stop()
	if got := r.dead(); got != "0/1 constraint 23503 4, 0/3 constraint 23503 4" {
		t.Error(got)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM t"); n != 3 {
		t.Errorf("%d rows", n)
	}
}
