package kafka_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

// drive polls in the background until the test ends or stop is called; then what
// was read may be looked at.
func drive(r *reader, max int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			short, end := context.WithTimeout(ctx, 100*time.Millisecond)
			d, err := r.s.Poll(short, max)
			end()
			if err != nil {
				r.t.Errorf("poll: %v", err)
				return
			}
			for _, p := range d.Lost {
				delete(r.next, p)
			}
			for _, run := range d.Runs {
				if r.next[run.Partition] != run.From {
					r.t.Errorf("run of %s from %d, reader at %d", run.Partition, run.From, r.next[run.Partition])
				}
				r.next[run.Partition] = run.To
				r.runs = append(r.runs, run)
				r.s.Ack(ack(run.Topic, run.Number, run.To, "semel"))
			}
			for _, p := range d.Gained {
				ws, err := r.s.Witness(context.Background(), []string{p.Topic})
				if err != nil {
					r.t.Errorf("witness: %v", err)
					return
				}
				at := max64(ws[p.Number].Acked, 0)
				r.next[p] = at
				if err := r.s.Seek(ctx, mark(p.Topic, p.Number, at)); err != nil && ctx.Err() == nil {
					r.t.Errorf("seek: %v", err)
				}
			}
		}
	})
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); done.Wait() }) }
	r.t.Cleanup(stop)
	return stop
}

func max64(a, b int64) int64 { return max(a, b) }

func TestAMemberJoinsAndLeavesWhileAnotherAcks(t *testing.T) { // G12, G49
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 4)
	_, adm := foreign(t, brokers)
	a := source(t, brokers, topic, topic)
	ra := read(t, a)
	stopA := drive(ra, 20)

	// A foreign client watches the group's offsets: never back.
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	samples := 0
	watch.Go(func() {
		last := map[int32]int64{}
		for ctx.Err() == nil {
			os, err := adm.FetchOffsets(ctx, topic)
			if err != nil {
				continue
			}
			os.Each(func(o kadm.OffsetResponse) {
				samples++
				if o.At < last[o.Partition] {
					t.Errorf("partition %d went from %d back to %d", o.Partition, last[o.Partition], o.At)
				}
				last[o.Partition] = o.At
			})
			time.Sleep(5 * time.Millisecond)
		}
	})
	sent := 0
	for round := range 20 {
		fill(t, brokers, topic, 20, 0, 1, 2, 3)
		sent += 20
		b, err := kafka.NewSource(kafka.SourceConfig{Brokers: brokers, Topics: []string{topic}, Group: topic, SessionTimeout: 6 * time.Second, Logger: logger(t)})
		must(t, err)
		rb := read(t, b)
		stopB := drive(rb, 20)
		if round%5 == 0 {
			eventually(t, "the second one is a member", func() bool { m, _ := b.Member(); return m != "" })
		}
		fill(t, brokers, topic, 20, 0, 1, 2, 3)
		sent += 20
		stopB()
		b.Close()
	}
	eventually(t, "everything is acked", func() bool {
		for n := range int32(4) {
			if at, note := committed(t, adm, topic, topic, n); at != int64(sent) || note != "semel" {
				return false
			}
		}
		return true
	})
	cancel()
	watch.Wait()
	stopA()
	if samples < 100 {
		t.Errorf("only %d samples", samples)
	}
}

func TestTwoMembersShareAndTakeOver(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 4)
	patient := func(c *kafka.SourceConfig) { c.SessionTimeout = 2 * limit }
	a, b := source(t, brokers, topic, topic, patient), source(t, brokers, topic, topic, patient)
	ra, rb := read(t, a), read(t, b)
	ra.until("the first has all", 10, func() bool { return len(ra.next) == 4 })
	both := func() bool { return len(ra.next) == 2 && len(rb.next) == 2 }
	ctx := within(t)
	for !both() && ctx.Err() == nil {
		for _, r := range []*reader{ra, rb} {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			r.turn(short, 10)
			cancel()
		}
	}
	if !both() {
		t.Fatalf("%v and %v", ra.next, rb.next)
	}
	if len(ra.lost) != 2 {
		t.Errorf("lost %v: not cooperative", ra.lost)
	}
	must(t, a.Leave(ctx))
	rb.until("the second has all, before the session of the first is over", 10, func() bool { return len(rb.next) == 4 })
	ra.next = map[semel.Partition]int64{}
	ra.s = a
	for len(ra.next) == 0 && ctx.Err() == nil { // joins again
		for _, r := range []*reader{ra, rb} {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			r.turn(short, 10)
			cancel()
		}
	}
}

