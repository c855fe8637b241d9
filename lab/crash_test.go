package lab_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// letters are the IDs of the dead letters of a class.
func (w *world) letters(class string) []string {
	w.t.Helper()
	rows, err := w.db.Query(within(w.t), "SELECT coalesce(message_id, '') FROM semel.dead_letter WHERE class = $1 ORDER BY number", class)
	must(w.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(w.t, err)
	return ids
}

// once checks that every message took effect once, but for those that are left out.
func (w *world) once(without ...string) {
	w.t.Helper()
	rows, err := w.db.Query(within(w.t), "SELECT mid FROM effect ORDER BY mid")
	must(w.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(w.t, err)
	var want []string
	for i := range w.next {
		if id := fmt.Sprintf("m-%d", i+1); !slices.Contains(without, id) {
			want = append(want, id)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("%d effects of %d messages", len(got), len(want))
	}
}

// over says whether all is settled, or the process is gone.
func (w *world) over(c *child) (settled bool) {
	w.t.Helper()
	ends := w.ends()
	until(w.t, "all is settled, or the process is gone", func() bool {
		rows, err := w.rows(within(w.t))
		must(w.t, err)
		settled = true
		for p, end := range ends {
			settled = settled && rows[p].next >= end
		}
		select {
		case <-c.gone:
			return true
		default:
			return settled
		}
	})
	return settled
}

func TestAMessageThatKillsTheProcessIsFoundAndBuried(t *testing.T) {
	for lanes, deploys := range map[int]bool{1: false, 8: true} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			t.Parallel()
			const deadly = "m-150" // in the middle of a batch, and of more than one delivery
			w := newWorld(t, int32(lanes), func(s *spec) { s.Deadly, s.Lanes, s.Batch = deadly, lanes, 200 })
			w.sendAll(160)
			if deploys { // a stop before anything was done, which takes nothing away that counts
				c := w.spawn(func(s *spec) { s.Deadly = "" }, stopAt(joined, 1))
				c.says(sayStopped)
				c.kill()
			}
			deaths := 0
			for ; ; deaths++ {
				if deaths > 12 {
					t.Fatal("it isn't found")
				}
				c := w.spawn()
				if w.over(c) {
					c.drain()
					break
				}
			}
			if got := w.letters("crash"); len(got) != 1 {
				t.Fatalf("buried: %q", got)
			}
			t.Logf("found after %d deaths", deaths)
			if deaths != 6 {
				t.Errorf("found after %d deaths, not 3 that make careful and 3 that are recorded", deaths)
			}
			w.once(deadly)
			w.send(0, 20) // and on, at its pace
			c := w.spawn()
			w.caughtUp()
			c.drain()
			w.once(deadly)
		})
	}
}

func TestKillsBuryNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.sendAll(150)
	kill := func(n int) {
		for range n {
			c := w.spawn(stopAt(inEffect, 1))
			c.says(sayStopped)
			c.kill()
		}
	}
	kill(3) // now it is careful
	for range 3 {
		kill(2) // of the same message
		c := w.spawn(stopAt(claimed, 1))
		c.says(sayStopped) // a deploy, before anything was settled
		c.signal(syscall.SIGTERM)
		must(t, c.tell())
		c.drain()
	}
	kill(4)       // careful again, and one is recorded
	for range 6 { // each at another message
		c := w.spawn(stopAt(inEffect, 3))
		c.says(sayStopped)
		c.kill()
	}
	c := w.spawn()
	w.check()
	c.drain()
	if got := w.letters("crash"); len(got) != 0 {
		t.Errorf("buried: %q", got)
	}
}

// Eight lanes in one process and a message that kills it. Between the deaths strangers
// kill it at a claim, before it has any message in hand, and once it is stopped cleanly.
func TestOnlyTheMessageThatKillsIsBuried(t *testing.T) {
	t.Parallel()
	const lanes, deadly = 8, "m-75" // in the middle of a partition
	w := newWorld(t, lanes, func(s *spec) { s.Deadly, s.Lanes, s.Batch = deadly, lanes, 20 })
	w.sendAll(50)
	for round := 0; ; round++ {
		if round > 12 {
			t.Fatal("it isn't found")
		}
		c := w.spawn() // dies of the message, or is done
		if w.over(c) {
			c.drain()
			break
		}
		k := w.spawn(stopAt(claimed, 1))
		k.says(sayStopped)
		if round == 1 {
			k.signal(syscall.SIGTERM)
			must(t, k.tell())
			<-k.gone // stopped, or dead of the message
		}
		k.kill()
	}
	if got := w.letters("crash"); len(got) != 1 {
		t.Errorf("buried: %q", got)
	}
	w.once(deadly)
}

// A lane that is careful tries a message, and that trial is open while another lane has the message that kills. It must
// wait for its turn, whether it is careful too or not yet; else the innocent one counts as one that processes died of.
func TestNobodyDiesWhileAnotherLanesMessageIsTried(t *testing.T) {
	for _, both := range []bool{true, false} {
		t.Run(fmt.Sprintf("both careful %v", both), func(t *testing.T) {
			t.Parallel()
			const innocent, deadly = "m-1", "m-2"
			w := newWorld(t, 2, func(s *spec) { s.Lanes = 2 })
			w.send(1, 1)
			if both {
				w.send(0, 1)
			}
			for range 3 { // each an unclean claim to the next one, where something is to be done
				c := w.spawn(stopAt(claimed, 2))
				c.says(sayStopped)
				c.kill()
			}
			waited := 0 // processes in which a lane had to
			for round := 0; ; round++ {
				if round > 12 {
					t.Fatal("it isn't found")
				}
				rows, err := w.rows(within(t))
				must(t, err)
				held := ""
				if rows[1].next == 0 {
					held = innocent
				}
				c := w.spawn(func(s *spec) { s.Held, s.Deadly = held, deadly })
				if !both && round == 0 { // not before it has claimed: nothing was to be done there, so it isn't careful
					c.says(sayHeld)
					w.send(0, 1)
				}
				over := w.over(c)
				if c.hasSaid(sayWaits) {
					waited++
				}
				if over {
					c.drain()
					break
				}
			}
			if waited != 1 {
				t.Errorf("in %d processes a lane had to wait until the other one's message was tried; want 1", waited)
			}
			var buried string
			must(t, w.db.QueryRow(within(t), "SELECT string_agg(message_id || ' ' || class, ', ') FROM semel.dead_letter").Scan(&buried))
			if want := deadly + " crash"; buried != want {
				t.Errorf("buried: %s; want %s", buried, want)
			}
			w.once(deadly)
		})
	}
}
