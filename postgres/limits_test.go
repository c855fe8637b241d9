package postgres_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// startOn migrates a server of the test's own, does what is to be done before a route
// begins, and starts it as a role.
func startOn(t *testing.T, server *devenv.Postgres, role string, before func(url string)) *route {
	t.Helper()
	migrate(t, server.URL(), "")
	c := connect(t, server.URL())
	exec1(t, c, "CREATE TABLE t (id int PRIMARY KEY)")
	if role != "postgres" {
		exec1(t, c, fmt.Sprintf("CREATE ROLE %s LOGIN; GRANT SELECT, INSERT ON t TO %[1]s", role))
		exec1(t, c, postgres.GrantSQL("semel", role))
	}
	url := strings.Replace(server.URL(), "postgres@", role+"@", 1) + "&application_name=route"
	before(url)
	return startRoute(t, c, url, "t", inbox.ErrorPolicy{})
}

// once says that messages took effect once and in their first try: one that was spent
// would have buried them.
func (r *route) once(n int) {
	r.t.Helper()
	const accounts = "SELECT concat_ws(' ', sum(settled), sum(applied), sum(duplicate), sum(dead)) || (SELECT format(' %s rows', count(*)) FROM t) FROM semel.watermark"
	if got, want := ask[string](r.t, r.c, accounts), fmt.Sprintf("%d %[1]d 0 0 %[1]d rows", n); got != want {
		r.t.Errorf("settled, applied, duplicates, dead: %s; want %s (%s)", got, want, r.dead())
	}
}

// endSessions ends a route's sessions and answers how many there were.
func endSessions(t *testing.T, c *pgx.Conn) int {
	t.Helper()
	return ask[int](t, c, "SELECT count(pg_terminate_backend(pid, 5000))::int FROM pg_stat_activity WHERE application_name = 'route' OR application_name LIKE 'semel/%'")
}

// crowd are connections of strangers, as many as the server has.
type crowd struct {
	t    *testing.T
	url  string
	held []*pgx.Conn
}

// fill takes what is free.
func (c *crowd) fill() {
	c.t.Helper()
	for {
		conn, err := pgx.Connect(context.Background(), c.url)
		if err != nil {
			if code := sqlStateOf(err); code != "53300" {
				c.t.Fatal(err)
			}
			return
		}
		c.held = append(c.held, conn)
	}
}

func (c *crowd) leave() {
	for _, conn := range c.held {
		conn.Close(context.Background())
	}
	c.held = nil
}

// A server that is full when a route begins, or that fills up while it runs, is waited
// for. What is left is kept for superusers, unless they have taken that too.
func TestAServerWithoutAFreeConnectionIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]string{"but for superusers": "worker", "for anybody": "postgres"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, map[string]string{
				"max_connections": "8", "superuser_reserved_connections": "3", "max_wal_senders": "0", "autovacuum": "off",
			})
			strangers := &crowd{t: t}
			t.Cleanup(strangers.leave)
			r := startOn(t, server, role, func(url string) {
				strangers.url = strings.Replace(url, "=route", "=stranger", 1)
				strangers.fill()
			})
			places := len(strangers.held)
			r.send(0, numbered(0, 10)...)
			r.until("it is refused at its start", func() bool { return r.failures()["outage 53300"] > 2 })
			strangers.leave()
			r.until("it runs", func() bool { return r.settled(0) == 10 })
			for strangers.fill(); len(strangers.held) < places; strangers.fill() {
				endSessions(t, r.c) // it may be faster than they are, and hold the place that it has left
			}
			r.send(0, numbered(10, 20)...)
			met := r.failures()["outage 53300"]
			r.until("it is refused again", func() bool { return r.failures()["outage 53300"] > met+2 })
			if n := r.settled(0); n != 10 {
				t.Errorf("settled to %d", n)
			}
			strangers.leave()
			r.until("it goes on", func() bool { return r.settled(0) == 20 })
			r.stop()
			r.once(20)
		})
	}
}