func TestAPartitionStaysUntilItsMemberPolls(t *testing.T) { // G11
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	fill(t, brokers, topic, 100, 0, 1)
	_, adm := foreign(t, brokers)
	a, b := source(t, brokers, topic, topic), source(t, brokers, topic, topic)
	ra, rb := read(t, a), read(t, b)
	ra.until("the first has all", 10, func() bool { return len(ra.next) == 2 })
	// The second joins; the first works and doesn't poll, longer than a heartbeat.
	stopB := drive(rb, 1)
	time.Sleep(2500 * time.Millisecond) // the fact waited for is that nothing happens
	a.Ack(append(ack(topic, 0, 11, "a"), ack(topic, 1, 12, "a")...))
	ra.until("one is lost", 0, func() bool { return len(ra.lost) > 0 })
	lost := ra.lost[0].Number
	// What was acked before it was given up is at the broker.
	if at, _ := committed(t, adm, topic, topic, lost); at < int64(11+lost) {
		t.Errorf("given up with %d committed", at)
	}
	stop := make(chan struct{})
	var polling sync.WaitGroup
	polling.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			_, _ = a.Poll(short, 0)
			cancel()
		}
	})
	eventually(t, "the second goes on with it", func() bool { at, _ := committed(t, adm, topic, topic, lost); return at > 20 })
	a.Ack(ack(topic, lost, 1000, "late"))
	a.Ack(ack(topic, 1-lost, 50, "a"))
	eventually(t, "the other ack is there", func() bool { at, _ := committed(t, adm, topic, topic, 1-lost); return at == 50 })
	if at, note := committed(t, adm, topic, topic, lost); note == "late" || at > 100 {
		t.Errorf("a late ack committed %d %q", at, note)
	}
	close(stop)
	polling.Wait()
	stopB()
}

func TestAcksNeverGoBackButSigningMay(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 3)
	_, adm := foreign(t, brokers)
	ctx := within(t)
	os := make(kadm.Offsets)
	os.Add(kadm.Offset{Topic: topic, Partition: 0, At: 30, LeaderEpoch: -1})
	must(t, adm.CommitAllOffsets(ctx, topic, os))
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 3 })
	// The broker has 30 of partition 0 already, from others.
	s.Ack(append(ack(topic, 0, 20, "n"), ack(topic, 1, 5, "n")...))
	eventually(t, "an ack is there", func() bool { at, _ := committed(t, adm, topic, topic, 1); return at == 5 })
	if at, _ := committed(t, adm, topic, topic, 0); at != 30 {
		t.Errorf("an ack went back to %d", at)
	}
	must(t, s.Sign(ctx, append(append(ack(topic, 0, 7, "signed"), ack(topic, 1, 2, "signed")...), ack(topic, 2, 0, "signed")...)))
	for n, want := range []int64{7, 2, 0} {
		if at, note := committed(t, adm, topic, topic, int32(n)); at != want || note != "signed" {
			t.Errorf("partition %d: %d %q, signed %d", n, at, note, want)
		}
	}
	s.Ack(ack(topic, 0, 8, "n"))
	must(t, s.Leave(ctx))
	if at, note := committed(t, adm, topic, topic, 0); at != 8 || note != "n" {
		t.Errorf("%d %q is left behind by leaving", at, note)
	}
}

func TestSigningCoversWhatOthersHave(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	_, adm := foreign(t, brokers)
	a, b := source(t, brokers, topic, topic), source(t, brokers, topic, topic)
	ra, rb := read(t, a), read(t, b)
	ra.until("the first has both", 0, func() bool { return len(ra.next) == 2 })
	stop := drive(rb, 0)
	ra.until("it has one", 0, func() bool { return len(ra.next) == 1 })
	must(t, a.Sign(within(t), append(ack(topic, 0, 3, "s"), ack(topic, 1, 4, "s")...)))
	for n, want := range []int64{3, 4} {
		if at, _ := committed(t, adm, topic, topic, int32(n)); at != want {
			t.Errorf("partition %d: %d", n, at)
		}
	}
	stop()
}

