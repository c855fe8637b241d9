package lab_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/lab"
)

// A process that is stopped past its session is a zombie: another one takes over while it holds what it holds, and then
// it goes on.
func TestFrozenPastItsSession(t *testing.T) {
	for _, c := range []struct {
		at   step
		edit func(*spec)
	}{
		{polled, position},
		{begun, position},           // holds the row
		{admitted, writing(bySQL)},  // and IDs
		{inEffect, writing(byCopy)}, // in COPY: no time-out of the server fires
		{inEffect, writing(byOne)},  // in a handler
		{effected, position},        // before COMMIT
		{committed, func(*spec) {}}, // its ack comes late (G11)
		{claimed, func(s *spec) {}}, // before it has sought
		{acked, func(s *spec) { loud(s) }},
	} {
		s := spec{}
		c.edit(&s)
		t.Run(fmt.Sprintf("%s %s%s", c.at, s.Write, s.Memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, c.edit, shortSession, func(s *spec) { s.Lock = 300 * time.Millisecond })
			w.send(0, 45)
			nth := 2
			if c.at == claimed {
				nth = 1
			}
			zombie := w.spawn(stopAt(c.at, nth))
			zombie.says(sayStopped)
			zombie.freeze()
			heir := w.spawn()
			w.caughtUp()
			w.send(0, 20)
			w.caughtUp()
			zombie.thaw()
			must(t, zombie.tell())
			w.send(0, 20)
			w.check()
			// It is well again: the other one leaves, and it takes over.
			heir.drain()
			w.send(0, 10)
			w.check()
			w.ackedAll()
			zombie.drain()
			w.check()
		})
	}
}