// A limit of the server's configuration that a statement meets is mended by whoever
// administers it.
func TestAConfiguredLimitIsWaitedOut(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE t (id int PRIMARY KEY);
		CREATE FUNCTION sorts() RETURNS trigger LANGUAGE plpgsql SET work_mem = '64kB' AS $$ BEGIN
			PERFORM count(*) FROM (SELECT FROM generate_series(1, 20000) n ORDER BY md5(n::text) OFFSET 0) s; RETURN NULL; END $$;
		CREATE TRIGGER sorts AFTER INSERT ON t EXECUTE FUNCTION sorts();
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET temp_file_limit = ''64kB''', current_database()); END $$`)
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{})
	r.send(0, numbered(0, 10)...)
	r.until("the limit is met", func() bool { return r.failures()["outage 53400"] > 4 })
	if n := r.settled(0); n != 0 {
		t.Errorf("settled to %d", n)
	}
	exec1(t, c, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET temp_file_limit', current_database()); END $$`)
	r.until("it goes on", func() bool { return r.settled(0) == 10 })
	r.stop()
	r.once(10)
}

// Where a process of the server dies all others are ended (57P02, as a warning before
// the connection is lost), and what they did is rolled back.
func TestACrashOfAnotherSessionIsWaitedOut(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	r := startOn(t, server, "postgres", func(url string) {
		exec1(t, connect(t, url), `CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
			CREATE TRIGGER waits AFTER INSERT ON t EXECUTE FUNCTION waits()`)
	})
	for round, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT} {
		exec1(t, r.c, "SELECT pg_advisory_lock(7)")
		r.send(0, numbered(10*round, 10*round+10)...)
		r.until("it has written and waits", func() bool {
			return ask[bool](t, r.c, "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
		})
		restarted := restarts(t, r.c)
		must(t, syscall.Kill(int(r.c.PgConn().PID()), signal))
		r.c = restarted()
		r.until("it goes on", func() bool { return r.settled(0) == 10*round+10 })
	}
	r.stop()
	r.once(20)
	if n := r.failures()["outage"]; n < 2 {
		t.Errorf("it met %v", r.failures())
	}
}

// restarts answers a connection to the server when its processes are others.
func restarts(t *testing.T, c *pgx.Conn) func() *pgx.Conn {
	t.Helper()
	const checkpointer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
	was := ask[int](t, c, checkpointer)
	return func() *pgx.Conn {
		for {
			c, err := pgx.ConnectConfig(t.Context(), c.Config())
			if err == nil {
				var is int
				if err = c.QueryRow(t.Context(), checkpointer).Scan(&is); err == nil && is != was {
					t.Cleanup(func() { c.Close(context.Background()) })
					return c
				}
				c.Close(t.Context())
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}
}

// A server that shuts down and lets its sessions finish takes no new one (57P03), and
// neither does one that hasn't started yet.
func TestAServerThatStartsOrShutsDownIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	r := startOn(t, server, "postgres", func(string) {})
	r.send(0, numbered(0, 10)...)
	r.until("it runs", func() bool { return r.settled(0) == 10 })
	must(t, syscall.Kill(server.PID(), syscall.SIGTERM))
	r.until("the server takes no session", func() bool {
		c, err := pgx.Connect(t.Context(), server.URL())
		if err == nil {
			c.Close(t.Context())
		}
		return sqlStateOf(err) == "57P03"
	})
	r.until("it is refused", func() bool { return endSessions(t, r.c) == 0 && r.failures()["outage 57P03"] > 0 })
	r.send(0, numbered(10, 20)...)
	met := r.failures()["outage 57P03"]
	r.until("it is refused again", func() bool { return r.failures()["outage 57P03"] > met+2 })
	if n := r.settled(0); n != 10 {
		t.Errorf("settled to %d", n)
	}
	exec1(t, r.c, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
	r.c.Close(t.Context()) // the last
	<-server.Done()

	// Recovery asks for a file of the archive, which takes as long as ours is there.
	data, holds := filepath.Join(server.Dir(), "data"), filepath.Join(server.Dir(), "holds")
	for name, text := range map[string]string{
		holds:                                  "",
		filepath.Join(data, "recovery.signal"): "",
		filepath.Join(data, "postgresql.auto.conf"): fmt.Sprintf("restore_command = 'while test -e \"%s\"; do sleep 0.01; done; false'\n", holds),
	} {
		must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	t.Cleanup(func() { os.Remove(holds) })
	met = r.failures()["outage 57P03"]
	started := make(chan error, 1)
	go func() { started <- server.Start(context.Background()) }()
	r.until("it is refused while the server starts", func() bool { return r.failures()["outage 57P03"] > met+2 })
	select {
	case err := <-started:
		t.Fatalf("the server has started: %v", err)
	default:
	}
	must(t, os.Remove(holds))
	must(t, <-started)
	r.c = connect(t, server.URL())
	r.until("it goes on", func() bool { return r.settled(0) == 20 })
	r.stop()
	r.once(20)
}