func TestConfirmTellsAMemberFromAZombie(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	s := source(t, brokers, topic, topic)
	ctx := within(t)
	if err := s.Confirm(ctx); !errors.Is(err, kafka.ErrNotMember) {
		t.Errorf("before it has joined: %v", err)
	}
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	must(t, s.Confirm(ctx))
	id, _ := s.Member()
	other := source(t, brokers, topic, topic)
	must(t, other.Evict(ctx, []string{id, "nobody"}))
	if err := s.Confirm(ctx); !errors.Is(err, kafka.ErrNotMember) {
		t.Errorf("evicted: %v", err)
	}
	s.Ack(ack(topic, 0, 1, "zombie"))
	r.until("it has lost it", 0, func() bool { return len(r.lost) == 1 })
	r.until("it has joined again", 0, func() bool { return len(r.next) == 1 })
	must(t, s.Confirm(ctx))
}

func TestAfterEvictingTheDeadTheFirstAssignmentIsQuick(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 4)
	dead := source(t, brokers, topic, topic, func(c *kafka.SourceConfig) { c.SessionTimeout = 2 * limit })
	rd := read(t, dead)
	rd.until("it is assigned", 0, func() bool { return len(rd.next) == 4 })
	id, _ := dead.Member()
	if !strings.Contains(id, "-") {
		t.Fatalf("member %q", id)
	}
	// dead doesn't poll any more. (Its client beats on; being put out it joins
	// again, which the test allows for.)
	s := source(t, brokers, topic, topic)
	must(t, s.Evict(within(t), []string{id}))
	r := read(t, s)
	r.until("it is assigned, before the session of the dead is over", 10, func() bool { return len(r.next) > 0 })
}

func TestMembersNameTheirProcess(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	s := source(t, brokers, topic, topic)
	if ms, err := s.Members(within(t)); err != nil || len(ms) != 0 {
		t.Errorf("of a group that isn't there: %v, %v", ms, err)
	}
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	id, _ := s.Member()
	ms, err := s.Members(within(t))
	must(t, err)
	want := inbox.Member{ID: id, Process: inbox.Self().Process()}
	if len(ms) != 1 || ms[0] != want || want.Process == "" {
		t.Errorf("members %+v, want %+v", ms, want)
	}
}

func TestAStaticMemberComesBackInItsPlaceAndLeavesForGood(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	_, adm := foreign(t, brokers)
	static := func(c *kafka.SourceConfig) { c.Instance = "one"; c.SessionTimeout = 2 * limit }
	a := source(t, brokers, topic, topic, static)
	ra := read(t, a)
	ra.until("it is assigned", 0, func() bool { return len(ra.next) == 2 })
	if _, instance := a.Member(); instance != "one" {
		t.Errorf("instance %q", instance)
	}
	a.Ack(ack(topic, 0, 3, "n"))
	eventually(t, "the ack is there", func() bool { at, _ := committed(t, adm, topic, topic, 0); return at == 3 })
	// a is as good as dead: it is replaced at once.
	b := source(t, brokers, topic, topic, static)
	rb := read(t, b)
	rb.until("the next one has all, before the session of the first is over", 0, func() bool { return len(rb.next) == 2 })
	if err := a.Confirm(within(t)); err == nil {
		t.Error("the replaced one is confirmed")
	}
	b.Ack(ack(topic, 0, 4, "n"))
	must(t, b.Leave(within(t)))
	if at, _ := committed(t, adm, topic, topic, 0); at != 4 {
		t.Errorf("%d is committed", at)
	}
	gs, err := adm.DescribeGroups(within(t), topic)
	must(t, err)
	for _, m := range gs[topic].Members {
		if m.InstanceID != nil && *m.InstanceID == "one" {
			t.Error("a clean stop leaves the static member behind")
		}
	}
}

