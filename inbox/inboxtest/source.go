package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// SourceWorld is a broker with one fresh topic for one test of [TestSource].
type SourceWorld struct {
	Topic string // of two partitions
	// New makes a member of a group that reads the topic from its group's offset,
	// else from the beginning.
	New func(group string) inbox.Source
	// Send appends messages to the partitions that they name.
	Send func(ms ...semel.Message)
}

// TestSource is what every [inbox.Source] must do.
func TestSource(t *testing.T, world func(t *testing.T) SourceWorld) {
	for _, c := range []struct {
		name string
		test func(w *sourceTest)
	}{
		{"NothingIsDeliveredBeforeASeek", (*sourceTest).gains},
		{"RunsJoinWithoutAGap", (*sourceTest).joins},
		{"MoreGoesOnWhereADeliveryEnds", (*sourceTest).goesOn},
		{"MoreGivesWayToPoll", (*sourceTest).givesWay},
		{"SeekDeliversAgainExactly", (*sourceTest).seeks},
		{"HoldStopsUntilTheNextSeek", (*sourceTest).holds},
		{"PollOfNoneDeliversNone", (*sourceTest).pollsNone},
		{"PollEndsWithItsContext", (*sourceTest).ends},
		{"AckIsSignedAndNeverGoesBack", (*sourceTest).acks},
		{"SignMayLowerAndCoversAllPartitions", (*sourceTest).signs},
		{"WitnessKnowsAllPartitions", (*sourceTest).witnesses},
		{"UnknownTopicIsNamed", (*sourceTest).unknown},
		{"MembersShareAndTakeOver", (*sourceTest).shares},
		{"EvictedMemberFreesItsPartitions", (*sourceTest).evicts},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &sourceTest{t: t, SourceWorld: world(t)}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			w.ctx = ctx
			c.test(w)
		})
	}
}

type sourceTest struct {
	SourceWorld
	t   *testing.T
	ctx context.Context
}

func (w *sourceTest) new(group string) inbox.Source {
	s := w.New(group)
	w.t.Cleanup(s.Close)
	return s
}

func (w *sourceTest) p(n int32) semel.Partition { return semel.Partition{Topic: w.Topic, Number: n} }

func (w *sourceTest) send(partition int32, from, to int) {
	for i := from; i < to; i++ {
		w.Send(semel.Message{
			Topic: w.Topic, Partition: partition, Key: []byte("k"), Value: []byte(fmt.Sprint(i)),
			Headers: []semel.Header{{Name: "n", Value: []byte(fmt.Sprint(i))}},
		})
	}
}

// poll polls once, for a while.
func (w *sourceTest) poll(s inbox.Source, limit int, wait time.Duration) inbox.Delivery {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, wait)
	defer cancel()
	d, err := s.Poll(ctx, limit)
	if err != nil {
		w.t.Fatalf("poll: %v", err)
	}
	return d
}

// join polls until both partitions are gained.
func (w *sourceTest) join(s inbox.Source, want int) {
	w.t.Helper()
	var have []semel.Partition
	for len(have) < want {
		d := w.poll(s, 100, time.Second)
		have = append(have, d.Gained...)
		have = slices.DeleteFunc(have, func(p semel.Partition) bool { return slices.Contains(d.Lost, p) })
		if w.ctx.Err() != nil {
			w.t.Fatalf("gained %v, want %d partitions", have, want)
		}
	}
}

func (w *sourceTest) seek(s inbox.Source, p semel.Partition, next int64) {
	w.t.Helper()
	if err := s.Seek(w.ctx, []inbox.Mark{{Partition: p, Next: next}}); err != nil {
		w.t.Fatalf("seek: %v", err)
	}
}

// read polls until a partition's run ends at an offset, and checks that runs
// join.
func (w *sourceTest) read(s inbox.Source, p semel.Partition, from, to int64, limit int) []semel.Message {
	w.t.Helper()
	var out []semel.Message
	at := from
	for at < to {
		d := w.poll(s, limit, time.Second)
		for _, r := range d.Runs {
			if r.Partition != p {
				w.t.Fatalf("a run of %s", r.Partition)
			}
			if r.From != at {
				w.t.Fatalf("a run from %d after one to %d", r.From, at)
			}
			if len(r.Messages) > limit {
				w.t.Fatalf("%d messages, at most %d were asked for", len(r.Messages), limit)
			}
			for _, m := range r.Messages {
				if m.Offset < r.From || m.Offset >= r.To || m.Topic != p.Topic || m.Partition != p.Number {
					w.t.Fatalf("a message at %s in a run of %s from %d to %d", m.Position(), p, r.From, r.To)
				}
				m.Value = slices.Clone(m.Value)
				out = append(out, m)
			}
			at = r.To
		}
		if w.ctx.Err() != nil {
			w.t.Fatalf("read to %d, want %d", at, to)
		}
	}
	return out
}

