package lab_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/lab"
)

// lettered is a world whose first n messages were buried.
func lettered(t testing.TB, n int, edit ...func(*spec)) *world {
	t.Helper()
	w := newWorld(t, 1, edit...)
	w.send(0, n)
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m-%d", i+1))
	}
	c := w.run(func(s *spec) { s.Refused = all })
	w.caughtUp()
	c.drain()
	_, err := w.db.Exec(within(t), `CREATE TABLE closing (number bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO closing VALUES (NEW.number); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON semel.dead_letter FOR EACH ROW WHEN (NEW.closed_at IS NOT NULL) EXECUTE FUNCTION note()`)
	must(t, err)
	w.wantLetters(n, 0)
	return w
}

// mark marks the nth letter.
func (w *world) mark(n int) {
	w.t.Helper()
	tag, err := w.db.Exec(within(w.t), "UPDATE semel.dead_letter SET state = 'redrive' WHERE number = (SELECT min(number) FROM semel.dead_letter) + $1 AND state = 'buried'", n)
	must(w.t, err)
	if tag.RowsAffected() != 1 {
		w.t.Fatalf("letter %d can't be marked", n)
	}
}

// wantLetters wants n letters of which the first ones are redriven: each was applied, once, and closed once.
func (w *world) wantLetters(n, redriven int) {
	w.t.Helper()
	var got string
	must(w.t, w.db.QueryRow(within(w.t), `SELECT concat_ws(' ',
		(SELECT count(*) FROM semel.dead_letter), 'letters,', (SELECT count(*) FROM semel.dead_letter WHERE state = 'redriven' AND outcome = 'applied' AND attempts = 1), 'redriven,',
		(SELECT count(*) FROM closing), 'times closed,', (SELECT sum(redriven) FROM semel.watermark), 'counted,',
		(SELECT count(*) FROM effect), 'effects of', (SELECT count(DISTINCT mid) FROM effect), (SELECT sum(bal) - (SELECT coalesce(sum(d), 0) FROM effect) FROM acct), 'off')`).Scan(&got))
	want := strings.ReplaceAll(fmt.Sprintf("%d letters, R redriven, R times closed, R counted, R effects of R 0 off", n), "R", fmt.Sprint(redriven))
	if got != want {
		w.t.Errorf("there are %s; want %s", got, want)
	}
}

// redriven waits until no letter is marked.
func (w *world) redriven() {
	w.t.Helper()
	until(w.t, "no letter is marked", func() (done bool) {
		must(w.t, w.db.QueryRow(within(w.t), "SELECT NOT EXISTS (SELECT FROM semel.dead_letter WHERE state = 'redrive')").Scan(&done))
		return done
	})
}

