package lab_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/lab"
)

func seedVariable() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("SEMEL_SEED"), 10, 64)
	return n
}

// soak is how long tests that can go on for ever do so; 0: not at all.
func soak(t testing.TB) time.Duration {
	v := os.Getenv("SEMEL_SOAK")
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	must(t, err)
	return d
}

// rounds is how often a fault is repeated: ten times as often where there is time.
func rounds(t testing.TB, n int) int {
	if soak(t) > 0 {
		return 10 * n
	}
	return n
}

var memories = []inbox.Memory{inbox.MemoryInbox, inbox.MemoryPosition}

func with(m inbox.Memory) func(*spec) { return func(s *spec) { s.Memory = m } }

// SIGKILL at every step of the loop; what a process can't stop at by itself (COMMIT or an ack under way) a proxy holds.
func TestKilledAtEveryStep(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, with(memory), func(s *spec) { s.Session = patientSession })
			db, throughDB := w.proxied()
			broker, throughBroker := w.kafkaProxied()
			var times []time.Duration
			killed := func(name string, stand func() *child) {
				if t.Failed() {
					return
				}
				w.sendAll(25)
				c := stand()
				c.kill()
				w.sendAll(2) // while an ack was held the rest may have been settled
				next := w.spawn()
				took := next.firstCommit()
				times = append(times, took)
				t.Logf("%v after a kill at: %s", took.Round(time.Millisecond), name)
				w.check()
				next.drain()
				if t.Failed() {
					t.Errorf("killed: %s", name)
				}
			}
			for _, at := range steps {
				if at == admitted && memory == inbox.MemoryPosition {
					continue // it admits nothing
				}
				killed(string(at), func() *child {
					nth := 2
					if at == claimed || at == joined || at == polled { // what comes after the first delivery may be read ahead
						nth = 1
					}
					c := w.spawn(stopAt(at, nth))
					c.says(sayStopped)
					return c
				})
			}
			for _, c := range []struct {
				name   string
				inject func(lab.Fault) *lab.Injection
				fault  lab.Fault
			}{
				{"COMMIT on its way", db.Inject, lab.Fault{At: lab.IsCommit, Do: lab.Hold, Skip: 3}},
				{"COMMIT executed, not answered", db.Inject, lab.Fault{At: lab.IsCommit, Do: lab.HoldAnswer, Skip: 3}},
				{"ack on its way", broker.Inject, lab.Fault{At: lab.Is("OffsetCommit"), Do: lab.Hold}},
				{"ack taken, not answered", broker.Inject, lab.Fault{At: lab.Is("OffsetCommit"), Do: lab.HoldAnswer}},
			} {
				killed(c.name, func() *child {
					i := c.inject(c.fault)
					p := w.spawn(throughDB, throughBroker)
					must(t, i.Wait(within(t), 1))
					t.Cleanup(i.Remove)
					return p
				})
			}
			report(t, times)
		})
	}
}

// patientSession is longer than any start takes on a busy machine: who waited for its end is found by that.
const patientSession = 90 * time.Second

// report says how long it took from a process's start to its first commit, its predecessor having been killed.
func report(t testing.TB, times []time.Duration) {
	t.Helper()
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	most := times[len(times)-1]
	t.Logf("first commit after SIGKILL: median %v, most %v, of %d", times[len(times)/2].Round(time.Millisecond), most.Round(time.Millisecond), len(times))
	if most > patientSession {
		t.Errorf("a first commit took %v: as long as the dead member's session", most)
	}
}

// Kills at random, with a load on; twenty, or as many as SEMEL_SOAK gives time for, with one to three processes.
func TestSoakKillsAtRandom(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			n := seed(t)
			r := rand.New(rand.NewPCG(n, 2))
			w := newWorld(t, 3, with(memory))
			kills, most := 10, 1
			end := time.Now().Add(soak(t))
			if soak(t) > 0 {
				kills, most = 1<<30, 3
			}
			stop := w.load(n, memory == inbox.MemoryInbox)
			alive := []*child{w.spawn(loud)}
			var times []time.Duration
			for k := range kills {
				if k > 0 && soak(t) > 0 && time.Now().After(end) {
					t.Logf("%d kills", k)
					break
				}
				victim := r.IntN(len(alive))
				c := alive[victim]
				lines := 1 + r.IntN(60)
				c.hears(fmt.Sprintf("%d lines", lines), func(said []string) bool { return len(said) >= lines })
				c.kill()
				alive = slices.Delete(alive, victim, victim+1)
				for len(alive) < 1+r.IntN(most) {
					alive = append(alive, w.spawn(loud, writing([]string{bySQL, byCopy, byOne}[r.IntN(3)])))
				}
				if most == 1 {
					times = append(times, alive[0].firstCommit())
				}
				if k%500 == 499 {
					stop()
					w.check()
					stop = w.load(n+uint64(k), memory == inbox.MemoryInbox)
				}
			}
			stop()
			w.check()
			report(t, times)
			for _, c := range alive {
				c.drain()
			}
		})
	}
}
