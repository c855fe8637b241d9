package lab_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/lab"
)

// ownDatabase makes a world whose PostgreSQL may be killed.
func ownDatabase(t testing.TB, partitions int32, settings map[string]string, edit ...func(*spec)) (*world, *devenv.Postgres) {
	t.Helper()
	pg := testenv.OwnPostgres(t, settings)
	return makeWorld(t, testenv.Brokers(t), testenv.Topic(t, partitions), partitions, pg.URL(), edit...), pg
}

func TestPostgresIsKilledAndComesBack(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			w, pg := ownDatabase(t, 2, nil, with(memory))
			stop := w.load(n, memory == inbox.MemoryInbox)
			c := w.run()
			for k := range 3 {
				before := c.settled.Load()
				until(t, "something is settled", func() bool { return c.settled.Load() > before+20 })
				pg.Kill()
				if k == 2 { // and a process while it is gone
					other := w.spawn()
					until(t, "the outage is met", func() bool { return c.outages.Load() > 0 })
					other.kill()
				}
				must(t, pg.Start(within(t)))
			}
			stop()
			w.check()
			if c.outages.Load() == 0 {
				t.Error("nobody noticed that the database was gone")
			}
		})
	}
}

// G31: the connection ends before, at and after COMMIT, many times, and its answer comes late or never.
func TestConnectionIsCutAtCommit(t *testing.T) {
	for _, c := range []struct {
		do     lab.Action
		rounds int
	}{{lab.CutBefore, rounds(t, 20)}, {lab.CutAfter, rounds(t, 20)}, {lab.LoseAnswer, rounds(t, 25)}, {lab.Hold, 3}, {lab.HoldAnswer, 3}} {
		t.Run(fmt.Sprintf("%s COMMIT", c.do), func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			r := rand.New(rand.NewPCG(n, 5))
			memory := memories[r.IntN(2)]
			w := newWorld(t, 1, with(memory), func(s *spec) { s.Batch = 2 })
			p, through := w.proxied()
			i := p.Inject(lab.Fault{At: lab.Sometimes(r, 0.3, lab.IsCommit), Do: c.do, Times: c.rounds})
			stop := w.load(n, memory == inbox.MemoryInbox)
			one := w.run(through)
			switch c.do {
			case lab.Hold, lab.HoldAnswer:
				must(t, i.Wait(within(t), 1))
				// Nothing moves while it is held; then the connection ends, or the COMMIT goes through late.
				at := one.settled.Load()
				look := w.watch.samples.Load()
				until(t, "the watch has looked", func() bool { return w.watch.samples.Load() > look+5 })
				if now := one.settled.Load(); now != at {
					t.Errorf("settled %d more past a COMMIT without an answer", now-at)
				}
				i.Release()
			}
			must(t, i.Wait(within(t), c.rounds))
			stop()
			w.check()
		})
	}
}

// The connection is cut at any message of the protocol.
func TestConnectionIsCutAnywhere(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			r := rand.New(rand.NewPCG(n, 6))
			w := newWorld(t, 2, with(memory), writing(byCopy))
			p, through := w.proxied()
			anything := func(lab.Frame) bool { return true }
			times := rounds(t, 8)
			var all []*lab.Injection
			for _, do := range []lab.Action{lab.CutBefore, lab.CutAfter} {
				all = append(all, p.Inject(lab.Fault{At: lab.Sometimes(r, 0.004, anything), Do: do, Times: times}))
			}
			stop := w.load(n, memory == inbox.MemoryInbox)
			w.run(through)
			for _, i := range all {
				must(t, i.Wait(within(t), times))
			}
			stop()
			w.check()
		})
	}
}

// The database is put back from a copy while the consumer runs; one partition is idle from then on, and nothing but a
// look would notice.
func TestDatabaseIsPutBackUnderARunningConsumer(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w, pg := ownDatabase(t, 2, nil, with(memory))
			p, through := w.proxied()
			w.sendAll(30)
			c := w.run(through)
			w.caughtUp()
			copy := stoppedFor(t, pg, func() string { return copied(t, pg) })
			w.sendAll(40)
			w.caughtUp()
			w.ackedAll()
			p.Down()
			stoppedFor(t, pg, func() string { w.watch.goesBack(); return putBack(t, pg, copy) })
			rows, err := w.rows(within(t))
			must(t, err)
			if rows[0].next != 30 || rows[1].next != 30 {
				t.Fatalf("the database did not go back: %+v", rows)
			}
			p.Up()
			w.send(0, 10)
			w.check()
			select {
			case <-c.done:
				t.Errorf("the consumer has ended: %v", c.err)
			default:
			}
			w.ackedAll()
		})
	}
}