// Under the protocol of a Kafka that knows no topic IDs everything is known by its name.
func TestAnOlderProtocolIsEnough(t *testing.T) {
	t.Parallel()
	for name, versions := range map[string]*kversion.Versions{"2.4": kversion.V2_4_0(), "2.7": kversion.V2_7_0()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
			_, adm := foreign(t, brokers)
			fill(t, brokers, topic, 30, 0, 1)
			s := source(t, brokers, topic, topic, func(c *kafka.SourceConfig) { c.Options = append(c.Options, kgo.MaxVersions(versions)) })
			r := read(t, s)
			r.until("all is read", 100, func() bool { return len(r.got) == 60 })
			for _, run := range r.runs {
				if run.TopicID != (semel.TopicID{}) {
					t.Fatalf("topic ID %s: the fault didn't fire", run.TopicID)
				}
			}
			must(t, s.Confirm(within(t)))
			must(t, s.Sign(within(t), ack(topic, 0, 7, "signed")))
			s.Ack(ack(topic, 0, 30, "n"))
			eventually(t, "it is acked", func() bool { at, note := committed(t, adm, topic, topic, 0); return at == 30 && note == "n" })
			end, err := s.EpochEnd(within(t), part(topic, 0), r.runs[0].Epochs[0].Number)
			must(t, err)
			if end.End != 30 {
				t.Errorf("the epoch ends at %+v", end)
			}
			must(t, s.Leave(within(t)))
		})
	}
}

// Who has been replaced under its own name is told for good.
func TestAReplacedStaticMemberHalts(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	static := func(c *kafka.SourceConfig) { c.Instance = "one"; c.SessionTimeout = 6 * time.Second }
	a := source(t, brokers, topic, topic, static)
	ra := read(t, a)
	ra.until("it is assigned", 0, func() bool { return len(ra.next) == 2 })
	b := source(t, brokers, topic, topic, static)
	rb := read(t, b)
	rb.until("the next one has all", 0, func() bool { return len(rb.next) == 2 })
	var halt *inbox.HaltError
	for ctx := within(t); ; {
		_, err := a.Poll(ctx, 0)
		if ctx.Err() != nil {
			t.Fatal("it was never told")
		}
		if errors.As(err, &halt) {
			break
		}
	}
	if halt.Kind != "instance" || !errors.Is(halt.Err, kerr.FencedInstanceID) {
		t.Errorf("%+v", halt)
	}
	must(t, a.Leave(within(t)))
	must(t, b.Confirm(within(t)))
}

func TestABrokerWithoutGroupsThatItAssignsIsRefused(t *testing.T) {
	t.Parallel()
	b, err := devenv.StartBroker(within(t), devenv.BrokerConfig{Topics: map[string]int32{"t": 1}, Versions: kversion.V3_9_0()})
	must(t, err)
	t.Cleanup(b.Close)
	s := source(t, []string{b.Addr()}, "g", "t", serverSide)
	_, err = s.Poll(within(t), 1)
	var halt *inbox.HaltError
	if !errors.As(err, &halt) || halt.Kind != "group-protocol" {
		t.Errorf("%v", err)
	}
}

func TestTroubleIsTyped(t *testing.T) {
	t.Parallel()
	s, err := kafka.NewSource(kafka.SourceConfig{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"t"}, Group: "g"})
	must(t, err)
	defer s.Close()
	if _, err := s.Poll(within(t), 1); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("no broker: %v", err)
	}
	for _, bad := range []kafka.SourceConfig{
		{},
		{Brokers: []string{"b"}},
		{Brokers: []string{"b"}, Topics: []string{"t"}},
		{Brokers: []string{"b"}, Topics: []string{""}, Group: "g"},
		{Brokers: []string{"b"}, Topics: []string{"t"}, Group: "g", MaxBytes: 1},
	} {
		if _, err := kafka.NewSource(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestSenderTakesTheJavaClientsPartitions(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 8)
	s, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers})
	must(t, err)
	defer s.Close()
	// Known answers of the Java client's own tests.
	for key, want := range map[string]int32{"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536} {
		if got := java(key); got != (want&0x7fffffff)%8 {
			t.Fatalf("the test's own hash of %q: %d", key, got)
		}
	}
	want := map[string]int32{"": java(""), "a": java("a"), "order-17": java("order-17"), "Ünï": java("Ünï")}
	var ms []semel.Message
	for k := range want {
		ms = append(ms, semel.Message{Topic: topic, Partition: 7, Key: []byte(k), Value: []byte("v")})
	}
	must(t, errors.Join(s.Send(within(t), ms)...))
	r := read(t, source(t, brokers, topic, topic))
	r.until("all is read", 10, func() bool { return len(r.got) == len(ms) })
	for _, m := range r.got {
		if m.Partition != want[string(m.Key)] || m.Key == nil {
			t.Errorf("key %q is in partition %d, not %d", m.Key, m.Partition, want[string(m.Key)])
		}
	}
}

// java is Kafka's murmur2 as its Java client has it, modulo 8.
func java(key string) int32 {
	data := []byte(key)
	const m, r = 0x5bd1e995, 24
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return int32(h&0x7fffffff) % 8
}

