package lab_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semelhq/semel/inbox"
)

// The group's offsets are a hint: moved to 0, moved ahead, deleted while nobody ran. Their signature is ours.
func TestOffsetsAreOnlyAHint(t *testing.T) {
	for _, memory := range memories {
		for _, to := range []string{"0", "ahead", "deleted"} {
			t.Run(fmt.Sprintf("%s %s", memory, to), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2, with(memory))
				w.sendAll(30)
				w.run().drainWhen(w.caughtUp)
				w.sendAll(20)
				w.watch.offsetsMove(func() {
					if to == "deleted" {
						_, err := w.adm.DeleteGroup(within(t), w.group)
						must(t, err)
					} else {
						at := int64(0)
						if to == "ahead" {
							at = 45
						}
						w.moveOffsets(at, true)
					}
					w.run()
					w.caughtUp()
					w.ackedAll()
				})
				w.check()
			})
		}
	}
}

func (r *running) drainWhen(f func()) {
	r.t.Helper()
	f()
	r.drain()
}

func (w *world) moveOffsets(to int64, signed bool) {
	w.t.Helper()
	was, err := w.adm.FetchOffsets(within(w.t), w.group)
	must(w.t, err)
	var os kadm.Offsets
	was.Each(func(o kadm.OffsetResponse) {
		o.At = to
		if !signed {
			o.Metadata = ""
		}
		os.Add(o.Offset)
	})
	must(w.t, w.adm.CommitAllOffsets(within(w.t), w.group, os))
}

// An offset that somebody else wrote is somebody's decision: the consumer asks a person.
func TestForeignOffsetHalts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.send(0, 20)
	w.run().drainWhen(w.caughtUp)
	w.send(0, 5)
	w.watch.offsetsMove(func() {
		w.moveOffsets(3, false)
		c := w.run()
		<-c.done
		wantHalt(t, c.err, "foreign-offset")
	})
	if n := w.applied(); n != 20 {
		t.Errorf("%d applied after the halt, 20 before", n)
	}
}

func wantHalt(t testing.TB, err error, kind string) {
	t.Helper()
	var h *inbox.HaltError
	if !errors.As(err, &h) || h.Kind != kind {
		t.Fatalf("ended with %v instead of a halt of kind %s", err, kind)
	}
}

// G6: the topic is deleted and made again. With message IDs it is read from its beginning; where the position is the
// identity, a person is asked.
func TestTopicMadeAgain(t *testing.T) {
	for _, memory := range memories {
		for _, stopped := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stopped=%v", memory, stopped), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, with(memory))
				w.send(0, 50)
				c := w.run()
				w.caughtUp()
				w.ackedAll()
				if stopped {
					c.drain()
				}
				w.watch.offsetsMove(func() {
					must(t, errorOf(w.adm.DeleteTopics(within(t), w.topic)))
					var made kadm.CreateTopicResponse
					until(t, "it can be made again", func() bool {
						var err error
						made, err = w.adm.CreateTopic(within(t), 1, -1, map[string]*string{"retention.ms": kadm.StringPtr("3600000")}, w.topic)
						return err == nil
					})
					until(t, "the broker knows the new one, and takes nothing for the old one any more", func() bool {
						topics, err := w.adm.ListTopics(within(t), w.topic)
						must(t, err)
						p := topics[w.topic].Partitions[0]
						return topics[w.topic].ID == made.ID && p.Err == nil && p.Leader >= 0
					})
					w.cl.PurgeTopicsFromClient(w.topic)
					w.send(0, 10)
					if stopped {
						c = w.run()
					}
					if memory == inbox.MemoryPosition {
						<-c.done
						wantHalt(t, c.err, "topic-changed")
						return
					}
					until(t, "the new messages took effect", func() bool { return count(t, w, "effect") >= 60 })
				})
				if memory == inbox.MemoryInbox {
					w.check()
				}
			})
		}
	}
}

func errorOf(rs kadm.DeleteTopicResponses, err error) error {
	if err != nil {
		return err
	}
	return rs.Error()
}

// G7: retention overtakes a consumer that is stopped; what is gone is counted, what is there is applied.
func TestRetentionOvertakes(t *testing.T) {
	for _, memory := range memories {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, with(memory))
			w.send(0, 10)
			w.run().drainWhen(w.caughtUp)
			w.before(0, 15)
			w.send(0, 20)
			var os kadm.Offsets
			os.Add(kadm.Offset{Topic: w.topic, Partition: 0, At: 25})
			_, err := w.adm.DeleteRecords(within(t), os)
			must(t, err)
			w.run()
			w.check()
			rows, err := w.rows(within(t))
			must(t, err)
			if rows[0].lost != 15 {
				t.Errorf("%d counted as lost, retention took 15", rows[0].lost)
			}
		})
	}
}

// G13: offsets have holes; nothing waits for what compaction removed. DeleteRecords in the middle isn't possible, so
// the holes are markers of Kafka transactions, aborted messages, and a compacted log.
func TestHolesInTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	n := seed(t)
	r := rand.New(rand.NewPCG(n, 7))
	for k := range 10 {
		w.transaction(k, r.IntN(2) == 0)
		w.send(0, 1+r.IntN(5))
	}
	w.transaction(10, false) // the log ends in a marker
	w.run()
	w.check()
	w.ackedAll()
}

// G45: what was repeated is recognised, settled and acked, so that it isn't there any more.
func TestRepeatsAreSettledAndAcked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := rand.New(rand.NewPCG(seed(t), 8))
	w.send(0, 50)
	w.repeat(r, 0, 200)
	c := w.run()
	w.check()
	w.ackedAll()
	c.drain()
	again := w.run()
	w.send(0, 1)
	w.check()
	again.drain() // the row is visible before its consumer has counted it
	if n := again.settled.Load(); n != 1 {
		t.Errorf("%d settled after a restart, one was sent", n)
	}
}