func (w *sourceTest) wantValues(ms []semel.Message, from, to int) {
	w.t.Helper()
	if len(ms) != to-from {
		w.t.Fatalf("%d messages, want %d", len(ms), to-from)
	}
	for i, m := range ms {
		if string(m.Value) != fmt.Sprint(from+i) {
			w.t.Fatalf("message %d says %s, want %d", i, m.Value, from+i)
		}
	}
}

func (w *sourceTest) gains() {
	w.send(0, 0, 5)
	s := w.new("g")
	w.join(s, 2)
	if d := w.poll(s, 100, 200*time.Millisecond); len(d.Runs) > 0 {
		w.t.Errorf("delivered before a seek: %+v", d.Runs)
	}
	w.seek(s, w.p(0), 2)
	ms := w.read(s, w.p(0), 2, 5, 100)
	w.wantValues(ms, 2, 5)
	if v, ok := ms[0].Header("n"); !ok || string(v) != "2" {
		w.t.Errorf("header: %q", v)
	}
}

func (w *sourceTest) joins() {
	w.send(0, 0, 20)
	s := w.new("g")
	w.join(s, 2)
	w.seek(s, w.p(0), 0)
	w.wantValues(w.read(s, w.p(0), 0, 20, 3), 0, 20)
	w.send(0, 20, 25)
	w.wantValues(w.read(s, w.p(0), 20, 25, 3), 20, 25)
}

// more asks until something comes.
func (w *sourceTest) more(s inbox.Source, limit int) []inbox.Run {
	w.t.Helper()
	for w.ctx.Err() == nil {
		if runs := s.More(limit); len(runs) > 0 {
			return runs
		}
		time.Sleep(time.Millisecond)
	}
	w.t.Fatal("there is no more")
	return nil
}

func (w *sourceTest) goesOn() {
	w.send(0, 0, 40)
	s := w.new("g")
	w.join(s, 2)
	w.seek(s, w.p(0), 0)
	at := int64(0)
	var before []semel.Message // of the delivery before
	take := func(runs []inbox.Run) {
		w.t.Helper()
		if len(runs) != 1 || runs[0].From != at || runs[0].Partition != w.p(0) || len(runs[0].Messages) > 7 {
			w.t.Fatalf("runs after %d: %+v", at, runs)
		}
		for i, m := range before {
			if want := fmt.Sprint(m.Offset); string(m.Value) != want || string(m.Headers[0].Value) != want {
				w.t.Fatalf("message %d of the delivery before says %s now", i, m.Value)
			}
		}
		w.wantValues(runs[0].Messages, int(at), int(runs[0].To))
		at, before = runs[0].To, runs[0].Messages
	}
	for at == 0 {
		if d := w.poll(s, 7, time.Second); len(d.Runs) > 0 {
			take(d.Runs)
		}
		if w.ctx.Err() != nil {
			w.t.Fatal("nothing came")
		}
	}
	for at < 40 {
		take(w.more(s, 7))
	}
	if runs := s.More(7); len(runs) > 0 {
		w.t.Errorf("more than was sent: %+v", runs)
	}
	// Hold and Seek are as after a Poll.
	s.Hold([]semel.Partition{w.p(0)})
	w.send(0, 40, 45)
	w.send(1, 0, 1)
	w.seek(s, w.p(1), 0)
	if runs := w.more(s, 7); runs[0].Partition == w.p(0) {
		w.t.Fatalf("of a held partition: %+v", runs)
	}
	w.seek(s, w.p(0), 38)
	w.wantValues(w.read(s, w.p(0), 38, 45, 100), 38, 45)
}

