package cases_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

// copied makes another database of this one as it is now: effects, memory and identity. Nobody else may be in it.
func (s *scene) copied() *scene {
	s.t.Helper()
	s.db.Close()
	ctx := within(s.t)
	at := strings.LastIndex(s.url, "/")
	name, query, _ := strings.Cut(s.url[at+1:], "?")
	if query != "" {
		query = "?" + query
	}
	c, err := pgx.Connect(ctx, s.url[:at]+"/postgres"+query)
	must(s.t, err)
	defer c.Close(context.Background())
	// A session that has ended may be there for another moment.
	until(s.t, "nobody is in it", func() bool {
		var n int
		must(s.t, c.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name).Scan(&n))
		return n == 0
	})
	copy := name + "_" + strings.ToLower(rand.Text()[:6])
	_, err = c.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", copy, name))
	must(s.t, err)
	s.t.Cleanup(func() {
		c, err := pgx.Connect(within(s.t), s.url[:at]+"/postgres"+query)
		must(s.t, err)
		defer c.Close(context.Background())
		_, err = c.Exec(within(s.t), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", copy))
		must(s.t, err)
	})
	return makeScene(s.t, s.brokers, s.topic, s.url[:at]+"/"+copy+query, "SELECT")
}

// reopened is the scene after its database was copied.
func (s *scene) reopened() *scene {
	s.t.Helper()
	return makeScene(s.t, s.brokers, s.topic, s.url, "SELECT")
}

// A copy of the database with an identity of its own is another consumer: refused in the original's group, and in one
// of its own it goes on from where it was copied, beside the original.
func TestACopyOfTheDatabaseIsAnotherConsumer(t *testing.T) {
	t.Parallel()
	for way, lines := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, way)
			route := s.route(append([]string{quick}, lines...)...)
			s.send(numbered(50, delta)...)
			s.run(route)
			c := s.copied()
			s = s.reopened()
			id := s.ask("SELECT identity FROM semel.database")
			if c.ask("SELECT identity FROM semel.database") != id {
				t.Fatal("the copy has another identity: the fault didn't fire")
			}
			_, err := daemon.Migrate(within(t), c.file(route), daemon.MigrateConfig{NewIdentity: true})
			must(t, err)
			if c.ask("SELECT identity FROM semel.database") == id {
				t.Fatal("no new identity")
			}
			s.send(numbered(50, func(i int) string { return delta(50 + i) })...)
			r, err := c.try(route)
			must(t, err)
			if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, "another database") {
				t.Errorf("the copy wasn't refused: %+v", r)
			}
			c.exact(50)
			own := c.route(append([]string{"from: {topics: [TOPIC], session_timeout: 1s, group: TOPIC-copy}"}, lines...)...)
			beside := c.start(own)
			s.run(route)
			until(t, "the copy has it too", func() bool { return c.watermark(0) == 100 })
			beside.stop()
			s.exact(100)
			c.exact(100)
			if got := c.outcomes(); got != "100 applied" {
				t.Error(got)
			}
		})
	}
}

