package cases_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/lab"
)

const quick = "from: {topics: [TOPIC], session_timeout: 1s}"

// G1: a process dies between its COMMIT and its ack while another joins, again and again.
func TestKilledAfterCommitWhileAnotherJoins(t *testing.T) {
	t.Parallel()
	for way, lines := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			const rounds, each = 3, 300
			s := deltaScene(t, 3, way)
			route := s.route(append([]string{quick, "batch: {messages: 50}"}, lines...)...)
			plain := s.text(route)
			end := s.watch(3)
			for k := range rounds {
				rs := make([]*kgo.Record, each)
				for i := range rs {
					rs[i] = &kgo.Record{Partition: int32(i % 3), Value: []byte(delta(k*each + i))}
				}
				s.produce(rs...)
				p, err := lab.NewPostgresProxy(s.url)
				must(t, err)
				s.via = p.URL()
				// A batch's COMMIT, not a claim's: it follows a write of rows.
				var wrote bool
				held := p.Inject(lab.Fault{Do: lab.HoldAnswer, At: func(f lab.Frame) bool {
					wrote = wrote || strings.Contains(f.SQL, `"public"."d"`)
					return wrote && lab.IsCommit(f)
				}})
				child := s.spawn(nil, nil, s.text(route))
				s.via = s.url
				must(t, held.Wait(within(t), 1))
				other := s.spawn(nil, nil, plain)
				child.kill()
				p.Close()
				until(t, "the other one settled all", func() bool { return s.watermark(0)+s.watermark(1)+s.watermark(2) == int64((k+1)*each) })
				other.kill()
			}
			s.run(route)
			s.exact(rounds * each)
			end()
		})
	}
}

// G10: one message takes long and others are quick, in other lanes and behind it: the offset stays below it, also when
// the process is killed.
func TestALongMessageHoldsTheOffset(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 100} {
		t.Run(fmt.Sprint("batches of ", messages), func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 8, "append")
			s.exec("INSERT INTO acct VALUES (77)")
			route := s.route("from: {topics: [TOPIC], concurrency: 8}", "id: {fields: [value.mid]}", "to: {table: d, write: append}", fmt.Sprintf("batch: {messages: %d, time: 500ms}", messages))
			ctx := within(t)
			stranger, err := s.db.Begin(ctx)
			must(t, err)
			defer stranger.Rollback(ctx)
			_, err = stranger.Exec(ctx, "SELECT FROM acct WHERE id = 77 FOR UPDATE")
			must(t, err)
			for p := range int32(8) {
				for i := range 10 {
					v := fmt.Sprintf(`{"mid":"%d-%d","id":%d,"d":1}`, p, i, p)
					if p == 0 && i == 3 {
						v = `{"mid":"long","id":77,"d":1}`
					}
					s.produce(&kgo.Record{Partition: p, Value: []byte(v)})
				}
			}
			end := s.watch(8)
			child := s.spawn(nil, nil, s.text(route))
			until(t, "the quick ones are settled and acked", func() bool {
				for p := range int32(7) {
					if s.acked(p+1) != 10 {
						return false
					}
				}
				return true
			})
			if at := s.acked(0); at > 3 {
				t.Errorf("the group's offset is %d, message 3 isn't done", at)
			}
			child.kill()
			if at := s.acked(0); at > 3 {
				t.Errorf("after the kill the group's offset is %d", at)
			}
			must(t, stranger.Rollback(ctx))
			s.run(route)
			s.exact(80)
			end()
		})
	}
}

// G11: a process is stopped inside a batch, loses its partition, and goes on when the other one is far ahead: its batch
// and its ack are refused.
func TestALateBatchMovesNobodysOffset(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"COMMIT", "the rows"} {
		for _, way := range []string{"append, by place", "append, by inbox", "insert, by target"} {
			t.Run("at "+at+", "+way, func(t *testing.T) {
				t.Parallel()
				s := deltaScene(t, 1, way)
				route := s.route(append([]string{quick, "batch: {messages: 20}"}, ways[way]...)...)
				s.send(numbered(120, delta)...)
				s.run(route)
				s.send(numbered(100, func(i int) string { return delta(120 + i) })...)
				p, err := lab.NewPostgresProxy(s.url)
				must(t, err)
				defer p.Close()
				var copied bool
				held := p.Inject(lab.Fault{Do: lab.Hold, At: func(f lab.Frame) bool {
					rows := f.Kind == "CopyDone"
					copied = copied || rows
					return rows && at == "the rows" || copied && lab.IsCommit(f)
				}})
				s.via = p.URL()
				zombie := s.spawn(nil, nil, s.text(route))
				s.via = s.url
				must(t, held.Wait(within(t), 1))
				zombie.signal(syscall.SIGSTOP)
				end := s.watch(1)
				other := s.spawn(nil, nil, s.text(route))
				until(t, "the other one settled all", func() bool { return s.watermark(0) == 220 })
				s.send(numbered(280, func(i int) string { return delta(220 + i) })...)
				until(t, "and more, and acked it", func() bool { return s.acked(0) == 500 })
				zombie.signal(syscall.SIGCONT)
				held.Release()
				s.send(numbered(10, func(i int) string { return delta(500 + i) })...)
				until(t, "both go on", func() bool { return s.acked(0) == 510 })
				other.signal(syscall.SIGTERM)
				other.wait()
				s.send(numbered(10, func(i int) string { return delta(510 + i) })...)
				until(t, "the zombie works again", func() bool { return s.acked(0) == 520 })
				zombie.signal(syscall.SIGTERM)
				if code := zombie.wait(); code != 0 {
					t.Errorf("the zombie ended with %d", code)
				}
				end()
				s.exact(520)
			})
		}
	}
}