func (w *sourceTest) givesWay() {
	a, b := w.new("g"), w.new("g")
	w.join(a, 2)
	w.send(0, 0, 5)
	w.send(1, 0, 5)
	w.seek(a, w.p(0), 0)
	w.seek(a, w.p(1), 0)
	w.more(a, 1)
	// b wants a partition: a hands out what it has only until it has heard of it.
	var lost bool
	go func() {
		for w.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
			d, err := b.Poll(ctx, 10)
			cancel()
			if err != nil || len(d.Gained) > 0 {
				return
			}
		}
	}()
	at := map[semel.Partition]int64{}
	n := 5
	for !lost {
		for _, r := range a.More(1) {
			at[r.Partition] = r.To
			n++
			w.send(r.Partition.Number, n, n+1) // there is always more
		}
		time.Sleep(time.Millisecond)
		if a.More(0) != nil {
			w.t.Fatal("more than none")
		}
		if len(a.More(1)) == 0 { // gives way, or is between two fetches
			d := w.poll(a, 1, 20*time.Millisecond)
			lost = len(d.Lost) > 0
		}
		if w.ctx.Err() != nil {
			w.t.Fatal("never gave way")
		}
	}
}

func (w *sourceTest) seeks() {
	w.send(0, 0, 30)
	s := w.new("g")
	w.join(s, 2)
	w.seek(s, w.p(0), 0)
	w.read(s, w.p(0), 0, 5, 5) // the rest may be fetched already
	for _, at := range []int64{2, 20, 0} {
		w.seek(s, w.p(0), at)
		w.wantValues(w.read(s, w.p(0), at, 30, 7), int(at), 30)
	}
}

func (w *sourceTest) holds() {
	w.send(0, 0, 10)
	s := w.new("g")
	w.join(s, 2)
	w.seek(s, w.p(0), 0)
	w.read(s, w.p(0), 0, 4, 4)
	s.Hold([]semel.Partition{w.p(0)})
	if d := w.poll(s, 100, 200*time.Millisecond); len(d.Runs) > 0 {
		w.t.Errorf("delivered while held: %+v", d.Runs)
	}
	w.seek(s, w.p(0), 4)
	w.wantValues(w.read(s, w.p(0), 4, 10, 100), 4, 10)
}

func (w *sourceTest) pollsNone() {
	w.send(0, 0, 10)
	s := w.new("g")
	w.join(s, 2)
	w.seek(s, w.p(0), 0)
	if d := w.poll(s, 0, 300*time.Millisecond); len(d.Runs) > 0 {
		w.t.Errorf("delivered: %+v", d.Runs)
	}
	w.wantValues(w.read(s, w.p(0), 0, 10, 100), 0, 10)
}

func (w *sourceTest) ends() {
	s := w.new("g")
	w.join(s, 2)
	began := time.Now()
	w.poll(s, 100, 50*time.Millisecond)
	if took := time.Since(began); took > 30*time.Second {
		w.t.Errorf("poll went on for %s", took)
	}
}

func (w *sourceTest) acked(s inbox.Source, p semel.Partition) (int64, string) {
	w.t.Helper()
	ws, err := s.Witness(w.ctx, []string{w.Topic})
	if err != nil {
		w.t.Fatalf("witness: %v", err)
	}
	for _, x := range ws {
		if x.Partition == p {
			return x.Acked, x.Note
		}
	}
	w.t.Fatalf("no witness of %s", p)
	return 0, ""
}

