package cases_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/lab"
)

// deltas is a table whose rows add up: an effect made twice is a number too large.
const deltas = `CREATE TABLE acct (id int PRIMARY KEY, bal bigint NOT NULL DEFAULT 0); INSERT INTO acct SELECT generate_series(0, 9);
	CREATE TABLE d (mid text, id int, d int);
	CREATE FUNCTION add() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE acct SET bal = bal + NEW.d WHERE id = NEW.id; RETURN NEW; END $$;
	CREATE TRIGGER add AFTER INSERT ON d FOR EACH ROW EXECUTE FUNCTION add()`

func delta(i int) string { return fmt.Sprintf(`{"mid":"m%d","id":%d,"d":1}`, i, i%10) }

// ways are what remembers, and how rows are written.
var ways = map[string][]string{
	"append, by place":  {"id: {position: true}", "to: {table: d, write: append}"},
	"append, by inbox":  {"id: {fields: [value.mid]}", "to: {table: d, write: append}"},
	"insert, by target": {"id: {fields: [value.mid]}", "to: {table: d, write: insert}"},
	"upsert, by inbox":  {"id: {fields: [value.mid, value.id]}", "to: {table: d, write: upsert}"},
}

// deltaScene fits the way: inserts and upserts need a key.
func deltaScene(t *testing.T, partitions int32, way string) *scene {
	t.Helper()
	s := newScene(t, partitions, deltas)
	if !strings.HasPrefix(way, "append") {
		s.exec("ALTER TABLE d ADD PRIMARY KEY (mid)")
	}
	return s
}

func (s *scene) exact(n int) {
	s.t.Helper()
	s.want("SELECT (SELECT sum(bal) FROM acct) || ' ' || (SELECT count(*) FROM d) || ' ' || (SELECT count(DISTINCT mid) FROM d)", fmt.Sprintf("%d %d %d", n, n, n))
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	s.sums()
}

// G31: COMMIT's answer is lost, COMMIT itself is, or it comes and the connection ends: the memory says whether it was
// done; nothing is done twice, and nothing is refused as a duplicate that wasn't done.
func TestCommitsWithoutAnAnswerAreSortedOut(t *testing.T) {
	t.Parallel()
	for _, do := range []lab.Action{lab.LoseAnswer, lab.CutBefore, lab.CutAfter} {
		for way, lines := range ways {
			if do != lab.LoseAnswer && way != "append, by inbox" {
				continue
			}
			t.Run(do.String()+" COMMIT, "+way, func(t *testing.T) {
				t.Parallel()
				const n, rounds = 400, 8
				s := deltaScene(t, 1, way)
				p := s.proxied()
				s.send(numbered(n, delta)...)
				// Those that claim are the first, and are lost as well.
				lost := p.Inject(lab.Fault{At: func(f lab.Frame) bool { return lab.IsCommit(f) }, Do: do, Skip: 2, Times: rounds})
				r := s.start(s.route(append([]string{"batch: {messages: 10}"}, lines...)...))
				until(t, "all is settled", func() bool { return s.watermark(0) == n })
				r.stop()
				if lost.Fired() < rounds {
					t.Errorf("the fault fired %d times", lost.Fired())
				}
				s.exact(n)
				if got := s.outcomes(); got != fmt.Sprint(n, " applied") {
					t.Error(got)
				}
			})
		}
	}
}

// G9: the database is gone for longer than anything is tried, the process is told to stop meanwhile, and nothing was
// acked that wasn't stored.
func TestAnOutageAndAStopLoseNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"refused", "silent", "refused before the start"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, "append")
			end := s.watch(2)
			p := s.proxied()
			route := s.route("id: {fields: [value.mid]}", "to: {table: d, write: append}", "from: {topics: [TOPIC], session_timeout: 1s}")
			text := s.text(route)
			s.send(numbered(20, delta)...)
			child := s.spawn(nil, nil, text)
			// Rows are seen before COMMIT's answer is: only an ack says that the member knows of them.
			until(t, "the first ones took effect and were acked", func() bool { return s.count("d") == 20 && s.acked(0) == 20 })
			if how == "silent" {
				p.Silence(true)
			} else {
				p.Down()
			}
			s.send(numbered(50, func(i int) string { return delta(100 + i) })...)
			if how == "refused before the start" {
				child.kill()
				if code := s.spawn(nil, nil, text).wait(); code != 3 {
					t.Errorf("exit %d without a database", code)
				}
			} else {
				time.Sleep(3 * time.Second) // past the session's patience
				child.signal(syscall.SIGTERM)
				child.wait()
			}
			if at := s.acked(0); at != 20 {
				t.Errorf("the group's offset is %d, 20 messages were stored", at)
			}
			if how == "silent" {
				p.Speak()
				p.Cut()
			} else {
				p.Up()
			}
			s.run(route)
			s.exact(70)
			end()
		})
	}
}