// A process that runs a route to a table is stopped in the middle of the table writer's own COPY, part of its rows
// sent. The proxy only holds the rows back until the process stands still; from then on nothing but the process keeps
// the COPY open, and no time-out ends it: the heir's claim does.
func TestFrozenInTheTableWritersCOPY(t *testing.T) {
	for _, memory := range []inbox.Memory{inbox.MemoryPosition, inbox.MemoryInbox, inbox.MemoryTarget} {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, with(memory), writing(byTable), shortSession, func(s *spec) { s.Lock, s.Batch = 300*time.Millisecond, 120 })
			_, err := w.db.Exec(within(t), `ALTER TABLE effect ADD pad text;
				CREATE FUNCTION sum_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE acct SET bal = bal + NEW.d WHERE id = 0; RETURN NULL; END $$;
				CREATE TRIGGER sum_up AFTER INSERT ON effect FOR EACH ROW EXECUTE FUNCTION sum_up()`)
			must(t, err)
			if memory == inbox.MemoryTarget {
				_, err := w.db.Exec(within(t), "ALTER TABLE effect ADD PRIMARY KEY (mid)")
				must(t, err)
			}
			w.pad = strings.Repeat("x", 60<<10)
			w.send(0, 120) // more than sockets hold
			w.pad = ""
			db, throughDB := w.proxied()
			done := db.Inject(lab.Fault{At: inCOPY("CopyDone"), Do: lab.Hold, Times: -1})
			done.Release() // it counts, and holds nothing
			hold := db.Inject(lab.Fault{At: inCOPY("CopyData"), Do: lab.Hold, Skip: 5})
			zombie := w.spawn(throughDB)
			must(t, hold.Wait(within(t), 1))
			zombie.freeze()
			hold.Release()
			// The server has some of the rows, and waits for the rest.
			var pid int32
			until(t, "COPY has taken rows and waits for its client", func() bool {
				if done.Fired() != 0 {
					t.Fatal("all of the COPY was on its way before the process stood still")
				}
				err := w.db.QueryRow(within(t), `SELECT pid FROM pg_stat_progress_copy JOIN pg_stat_activity a USING (pid)
					WHERE relid = 'effect'::regclass AND command = 'COPY FROM' AND bytes_processed > 0 AND wait_event = 'ClientRead'`).Scan(&pid)
				return err == nil
			})
			heir := w.spawn()
			w.caughtUp()
			var ended, there int
			must(t, w.db.QueryRow(within(t), `SELECT (SELECT count(*) FROM semel.event WHERE kind = 'zombie-ended' AND (detail->>'pid')::int = $1),
				(SELECT count(*) FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&ended, &there))
			if ended != 1 || there != 0 {
				t.Errorf("%d events say that a claim ended the zombie's session, of which there is %d", ended, there)
			}
			if done.Fired() != 0 {
				t.Error("the zombie sent all of its COPY: it wasn't stopped inside of it")
			}
			w.send(0, 20)
			w.caughtUp()
			zombie.thaw()
			w.send(0, 20)
			w.check()
			// It is well again: the other one leaves, and it takes over.
			heir.drain()
			w.send(0, 10)
			w.check()
			w.ackedAll()
			zombie.drain()
			w.check()
		})
	}
}

// inCOPY holds for such messages of a COPY into the table of effects.
func inCOPY(kind string) func(lab.Frame) bool {
	inside := map[int]bool{}
	return func(f lab.Frame) bool {
		if f.Kind == "Query" && !f.Answer {
			inside[f.Conn] = strings.HasPrefix(f.SQL, "COPY") && strings.Contains(f.SQL, "effect")
		}
		return f.Kind == kind && !f.Answer && inside[f.Conn]
	}
}

// Processes come and go under load, by SIGTERM and by SIGKILL; the number of them goes from one to three and back
// (G12), and whoever stays goes on.
func TestProcessesComeAndGo(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			r := rand.New(rand.NewPCG(n, 3))
			w := newWorld(t, 3, with(memory), shortSession)
			stop := w.load(n, memory == "inbox")
			stays := w.spawn()
			stays.says(sayFirst)
			for range 3 {
				b, c := w.spawn(), w.spawn(writing(byCopy))
				b.says(sayFirst)
				c.says(sayFirst)
				for _, p := range []*child{b, c} {
					if r.IntN(2) == 0 {
						p.drain()
					} else {
						p.kill()
					}
				}
				w.settled(w.applied() + 20)
			}
			stop()
			w.check()
			stays.drain()
			w.check()
		})
	}
}

// One joins while another is killed between COMMIT and ack; again and again (G1).
func TestKilledBeforeItsAckWhileAnotherJoins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, shortSession, func(s *spec) { s.Batch = 50 })
	for range 10 {
		w.sendAll(250)
		a := w.spawn(stopAt(committed, 2))
		a.says(sayStopped)
		b := w.spawn()
		a.kill()
		b.says(sayFirst)
		w.caughtUp()
		b.kill()
	}
	w.spawn()
	w.check()
}

// A member commits after every message while another joins and leaves twenty times (G49).
func TestAcksThroughRebalances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, func(s *spec) { s.Batch = 1 }, shortSession)
	stays := w.run()
	stop := w.load(seed(t), false)
	for range 20 {
		guest := w.run()
		until(t, "the guest has settled something", func() bool { return guest.settled.Load() > 0 })
		n := stays.settled.Load()
		guest.drain()
		until(t, "the other one has gone on", func() bool { return stays.settled.Load() > n })
	}
	stop()
	w.check()
	w.ackedAll()
	select {
	case <-stays.done:
		t.Errorf("the member that stays has ended: %v", stays.err)
	default:
	}
}

// Nothing is delivered again after a clean stop, however often (G50).
func TestCleanStopsRepeatNothing(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, with(memory))
			stop := w.load(seed(t), false)
			for k := range 20 {
				if k%5 == 0 { // as a process; the others in this one
					c := w.spawn()
					c.says(sayFirst)
					c.drain()
					if c.hasSaid(sayRedelivered) {
						t.Errorf("process %d was delivered again what was settled", k)
					}
				} else {
					c := w.run()
					until(t, "something is settled", func() bool { return c.settled.Load() > 10 })
					c.drain()
					if n := c.redelivered.Load(); n > 0 {
						t.Errorf("run %d was delivered again %d messages", k, n)
					}
				}
				rows, err := w.rows(within(t))
				must(t, err)
				for p, r := range rows {
					if at := w.offset(p); at != r.next {
						t.Errorf("after stop %d the group's offset of partition %d is %d, the watermark %d", k, p, at, r.next)
					}
				}
			}
			stop()
			w.run()
			w.check()
		})
	}
}

// What was committed and not acked is acked by whoever claims next, though nothing new comes (else: lag for ever).
func TestLostAckIsMadeUpFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 10)
	c := w.spawn(stopAt(committed, 1))
	c.says(sayStopped)
	c.kill()
	if at := w.offset(0); at >= 10 {
		t.Fatalf("acked %d: the fault didn't fire", at)
	}
	w.run()
	w.ackedAll()
	w.check()
}

// The broker's answers get lost: acks, heartbeats, joins, fetches; and its connections are cut at random.
func TestConnectionToTheBrokerIsCut(t *testing.T) {
	for _, kind := range []string{"OffsetCommit", "Heartbeat", "JoinGroup", "SyncGroup", "Fetch", ""} {
		t.Run("at "+kind, func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			r := rand.New(rand.NewPCG(n, 4))
			w := newWorld(t, 2, func(s *spec) { s.Rebalance = 3 * time.Second })
			p, through := w.kafkaProxied()
			at := lab.Is(kind)
			often, times := 1.0, 2
			switch kind {
			case "JoinGroup", "SyncGroup": // each costs a session
				times = 1
			case "":
				at, often, times = func(f lab.Frame) bool { return !f.Answer }, 0.03, rounds(t, 4)
			}
			var all []*lab.Injection
			for _, do := range []lab.Action{lab.LoseAnswer, lab.CutBefore, lab.CutAfter} {
				all = append(all, p.Inject(lab.Fault{At: lab.Sometimes(r, often, at), Do: do, Times: times}))
			}
			stop := w.load(n, true)
			c := w.run(through, shortSession)
			until(t, "something is settled", func() bool { return c.settled.Load() > 0 })
			if kind == "JoinGroup" || kind == "SyncGroup" { // there are more of these when others come
				for all[2].Fired() < times {
					c.drain()
					c = w.run(through, shortSession)
					until(t, "something is settled", func() bool { return c.settled.Load() > 0 })
				}
			}
			for _, i := range all {
				must(t, i.Wait(within(t), times))
			}
			stop()
			w.check()
			w.ackedAll()
		})
	}
}