// Another program joins the group and takes a partition. While it is there the other partition is exact, and check says
// so. What it leaves without a commit is read from the row, whatever it did; a commit of its own is a person's matter.
func TestAnotherProgramInTheGroup(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{false, true} {
		t.Run(fmt.Sprint("it commits ", commits), func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, "append, by inbox")
			route := s.route(append([]string{quick}, ways["append, by inbox"]...)...)
			n := 0
			more := func() {
				rs := make([]*kgo.Record, 20)
				for i := range rs {
					rs[i] = &kgo.Record{Partition: int32(i % 2), Value: []byte(delta(n))}
					n++
				}
				s.produce(rs...)
			}
			r := s.start(route)
			more()
			until(t, "both partitions are settled and acked", func() bool { return s.acked(0) == 10 && s.acked(1) == 10 })

			stranger, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ClientID("stranger"), kgo.ConsumerGroup(s.topic), kgo.ConsumeTopics(s.topic),
				kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit(), kgo.HeartbeatInterval(100*time.Millisecond))
			must(t, err)
			defer stranger.Close()
			took := int32(-1)
			until(t, "it has one of them", func() bool { return s.shares() == "1 1" })
			gs, err := s.adm.DescribeGroups(within(t), s.topic)
			must(t, err)
			for _, m := range gs[s.topic].Members {
				if a, ok := m.Assigned.AsConsumer(); ok && m.ClientID == "stranger" {
					took = a.Topics[0].Partitions[0]
				}
			}
			more()
			until(t, "the other one is settled", func() bool { return s.watermark(1-took) == 20 })
			found, err := daemon.Check(within(t), s.file(route), quiet)
			must(t, err)
			if !slices.ContainsFunc(found, func(f daemon.Finding) bool {
				return f.Wrong && strings.Contains(f.What, "members of other programs") && strings.Contains(f.What, "stranger")
			}) {
				t.Errorf("check says nothing of it: %+v", found)
			}
			if at := s.watermark(took); at != 10 {
				t.Errorf("the watermark of its partition is %d: the fault didn't fire", at)
			}
			r.alive()
			if commits {
				stranger.CommitOffsetsSync(within(t), map[string]map[int32]kgo.EpochOffset{s.topic: {took: {Epoch: -1, Offset: 17}}}, nil)
				if at := s.acked(took); at != 17 {
					t.Fatalf("the offset is %d: the fault didn't fire", at)
				}
			}
			stranger.Close()
			if commits {
				<-r.done
				must(t, r.err)
				if len(r.result.Halted) != 1 || !strings.Contains(r.result.Halted[0].Reason, "somebody else committed offset 17") {
					t.Errorf("no halt that names it: %+v", r.result)
				}
				if at := s.watermark(took); at != 10 {
					t.Errorf("it went on to %d", at)
				}
				return
			}
			until(t, "its partition is settled", func() bool { return s.watermark(took) == 20 })
			r.stop()
			s.exact(n)
		})
	}
}

// A restore to before the consumer began, with whatever start: the signed acks know where it did. A database that is
// new altogether is another one, and is refused.
func TestARestoreToBeforeTheConsumerBegan(t *testing.T) {
	t.Parallel()
	for _, start := range []string{"group", "earliest", "latest"} {
		t.Run(start, func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, "append, by inbox")
			route := s.route(append([]string{"from: {topics: [TOPIC], session_timeout: 1s, start: " + start + "}"}, ways["append, by inbox"]...)...)
			before := s.copied() // without Semel's tables
			s = s.reopened()
			_, err := daemon.Migrate(within(t), s.file(route), daemon.MigrateConfig{})
			must(t, err)
			migrated := s.copied()
			s = s.reopened()
			first := 0
			switch start {
			case "group": // of somebody before us
				first = 10
				var os kadm.Offsets
				os.Add(kadm.Offset{Topic: s.topic, Partition: 0, At: 10})
				must(t, s.adm.CommitAllOffsets(within(t), s.topic, os))
			case "latest":
				first = 20
			}
			s.send(numbered(20, delta)...)
			r := s.start(route)
			until(t, "it has begun", func() bool { return s.count("semel.watermark WHERE claim_token IS NOT NULL") == 2 })
			s.send(numbered(20, func(i int) string { return delta(20 + i) })...)
			until(t, "it is settled and acked", func() bool { return s.acked(0) == 40 })
			r.stop()
			s.exact(40 - first)

			s = migrated
			if s.count("semel.watermark") != 0 || s.acked(0) != 40 {
				t.Fatal("it isn't a restore to before the consumer began")
			}
			s.send(numbered(5, func(i int) string { return delta(40 + i) })...)
			s.run(route)
			s.exact(45 - first)
			s.want("SELECT count(*) FROM semel.event WHERE kind = 'went-back'", "2")

			s = before
			result, err := s.try(route)
			must(t, err)
			if len(result.Halted) != 1 || !strings.Contains(result.Halted[0].Reason, "another database") {
				t.Errorf("a new database was taken for the old one: %+v", result)
			}
			s.exact(0)
		})
	}
}