// The same where no connection breaks, as behind a pooler: only the compare at the next batch, and the look at rows of
// idle partitions, can notice.
func TestDatabaseGoesBackAndNoConnectionBreaks(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, with(memory))
			w.sendAll(30)
			c := w.run()
			w.caughtUp()
			ctx := within(t)
			tables := []string{"effect", "acct", "semel.watermark"}
			if memory == inbox.MemoryInbox {
				rows, err := w.db.Query(ctx, "SELECT DISTINCT relation::text FROM semel.generation")
				must(t, err)
				more, err := pgx.CollectRows(rows, pgx.RowTo[string])
				must(t, err)
				tables = append(tables, more...)
			}
			all := func(sql string) {
				must(t, pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
					for i, table := range tables {
						if _, err := tx.Exec(ctx, fmt.Sprintf(sql, table, i)); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			all("CREATE TABLE copy_%[2]d AS TABLE %[1]s")
			w.sendAll(40)
			w.caughtUp()
			w.ackedAll()
			w.watch.back(func() {
				all("DELETE FROM %[1]s; INSERT INTO %[1]s TABLE copy_%[2]d")
			})
			w.send(0, 10)
			w.check()
			if c.wentBack.Load() < 2 {
				t.Errorf("%d partitions were seen to have gone back", c.wentBack.Load())
			}
			if c.outages.Load() > 0 {
				t.Error("a connection broke: this test is about none that does")
			}
		})
	}
}

func stoppedFor[T any](t testing.TB, pg *devenv.Postgres, f func() T) T {
	t.Helper()
	must(t, pg.Stop(within(t)))
	defer func() { must(t, pg.Start(within(t))) }()
	return f()
}

func copied(t testing.TB, pg *devenv.Postgres) string {
	t.Helper()
	to := filepath.Join(pg.Dir(), "copy")
	run(t, "cp", "-a", filepath.Join(pg.Dir(), "data"), to)
	return to
}

func putBack(t testing.TB, pg *devenv.Postgres, copy string) string {
	t.Helper()
	run(t, "rm", "-rf", filepath.Join(pg.Dir(), "data"))
	run(t, "cp", "-a", copy, filepath.Join(pg.Dir(), "data"))
	return ""
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// A crash of the server forgets commits that were answered: synchronous_commit is off. The consumer isn't restarted.
func TestCrashForgetsCommits(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w, pg := ownDatabase(t, 2, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s"}, with(memory))
			p, through := w.proxied()
			w.sendAll(30)
			w.run(through)
			w.caughtUp()
			lost := false
			for range 3 {
				_, err := w.db.Exec(within(t), "SET synchronous_commit = on; CREATE TABLE IF NOT EXISTS flushed (); SELECT txid_current()")
				must(t, err)
				w.sendAll(40)
				w.caughtUp()
				w.ackedAll()
				before, err := w.rows(within(t))
				must(t, err)
				p.Down()
				pg.Kill()
				w.watch.goesBack()
				must(t, pg.Start(within(t)))
				after, err := w.rows(within(t))
				must(t, err)
				for n, r := range before {
					lost = lost || after[n].next < r.next
				}
				p.Up()
				w.send(0, 3)
				w.check()
			}
			if !lost {
				t.Error("no crash forgot anything: the fault didn't fire")
			}
		})
	}
}

// Restored to before the first claim: the signed acks alone know where this consumer began.
func TestRestoredToBeforeTheFirstClaim(t *testing.T) {
	for _, memory := range memories {
		for _, stopped := range []bool{true, false} {
			if stopped == (memory == inbox.MemoryInbox) && soak(t) == 0 {
				continue // two of the four will do
			}
			t.Run(fmt.Sprintf("%s stopped=%v", memory, stopped), func(t *testing.T) {
				t.Parallel()
				w, pg := ownDatabase(t, 2, nil, with(memory), latest)
				w.before(0, 5)
				empty := stoppedFor(t, pg, func() string { return copied(t, pg) })
				c := w.run()
				w.caughtUp()
				w.sendAll(20)
				w.caughtUp()
				w.ackedAll()
				if stopped {
					c.drain()
				}
				stoppedFor(t, pg, func() string { w.watch.goesBack(); return putBack(t, pg, empty) })
				w.send(1, 5)
				if stopped {
					w.run()
				}
				w.check()
			})
		}
	}
}