func (w *sourceTest) waitAcked(s inbox.Source, p semel.Partition, next int64, note string) {
	w.t.Helper()
	for {
		n, have := w.acked(s, p)
		if n == next && have == note {
			return
		}
		if w.ctx.Err() != nil {
			w.t.Fatalf("acked %d with %q, want %d with %q", n, have, next, note)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *sourceTest) acks() {
	w.send(0, 0, 10)
	s := w.new("g")
	w.join(s, 2)
	if n, _ := w.acked(s, w.p(0)); n != -1 {
		w.t.Errorf("acked %d at first", n)
	}
	s.Ack([]inbox.Ack{{Mark: inbox.Mark{Partition: w.p(0), Next: 3}, Note: "three"}})
	s.Ack([]inbox.Ack{{Mark: inbox.Mark{Partition: w.p(0), Next: 6}, Note: "six"}})
	s.Ack([]inbox.Ack{{Mark: inbox.Mark{Partition: w.p(0), Next: 5}, Note: "five"}})
	w.waitAcked(s, w.p(0), 6, "six")
	if err := s.Leave(w.ctx); err != nil {
		w.t.Fatalf("leave: %v", err)
	}
	w.waitAcked(w.new("g"), w.p(0), 6, "six")
}

func (w *sourceTest) signs() {
	w.send(0, 0, 10)
	a := w.new("g")
	w.join(a, 2)
	if err := a.Sign(w.ctx, []inbox.Ack{{Mark: inbox.Mark{Partition: w.p(0), Next: 8}, Note: "x"}, {Mark: inbox.Mark{Partition: w.p(1), Next: 0}, Note: "y"}}); err != nil {
		w.t.Fatalf("sign: %v", err)
	}
	w.waitAcked(a, w.p(1), 0, "y")
	if err := a.Sign(w.ctx, []inbox.Ack{{Mark: inbox.Mark{Partition: w.p(0), Next: 2}, Note: "lower"}}); err != nil {
		w.t.Fatalf("sign: %v", err)
	}
	w.waitAcked(a, w.p(0), 2, "lower")
}

func (w *sourceTest) witnesses() {
	w.send(1, 0, 7)
	s := w.new("g")
	w.join(s, 2)
	ws, err := s.Witness(w.ctx, []string{w.Topic})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(ws) != 2 {
		w.t.Fatalf("%d witnesses", len(ws))
	}
	for _, x := range ws {
		end := int64(0)
		if x.Partition == w.p(1) {
			end = 7
		}
		if x.Start != 0 || x.End != end || x.Stable != end || x.Begin != 0 || !x.FollowGroup || x.Acked != -1 || x.TopicID == (semel.TopicID{}) {
			w.t.Errorf("witness: %+v", x)
		}
	}
	if e, err := s.EpochEnd(w.ctx, w.p(1), ws[1].Epoch); err != nil || e.End != 7 && ws[1].Partition == w.p(1) {
		w.t.Errorf("epoch end: %+v, %v", e, err)
	}
	if c, err := s.Cluster(w.ctx); err != nil || c == "" {
		w.t.Errorf("cluster %q: %v", c, err)
	}
}

func (w *sourceTest) unknown() {
	s := w.new("g")
	_, err := s.Witness(w.ctx, []string{w.Topic + "-no"})
	var u *inbox.UnknownTopicError
	if !errors.As(err, &u) || u.Topic != w.Topic+"-no" {
		w.t.Errorf("answer: %v", err)
	}
}

func (w *sourceTest) shares() {
	a, b := w.new("g"), w.new("g")
	w.join(a, 2)
	has := map[inbox.Source]map[semel.Partition]bool{a: {}, b: {}}
	turn := func(s inbox.Source) {
		d := w.poll(s, 10, 100*time.Millisecond)
		for _, p := range d.Gained {
			has[s][p] = true
		}
		for _, p := range d.Lost {
			delete(has[s], p)
		}
	}
	has[a][w.p(0)], has[a][w.p(1)] = true, true
	for len(has[a]) != 1 || len(has[b]) != 1 {
		turn(b)
		turn(a)
		for p := range has[a] {
			if has[b][p] {
				w.t.Fatalf("%s is both members'", p)
			}
		}
		if w.ctx.Err() != nil {
			w.t.Fatalf("a has %v, b has %v", has[a], has[b])
		}
	}
	if err := a.Confirm(w.ctx); err != nil {
		w.t.Errorf("a member is not confirmed: %v", err)
	}
	if err := a.Leave(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	for len(has[b]) != 2 {
		turn(b)
		if w.ctx.Err() != nil {
			w.t.Fatal("nobody took over")
		}
	}
}

func (w *sourceTest) evicts() {
	dead := w.new("g")
	w.join(dead, 2)
	member, _ := dead.Member()
	if member == "" {
		w.t.Fatal("a joined member has no name")
	}
	s := w.new("g")
	if err := s.Evict(w.ctx, []string{member}); err != nil {
		w.t.Fatalf("evict: %v", err)
	}
	began := time.Now()
	w.join(s, 2)
	if took := time.Since(began); took > 30*time.Second { // sessions should be longer
		w.t.Errorf("it took %s", took)
	}
	// one that is gone already is no error
	if err := s.Evict(w.ctx, []string{member}); err != nil {
		w.t.Errorf("evicted again: %v", err)
	}
}