// A consumer of another name over the same topics and target begins no new life in silence.
func TestARenamedConsumerBeginsNoNewLife(t *testing.T) {
	t.Parallel()
	s := deltaScene(t, 1, "append, by inbox")
	lines := ways["append, by inbox"]
	s.send(numbered(20, delta)...)
	s.run(s.route(lines...))
	s.send(numbered(5, func(i int) string { return delta(20 + i) })...)
	renamed := s.route(append([]string{"consumer: TOPIC-renamed"}, lines...)...)
	same := s.route(append([]string{"consumer: TOPIC-renamed", "from: {topics: [TOPIC], group: TOPIC}"}, lines...)...)
	for route, why := range map[string]string{renamed: "would take effect again", same: "committed by consumer"} {
		r, err := s.try(route)
		must(t, err)
		if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, why) {
			t.Errorf("it began anew: %+v", r)
		}
		s.want("SELECT count(*) FROM d", "20")
	}
	found, err := daemon.Check(within(t), s.file(renamed), quiet)
	must(t, err)
	if !slices.ContainsFunc(found, func(f daemon.Finding) bool { return f.Wrong && strings.Contains(f.What, "would take effect again") }) {
		t.Errorf("check says nothing of it: %+v", found)
	}
	s.run(s.route(lines...))
	s.exact(25)
	// One that says where it is to start begins, and so does one of two in a file.
	s.exec("TRUNCATE d")
	s.run(s.route(lines...), s.route(append([]string{"name: beside", "consumer: TOPIC-beside"}, lines...)...))
	s.want("SELECT count(*) FROM d", "25")
	s.run(s.route(append([]string{"consumer: TOPIC-anew", "from: {topics: [TOPIC], start: earliest}"}, lines...)...))
	s.want("SELECT count(*) FROM d", "50")
}

// A static member that is killed is back in its place without a rebalance, whatever its session.
func TestAStaticMemberIsBackInItsPlace(t *testing.T) {
	t.Parallel()
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			s := deltaScene(t, 2, "append, by inbox")
			from := func(instance string) string {
				return s.text(s.route(append([]string{"from: {topics: [TOPIC], session_timeout: 30s, instance_id: " + instance + "}"}, ways["append, by inbox"]...)...))
			}
			n := 0
			more := func() {
				rs := make([]*kgo.Record, 20)
				for i := range rs {
					rs[i] = &kgo.Record{Partition: int32(i % 2), Value: []byte(delta(n))}
					n++
				}
				s.produce(rs...)
			}
			a, b := s.spawn(nil, nil, from("a")), s.spawn(nil, nil, from("b"))
			until(t, "each has a partition", func() bool { return s.shares() == "1 1" })
			more()
			until(t, "all is settled", func() bool { return s.count("d") == int64(n) })
			generation := s.ask("SELECT sum(generation) FROM semel.watermark")
			a.signal(how)
			<-a.end
			more()
			a = s.spawn(nil, nil, from("a"))
			until(t, "all is settled and acked", func() bool { return s.acked(0)+s.acked(1) == int64(n) })
			until(t, "each has a partition again", func() bool { return s.shares() == "1 1" })
			if how == syscall.SIGKILL {
				s.want("SELECT sum(generation) - "+generation+" FROM semel.watermark", "1") // the other one was never moved
			}
			a.signal(syscall.SIGTERM)
			b.signal(syscall.SIGTERM)
			a.wait()
			b.wait()
			s.exact(n)
		})
	}
}

// Two processes have one instance_id by mistake: the second takes the place, the first stops and says why, and nothing
// takes effect twice.
func TestTwoProcessesOfOneInstanceID(t *testing.T) {
	t.Parallel()
	s := deltaScene(t, 2, "append, by inbox")
	route := s.route(append([]string{"from: {topics: [TOPIC], session_timeout: 6s, instance_id: one}", "batch: {messages: 5}"}, ways["append, by inbox"]...)...)
	first := s.start(route)
	load := s.deltaLoad(2)
	defer load()
	until(t, "the first one works", func() bool { return s.watermark(0) > 20 && s.watermark(1) > 20 })
	second := s.spawn(nil, nil, s.text(route))
	<-first.done
	must(t, first.err)
	if len(first.result.Halted) != 1 || !strings.Contains(first.result.Halted[0].Reason, `as "one-0"`) {
		t.Errorf("no halt that names it: %+v", first.result)
	}
	at := s.watermark(0)
	until(t, "the second one works", func() bool { return s.watermark(0) > at+20 })
	n := load()
	until(t, "all is settled and acked", func() bool { return s.acked(0)+s.acked(1) == int64(n) })
	second.signal(syscall.SIGTERM)
	if code := second.wait(); code != 0 {
		t.Errorf("the second one ended with %d", code)
	}
	s.exact(n)
}