func TestSenderTakesThePartitionThatIsNamed(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 4)
	s, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers, Manual: true})
	must(t, err)
	defer s.Close()
	errs := s.Send(within(t), []semel.Message{
		{Topic: topic, Partition: 2, Key: []byte("a"), Value: []byte("v")},
		{Topic: topic, Partition: 0, Value: []byte("v")},
		{Topic: topic, Partition: 9, Value: []byte("v")},
		{Topic: topic, Partition: -1, Key: []byte("a"), Value: []byte("by key")},
	})
	if errs[0] != nil || errs[1] != nil || errs[2] == nil || errs[3] != nil {
		t.Fatal(errs)
	}
	r := read(t, source(t, brokers, topic, topic))
	r.until("all is read", 10, func() bool { return len(r.got) == 3 })
	var keyless, named, byKey bool
	for _, m := range r.got {
		keyless = keyless || m.Partition == 0 && m.Key == nil
		named = named || m.Partition == 2 && string(m.Value) == "v"
		byKey = byKey || m.Partition == java("a")%4 && string(m.Value) == "by key"
	}
	if !keyless || !named || !byKey {
		t.Errorf("%+v", r.got)
	}
}

func TestSenderNamesAnUnknownTopic(t *testing.T) {
	t.Parallel()
	s, err := kafka.NewSender(kafka.SenderConfig{Brokers: testenv.Brokers(t)})
	must(t, err)
	defer s.Close()
	topic := testenv.Unique(t)
	var unknown *inbox.UnknownTopicError
	if errs := s.Send(within(t), []semel.Message{{Topic: topic, Value: []byte("v")}}); !errors.As(errs[0], &unknown) || unknown.Topic != topic {
		t.Error(errs)
	}
}

func TestAdminSeesTopicsGroupsAndLogs(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Unique(t)
	a, err := kafka.NewAdmin(kafka.AdminConfig{Brokers: brokers})
	must(t, err)
	defer a.Close()
	ctx := within(t)
	var unknown *inbox.UnknownTopicError
	if _, err := a.Topics(ctx, topic); !errors.As(err, &unknown) {
		t.Errorf("before it is made: %v", err)
	}
	must(t, a.CreateTopic(ctx, topic, 3, map[string]string{"retention.ms": "3600000"}))
	if err := a.CreateTopic(ctx, topic, 3, nil); !errors.Is(err, kafka.ErrTopicExists) {
		t.Errorf("made again: %v", err)
	}
	ts, err := a.Topics(ctx, topic)
	must(t, err)
	if len(ts) != 1 || ts[0].Partitions != 3 || ts[0].ID == (semel.TopicID{}) || ts[0].Configs["retention.ms"] != "3600000" {
		t.Errorf("%+v", ts)
	}
	fill(t, brokers, topic, 10, 0, 2)
	must(t, a.DeleteRecords(ctx, mark(topic, 2, 4)))
	ls, err := a.Logs(ctx, topic)
	must(t, err)
	if want := []kafka.Log{{Partition: part(topic, 0), End: 10, Stable: 10}, {Partition: part(topic, 1)}, {Partition: part(topic, 2), Start: 4, End: 10, Stable: 10}}; !slices.Equal(ls, want) {
		t.Errorf("%+v\nwant %+v", ls, want)
	}
	if os, err := a.Offsets(ctx, topic); err != nil || len(os) > 0 {
		t.Errorf("offsets of no group: %v, %v", os, err)
	}
	if g, err := a.Group(ctx, topic); err != nil || g.Members != 0 {
		t.Errorf("no group: %+v, %v", g, err)
	}
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.place[part(topic, 2)] = 4
	r.until("it is assigned", 0, func() bool { return len(r.next) == 3 })
	must(t, s.Sign(ctx, ack(topic, 1, 0, "note")))
	if os, err := a.Offsets(ctx, topic); err != nil || len(os) != 1 || os[0] != ack(topic, 1, 0, "note")[0] {
		t.Errorf("offsets: %+v, %v", os, err)
	}
	if g, err := a.Group(ctx, topic); err != nil || !reflect.DeepEqual(g, kafka.Group{State: "Stable", Members: 1}) {
		t.Errorf("%+v, %v", g, err)
	}
	must(t, a.DeleteTopic(ctx, topic))
}