// G32: the server is demoted, sessions stay open and refuse every write; who connects anew reaches one that takes
// them. Nothing is buried, and it goes on by itself.
func TestADemotedServerIsLeft(t *testing.T) {
	t.Parallel()
	pg := testenv.OwnPostgres(t, nil)
	for way, lines := range ways {
		t.Run(way, func(t *testing.T) {
			s := makeScene(t, testenv.Brokers(t), testenv.Topic(t, 1), freshDatabase(t, pg.URL()), deltas)
			if !strings.HasPrefix(way, "append") {
				s.exec("ALTER TABLE d ADD PRIMARY KEY (mid)")
			}
			operator := operate(t, s.url)
			r := s.start(s.route(append([]string{"batch: {messages: 10}"}, lines...)...))
			s.send(numbered(20, delta)...)
			until(t, "the first ones took effect", func() bool { return s.watermark(0) == 20 })
			// What an open session follows, and what one that begins now does.
			operator("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
			defer operator("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
			until(t, "open sessions are read-only", func() bool { return s.ask("SELECT current_setting('default_transaction_read_only')") == "on" })
			s.send(numbered(20, func(i int) string { return delta(100 + i) })...)
			until(t, "a write was refused", func() bool {
				return s.count("pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'semel%' AND backend_start > now() - interval '1 second'") > 0
			})
			if n := s.watermark(0); n != 20 {
				t.Errorf("the watermark is %d while nothing can be written", n)
			}
			operator(fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = off", s.ask("SELECT current_database()")))
			until(t, "it goes on", func() bool { return s.watermark(0) == 40 })
			if got := s.ask("SELECT current_setting('default_transaction_read_only')"); got != "on" {
				t.Errorf("the old sessions became writable: %s", got)
			}
			r.alive()
			r.stop()
			s.exact(40)
		})
	}
}

func freshDatabase(t *testing.T, server string) string {
	t.Helper()
	c, err := pgx.Connect(within(t), server)
	must(t, err)
	defer c.Close(context.Background())
	name := "d" + strings.ToLower(strings.ReplaceAll(testenv.Unique(t)[len(testenv.Unique(t))-8:], "-", "x"))
	_, err = c.Exec(within(t), "CREATE DATABASE "+name)
	must(t, err)
	return server[:strings.LastIndex(server, "/")] + "/" + name
}

// operate runs statements in a session that may write whatever happens.
func operate(t *testing.T, url string) func(...string) {
	t.Helper()
	c, err := pgx.Connect(within(t), url)
	must(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return func(statements ...string) {
		t.Helper()
		for _, sql := range append([]string{"SET default_transaction_read_only = off"}, statements...) {
			_, err := c.Exec(within(t), sql)
			must(t, err)
		}
	}
}

// G48: what a stranger holds for far longer than session, lock time-out and batch is waited for; the member stays,
// other partitions flow as soon as they can, and the effect is made once.
func TestALockThatOutlastsEverythingIsNoLivelock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lock, more string
		lines      []string
	}{
		"a row, by an update":       {"SELECT FROM d WHERE mid = 'm7' FOR UPDATE", "ALTER TABLE d ADD PRIMARY KEY (mid); INSERT INTO d (mid, id, d) VALUES ('m7', 7, 0)", ways["upsert, by inbox"]},
		"a key that isn't there":    {"INSERT INTO d VALUES ('m7', 7, 0)", "ALTER TABLE d ADD PRIMARY KEY (mid)", ways["insert, by target"]},
		"another table, by trigger": {"SELECT FROM acct WHERE id = 7 FOR UPDATE", "", ways["append, by inbox"]},
		"the whole table":           {"LOCK TABLE d", "", ways["append, by place"]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2, deltas)
			if c.more != "" {
				s.exec(c.more)
			}
			ctx := within(t)
			conn, err := pgx.Connect(ctx, s.url)
			must(t, err)
			defer conn.Close(context.Background())
			stranger, err := conn.Begin(ctx)
			must(t, err)
			_, err = stranger.Exec(ctx, c.lock)
			must(t, err)
			end := s.watch(2)
			r := s.start(s.route(append([]string{"batch: {messages: 10, time: 300ms}", "from: {topics: [TOPIC], session_timeout: 1s}"}, c.lines...)...))
			s.send(numbered(20, delta)...)
			waits := func() bool {
				return s.count("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
			}
			until(t, "it waits for the lock", waits)
			began := time.Now()
			until(t, "six sessions are over", func() bool { return time.Since(began) > 6*time.Second })
			if n := s.watermark(0); n > 7 {
				t.Errorf("the watermark is %d, the lock holds at 7", n)
			}
			must(t, stranger.Rollback(ctx))
			until(t, "all is settled", func() bool { return s.watermark(0) == 20 })
			r.alive()
			r.stop()
			end()
			s.want("SELECT count(DISTINCT mid) || ' ' || count(*) FROM d", "20 20")
			s.want("SELECT count(*) FROM semel.dead_letter", "0")
			s.want("SELECT max(bal) FROM acct", "2")
		})
	}
}