// A Kafka that has no topic IDs: all works, check says what it can't tell, and what a topic that is made again under a
// stopped route comes to is what docs/guarantees.md says.
func TestABrokerWithoutTopicIDs(t *testing.T) {
	t.Parallel()
	for name, versions := range map[string]*kversion.Versions{"2.4": kversion.V2_4_0(), "2.7": kversion.V2_7_0()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := devenv.StartBroker(within(t), devenv.BrokerConfig{Versions: versions, Topics: map[string]int32{"t": 2}})
			must(t, err)
			t.Cleanup(b.Close)
			s := sceneAt(t, []string{b.Addr()}, "t", deltas)
			lines := ways["append, by inbox"]
			route := s.route(append([]string{quick}, lines...)...)
			n := 0
			more := func() {
				rs := make([]*kgo.Record, 40)
				for i := range rs {
					rs[i] = &kgo.Record{Partition: int32(i % 2), Value: []byte(delta(n))}
					n++
				}
				s.produce(rs...)
			}
			more()
			s.run(route)
			s.want("SELECT count(topic_id) FROM semel.watermark", "0")
			child := s.spawn(nil, nil, s.text(route))
			more()
			until(t, "it is settled", func() bool { return s.count("d") == int64(n) })
			child.kill()
			more()
			s.run(route)
			until(t, "it is acked", func() bool { return s.acked(0)+s.acked(1) == int64(n) })
			s.exact(n)
			found, err := daemon.Check(within(t), s.file(route), quiet)
			must(t, err)
			if !slices.ContainsFunc(found, func(f daemon.Finding) bool { return !f.Wrong && strings.Contains(f.What, "no topic IDs") }) {
				t.Errorf("check says nothing of it: %+v", found)
			}
		})
	}
}

// Groups whose coordinator assigns: a process is killed and comes back, another joins and leaves, and the offsets of
// the other kind of group are taken over, there and back.
func TestAGroupWhoseCoordinatorAssigns(t *testing.T) {
	t.Parallel()
	s := deltaScene(t, 4, "append, by inbox")
	lines := ways["append, by inbox"]
	next := s.route(append([]string{"from: {topics: [TOPIC], group_protocol: consumer}"}, lines...)...)
	classic := s.route(append([]string{quick}, lines...)...)
	n := 0
	more := func() {
		rs := make([]*kgo.Record, 80)
		for i := range rs {
			rs[i] = &kgo.Record{Partition: int32(i % 4), Value: []byte(delta(n))}
			n++
		}
		s.produce(rs...)
	}
	settled := func() {
		t.Helper()
		until(t, "all is settled and acked", func() bool { return s.acked(0)+s.acked(1)+s.acked(2)+s.acked(3) == int64(n) })
	}
	// A stranger's group of the classic kind had begun.
	for i := range 20 {
		s.produce(&kgo.Record{Partition: int32(i % 4), Value: []byte(`{"mid":"before","id":1,"d":1000}`)})
	}
	var os kadm.Offsets
	for p := range int32(4) {
		os.Add(kadm.Offset{Topic: s.topic, Partition: p, At: 5})
	}
	must(t, s.adm.CommitAllOffsets(within(t), s.topic, os))
	n = 20
	more()
	child := s.spawn(nil, nil, s.text(next))
	settled()
	gs, err := s.adm.DescribeConsumerGroups(within(t), s.topic)
	must(t, err)
	if g := gs[s.topic]; g.Err != nil || len(g.Members) != 1 {
		t.Fatalf("it is no group of that kind: %+v", g)
	}
	child.kill()
	more()
	child = s.spawn(nil, nil, s.text(next)) // which makes the dead one leave: its session is 45 s
	settled()
	members := func() int {
		gs, err := s.adm.DescribeConsumerGroups(within(t), s.topic)
		must(t, err)
		return len(gs[s.topic].Members)
	}
	if m := members(); m != 1 {
		t.Errorf("%d members: the dead one is still there", m)
	}
	guest := s.start(next)
	until(t, "both have partitions", func() bool {
		return s.count("(SELECT DISTINCT owner->>'member' FROM semel.watermark WHERE owner IS NOT NULL) o") == 2
	})
	more()
	settled()
	guest.alive()
	guest.stop()
	more()
	settled()
	child.signal(syscall.SIGTERM)
	if code := child.wait(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if m := members(); m != 0 {
		t.Errorf("%d members after a clean stop", m)
	}
	if testenv.RealKafka() { // the embedded broker's groups stay of one kind
		more()
		s.run(classic)
	}
	more()
	s.run(next)
	settled()
	s.exact(n - 20)
	if got := s.outcomes(); got != fmt.Sprint(n-20, " applied") {
		t.Error(got)
	}
}