// alone waits until nobody else has a session: those of killed processes end a moment later than they.
func (w *world) alone() {
	w.t.Helper()
	until(w.t, "nobody else has a session", func() (alone bool) {
		must(w.t, w.db.QueryRow(within(w.t), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> $1)`, ofWorld).Scan(&alone))
		return alone
	})
}

// closes holds for the COMMIT of a transaction that closes a letter.
func closes() func(lab.Frame) bool {
	inside := map[int]bool{}
	return func(f lab.Frame) bool {
		switch {
		case f.Answer:
		case strings.Contains(f.SQL, "SET state = 'redriven'"):
			inside[f.Conn] = true
		case lab.IsCommit(f) && inside[f.Conn]:
			inside[f.Conn] = false
			return true
		}
		return false
	}
}

// SIGKILL at every step of a redrive, by the owner between its batches and by a process that doesn't run the consumer:
// the letter's message takes effect once, and the letter is closed once.
func TestKilledAtEveryStepOfARedrive(t *testing.T) {
	for _, c := range []struct {
		memory inbox.Memory
		here   bool
	}{{inbox.MemoryInbox, false}, {inbox.MemoryPosition, false}, {inbox.MemoryInbox, true}} {
		t.Run(fmt.Sprintf("%s here %v", c.memory, c.here), func(t *testing.T) {
			t.Parallel()
			here := func(s *spec) { s.Here = c.here }
			kills := []struct {
				name    string
				at      step       // it stands still there
				do      lab.Action // or at COMMIT
				applied bool
			}{
				{at: redriving},
				{at: letterLocked},
				{at: readmitted},
				{at: inEffect},
				{at: closing},
				{name: "COMMIT on its way", do: lab.Hold},
				{name: "COMMIT executed, not answered", do: lab.HoldAnswer, applied: true},
				{at: closed, applied: true},
			}
			w := lettered(t, len(kills), with(c.memory), func(s *spec) { s.Session = patientSession })
			proxy, through := w.proxied()
			letters := 0 // redriven so far
			for _, k := range kills {
				if k.at == readmitted && c.memory == inbox.MemoryPosition {
					continue // it asks no memory
				}
				w.mark(letters)
				var p *child
				if k.at != "" {
					k.name = string(k.at)
					p = w.spawn(here, stopAt(k.at, 1))
					p.says(sayStopped)
				} else {
					i := proxy.Inject(lab.Fault{At: closes(), Do: k.do})
					p = w.spawn(here, through)
					must(t, i.Wait(within(t), 1))
				}
				p.kill()
				proxy.Cut() // what is on its way goes with the process
				w.alone()
				if k.applied {
					letters++
				}
				w.wantLetters(len(kills), letters)
				if !k.applied {
					letters++
				}
				w.redriveAgain(c.here)
				w.wantLetters(len(kills), letters)
				if t.Failed() {
					t.Fatalf("killed: %s", k.name)
				}
			}
			// The memory says applied: what a producer sends again is a repeat.
			if c.memory == inbox.MemoryInbox {
				w.repeat(rand.New(rand.NewPCG(seed(t), 5)), 0, 3*letters)
			}
			last := w.run()
			w.caughtUp()
			last.drain()
			w.wantLetters(len(kills), letters)
			w.watch.check()
		})
	}
}

// redriveAgain has what is marked handled by a process that nobody kills.
func (w *world) redriveAgain(here bool) {
	w.t.Helper()
	if !here {
		c := w.run()
		w.redriven()
		c.drain()
		return
	}
	c, err := w.spec(nil).build(func(step) {}, logger(w.t.Name()))
	must(w.t, err)
	defer c.pool.Close()
	must(w.t, c.Redrive(context.Background()))
	w.redriven()
}

// A process that is stopped in the middle of a redrive holds the letter and the row of its partition: a claim ends its
// session, the heir redrives, and when the process goes on it changes nothing.
func TestFrozenInTheMiddleOfARedrive(t *testing.T) {
	for _, here := range []bool{false, true} {
		for _, at := range []step{letterLocked, readmitted, closing} {
			t.Run(fmt.Sprintf("%s here %v", at, here), func(t *testing.T) {
				t.Parallel()
				w := lettered(t, 1, shortSession, func(s *spec) { s.Lock = 300 * time.Millisecond })
				w.mark(0)
				zombie := w.spawn(stopAt(at, 1), func(s *spec) { s.Here = here })
				zombie.says(sayStopped)
				zombie.freeze()
				heir := w.run()
				w.redriven()
				w.wantLetters(1, 1)
				var ended int
				must(t, w.db.QueryRow(within(t), "SELECT count(*) FROM semel.event WHERE kind = 'zombie-ended'").Scan(&ended))
				if ended != 1 {
					t.Errorf("%d events say that a claim ended the zombie's session", ended)
				}
				zombie.thaw()
				must(t, zombie.tell())
				if here {
					<-zombie.gone
				} else {
					zombie.drain()
				}
				w.wantLetters(1, 1)
				w.send(0, 5)
				w.caughtUp()
				heir.drain()
				w.once()
			})
		}
	}
}