// G49: one commits after every message while another joins and leaves; the partitions that stay never stop, and nobody
// ends.
func TestAGuestThatComesAndGoesStopsNobody(t *testing.T) {
	t.Parallel()
	s := deltaScene(t, 4, "append")
	route := s.route(quick, "batch: {messages: 1}", "id: {fields: [value.mid]}", "to: {table: d, write: append}")
	end := s.watch(4)
	n := 0
	more := func() {
		rs := make([]*kgo.Record, 40)
		for i := range rs {
			rs[i] = &kgo.Record{Partition: int32(i % 4), Value: []byte(delta(n))}
			n++
		}
		s.produce(rs...)
	}
	stays := s.start(route)
	for k := range 8 {
		more()
		guest := s.start(route)
		until(t, "the guest has a partition", func() bool {
			return s.count("(SELECT DISTINCT owner->>'member' FROM semel.watermark WHERE owner IS NOT NULL) o") == 2
		})
		more()
		if k%2 == 0 { // sometimes in the middle
			until(t, "all is settled", func() bool { return s.count("d") == int64(n) })
		}
		guest.stop()
		stays.alive()
	}
	until(t, "all is settled", func() bool { return s.count("d") == int64(n) })
	until(t, "and acked", func() bool { return s.acked(0)+s.acked(1)+s.acked(2)+s.acked(3) == int64(n) })
	stays.stop()
	end()
	s.exact(n)
}

// G50: a clean stop under load finishes and acks what is in flight, and the next start is delivered nothing again.
func TestACleanStopRepeatsNothing(t *testing.T) {
	t.Parallel()
	for way, lines := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, way)
			route := s.route(append([]string{quick, "batch: {messages: 30}"}, lines...)...)
			stop, loaded := make(chan struct{}), make(chan int)
			go func() {
				n := 0
				for {
					select {
					case <-stop:
						loaded <- n
						return
					case <-time.After(5 * time.Millisecond):
						s.produce(&kgo.Record{Partition: int32(n % 2), Value: []byte(delta(n))}, &kgo.Record{Partition: int32((n + 1) % 2), Value: []byte(delta(n + 1))})
						n += 2
					}
				}
			}()
			for k := range 5 {
				was := s.watermark(0)
				child := s.spawn(nil, nil, s.text(route))
				until(t, "something is settled", func() bool { return s.watermark(0) > was+10 })
				child.signal(syscall.SIGTERM)
				if code := child.wait(); code != 0 {
					t.Errorf("stop %d: exit %d", k, code)
				}
				for p := range int32(2) {
					if at, next := s.acked(p), s.watermark(p); at != next {
						t.Errorf("stop %d: the group's offset of partition %d is %d, the watermark %d", k, p, at, next)
					}
				}
				s.want("SELECT count(*) FROM semel.watermark WHERE owner IS NOT NULL", "0")
			}
			close(stop)
			n := <-loaded
			s.run(route)
			s.exact(n)
			if got := s.outcomes(); got != fmt.Sprint(n, " applied") {
				t.Error(got)
			}
		})
	}
}

// G12: one instance becomes three and one again, under load: what was delivered to a former assignment moves no offset
// of the present one.
func TestTheNumberOfInstancesChanges(t *testing.T) {
	t.Parallel()
	s := deltaScene(t, 3, "append")
	route := s.route(quick, "batch: {messages: 20}", "id: {fields: [value.mid]}", "to: {table: d, write: append}")
	end := s.watch(3)
	n := 0
	more := func() {
		rs := make([]*kgo.Record, 150)
		for i := range rs {
			rs[i] = &kgo.Record{Partition: int32(i % 3), Value: []byte(delta(n))}
			n++
		}
		s.produce(rs...)
	}
	owners := func(want int64) func() bool {
		return func() bool {
			return s.count("(SELECT DISTINCT owner->>'member' FROM semel.watermark WHERE owner IS NOT NULL) o") == want
		}
	}
	stays := s.start(route)
	for range 3 {
		more()
		second, third := s.start(route), s.start(route)
		until(t, "each of three has a partition", owners(3))
		more()
		second.stop()
		more()
		third.stop()
		until(t, "one has them all again", owners(1))
		stays.alive()
	}
	until(t, "all is settled and acked", func() bool { return s.acked(0)+s.acked(1)+s.acked(2) == int64(n) })
	stays.stop()
	end()
	s.exact(n)
}