// before sends messages that nobody is to apply.
func (w *world) before(partition int32, n int) {
	w.t.Helper()
	for k := range n {
		w.produce1(partition, payload{ID: fmt.Sprintf("before-%d", k), Amount: 1000})
	}
}

// G9: the database is down, messages wait, the process is told to stop; later both come back.
func TestStoppedWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	w, pg := ownDatabase(t, 1, nil)
	w.send(0, 20)
	c := w.spawn()
	w.caughtUp()
	w.ackedAll()
	pg.Kill()
	w.send(0, 50)
	look := w.watch.samples.Load()
	until(t, "the watch has looked", func() bool { return w.watch.samples.Load() > look+10 })
	c.drain()
	if at := w.offset(0); at != 20 {
		t.Errorf("the group's offset is %d, and 20 messages were settled", at)
	}
	must(t, pg.Start(within(t)))
	w.spawn()
	w.check()
}

// G48: a row is locked by a stranger for far longer than the group's patience. Nothing is applied twice, nobody is put
// out for ever, and it goes on when the lock is gone.
func TestRowLockedByAStranger(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, with(memory), func(s *spec) {
				s.Lock, s.BatchTime = 200*time.Millisecond, 400*time.Millisecond
				s.Session, s.Rebalance = 2*time.Second, time.Second
				if testenv.RealKafka() {
					s.Session = 6 * time.Second
				}
			})
			w.sendAll(30)
			c := w.run()
			w.caughtUp()
			ctx := within(t)
			stranger, err := w.db.Begin(ctx)
			must(t, err)
			defer stranger.Rollback(context.Background())
			_, err = stranger.Exec(ctx, "SELECT FROM acct WHERE id = 0 FOR UPDATE")
			must(t, err)
			w.send(0, 30)
			began := time.Now()
			until(t, "the row is waited for", func() bool { return waiting(t, w) })
			w.send(1, 30)
			until(t, "six times the group's patience are over", func() bool { return time.Since(began) > 6*time.Second })
			if n := count(t, w, "effect WHERE mid IN (SELECT mid FROM effect GROUP BY mid HAVING count(*) > 1)"); n > 0 {
				t.Errorf("%d effects twice", n)
			}
			must(t, stranger.Rollback(ctx))
			w.check()
			select {
			case <-c.done:
				t.Errorf("the consumer has ended: %v", c.err)
			default:
			}
		})
	}
}

func waiting(t testing.TB, w *world) bool {
	return count(t, w, "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
}

func count(t testing.TB, w *world, from string) (n int) {
	t.Helper()
	rows, err := w.db.Query(within(t), "SELECT count(*) FROM "+from)
	must(t, err)
	n, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	must(t, err)
	return n
}

// G32: the server becomes read-only under the consumer. Nothing is buried, and it goes on by itself.
func TestReadOnlyForAWhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 20)
	c := w.run()
	w.caughtUp()
	operator, err := pgx.Connect(within(t), w.url)
	must(t, err)
	defer operator.Close(context.Background())
	readOnly := func(on string) { // for sessions that begin now
		_, err := operator.Exec(within(t), fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = %s", operator.Config().Database, on))
		must(t, err)
	}
	readOnly("on")
	_, err = operator.Exec(within(t), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	must(t, err)
	w.send(0, 20)
	until(t, "the outage is met", func() bool { return c.outages.Load() > 2 })
	readOnly("off")
	w.check()
}

// G5: a message that the database refuses costs its own dead letter, and no connection.
func TestRefusedMessageIsBuriedAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	_, err := w.db.Exec(within(t), "ALTER TABLE effect ADD CHECK (d < 1000)")
	must(t, err)
	w.send(0, 3)
	w.before(0, 1) // its amount is refused
	w.send(0, 20)
	c := w.run()
	w.caughtUp()
	if n := count(t, w, "semel.dead_letter WHERE sqlstate = '23514'"); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	if n := count(t, w, "effect"); n != 23 {
		t.Errorf("%d effects", n)
	}
	if c.outages.Load() > 0 {
		t.Error("a bad message was taken for an outage")
	}
	w.ackedAll()
}
