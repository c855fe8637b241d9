//go:build cluster

package cases_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/internal/testenv"
)

// Three JVMs share the machine with what they serve.
func init() { limit = 8 * time.Minute }

// node runs a verb of kafka.sh on one of the three nodes.
func node(t *testing.T, verb string, id int32) {
	t.Helper()
	dir := os.Getenv("SEMEL_TEST_KAFKA_CLUSTER")
	if dir == "" {
		t.Fatal("SEMEL_TEST_KAFKA_CLUSTER names no cluster; `make test-cluster` starts one")
	}
	if out, err := exec.CommandContext(within(t), "../../scripts/kafka/kafka.sh", verb, filepath.Join(dir, strconv.Itoa(int(id)))).CombinedOutput(); err != nil {
		t.Fatalf("%s node %d: %v\n%s", verb, id, err, out)
	}
}

// partition is what the cluster knows of partition 0 of a topic; false while nobody answers.
func (s *scene) partition(number int32) (kadm.PartitionDetail, bool) {
	s.t.Helper()
	topics, err := s.adm.ListTopics(within(s.t), s.topic)
	if err != nil {
		return kadm.PartitionDetail{}, false
	}
	p, ok := topics[s.topic].Partitions[number]
	return p, ok
}

func (s *scene) whole(partitions int32) {
	s.t.Helper()
	until(s.t, "every replica is in sync", func() bool {
		for n := range partitions {
			if p, ok := s.partition(n); !ok || p.Err != nil || p.Leader < 0 || len(p.ISR) != len(p.Replicas) {
				return false
			}
		}
		return true
	})
}

// Nodes are killed under load, a leader and the coordinator of a group: every message takes effect once.
func TestClusterLosesALeaderAndACoordinatorUnderLoad(t *testing.T) {
	type run struct {
		way string
		*scene
		r    *running
		load func() int
	}
	var runs []*run
	for way, lines := range ways {
		s := deltaScene(t, 3, way)
		s.whole(3)
		v := &run{way: way, scene: s, load: s.deltaLoad(3)}
		defer v.load()
		v.r = s.start(s.route(append([]string{"batch: {messages: 200}", "from: {topics: [TOPIC], concurrency: 2}"}, lines...)...))
		runs = append(runs, v)
	}
	goesOn := func() {
		t.Helper()
		for _, v := range runs {
			for n := range int32(3) {
				at := v.watermark(n)
				until(t, fmt.Sprintf("partition %d is read on: %s", n, v.way), func() bool { return v.watermark(n) > at+10 })
			}
		}
	}
	goesOn()
	led := runs[0]
	was, ok := led.partition(0)
	if !ok {
		t.Fatal("no leader")
	}
	for round, victim := range []func() int32{
		func() int32 { return was.Leader },
		func() int32 {
			cs := runs[1].adm.FindGroupCoordinators(within(t), runs[1].topic)
			must(t, cs.Error())
			return cs[runs[1].topic].NodeID
		},
	} {
		v := victim()
		node(t, "kill", v)
		for _, r := range runs {
			until(t, "the others lead without it", func() bool {
				for n := range int32(3) {
					if p, ok := r.partition(n); !ok || p.Leader < 0 || p.Leader == v || slices.Contains(p.ISR, v) {
						return false
					}
				}
				return true
			})
		}
		if is, _ := led.partition(0); round == 0 && is.LeaderEpoch <= was.LeaderEpoch {
			t.Errorf("leader epoch %d after %d: the fault didn't fire", is.LeaderEpoch, was.LeaderEpoch)
		}
		if round == 1 {
			cs := runs[1].adm.FindGroupCoordinators(within(t), runs[1].topic)
			if c := cs[runs[1].topic]; c.Err != nil || c.NodeID == v {
				t.Errorf("the coordinator is still %d, %v: the fault didn't fire", c.NodeID, c.Err)
			}
		}
		goesOn()
		node(t, "start", v)
		for _, r := range runs {
			r.whole(3)
		}
	}
	for _, v := range runs {
		n := v.load()
		until(t, "all is settled and acked: "+v.way, func() bool { return v.acked(0)+v.acked(1)+v.acked(2) == int64(n) })
		v.r.alive()
		v.r.stop()
		v.exact(n)
		if got := v.outcomes(); got != fmt.Sprint(n, " applied") {
			t.Errorf("%s: %s", v.way, got)
		}
		v.want("SELECT count(*) FROM semel.event WHERE kind IN ('cut', 'gap')", "0")
	}
	led.want("SELECT jsonb_array_length(epochs) > 1 FROM semel.watermark WHERE partition = 0", "true")
}

// placed makes the scene's topic with its replicas on the nodes, of which one is enough to acknowledge.
func (s *scene) placed(nodes ...int32) {
	s.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = s.topic, -1, -1
	a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	a.Replicas = nodes
	t.ReplicaAssignment = append(t.ReplicaAssignment, a)
	for k, v := range map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "retention.ms": "3600000"} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, kmsg.StringPtr(v)
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(within(s.t), s.cl)
	must(s.t, err)
	must(s.t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
	s.whole(1)
}

func (s *scene) end() int64 {
	s.t.Helper()
	os, err := s.adm.ListEndOffsets(within(s.t), s.topic)
	must(s.t, err)
	must(s.t, os.Error())
	o, _ := os.Lookup(s.topic, 0)
	return o.Offset
}

// accepting settles all that is there, and accepts what changed.
func (s *scene) accepting(route string) {
	s.t.Helper()
	ctx := within(s.t)
	r, err := daemon.Run(ctx, ctx, daemon.Config{File: s.file(route), UntilCaughtUp: true, AcceptChange: true, Logger: quiet})
	must(s.t, err)
	if len(r.Halted) > 0 || ctx.Err() != nil {
		s.t.Fatalf("it didn't go on: %+v, %v", r.Halted, ctx.Err())
	}
}

// A follower that was away becomes the leader: what was acknowledged and settled since is gone from the log, and other
// messages take its offsets, fewer or more of them. None of these is skipped in silence.
func TestClusterElectsALeaderThatMissedMessages(t *testing.T) {
	const leader, follower = 1, 2
	type variant struct {
		name    string
		running bool
		after   int // messages that the new leader takes
		lines   []string
		halts   bool
		*scene
		route string
		r     *running
	}
	position := []string{"id: {position: true}", "to: {table: t, write: append}"}
	inbox := []string{"id: {fields: [value.id]}", "to: {table: t, write: append}"}
	target := []string{"id: {fields: [value.id]}", "to: {table: t, write: insert}"}
	vs := []*variant{
		{name: "stopped, more, inbox", after: 25, lines: inbox},
		{name: "stopped, fewer, inbox", after: 3, lines: inbox},
		{name: "stopped, more, target", after: 25, lines: target},
		{name: "stopped, more, inbox, on_gap halt", after: 25, lines: append([]string{"on_gap: halt"}, inbox...), halts: true},
		{name: "stopped, more, place", after: 25, lines: position, halts: true},
		{name: "stopped, fewer, place", after: 3, lines: position, halts: true},
		{name: "running, more, inbox", running: true, after: 25, lines: inbox},
		{name: "running, fewer, target", running: true, after: 3, lines: target},
		{name: "running, more, target, on_gap halt", running: true, after: 25, lines: append([]string{"on_gap: halt"}, target...), halts: true},
		{name: "running, fewer, place", running: true, after: 3, lines: position, halts: true},
	}
	send := func(v *variant, from, n int) {
		v.send(numbered(n, func(i int) string { return fmt.Sprintf(`{"id":%d}`, from+i) })...)
	}
	all := func(what string, fact func(v *variant) bool) {
		t.Helper()
		for _, v := range vs {
			until(t, what+": "+v.name, func() bool { return fact(v) })
		}
	}
	for _, v := range vs {
		v.scene = sceneAt(t, testenv.Brokers(t), testenv.Unique(t), "CREATE TABLE t (id int PRIMARY KEY)")
		v.placed(leader, follower)
		defer v.adm.DeleteTopic(within(t), v.topic)
		v.route = v.scene.route(append([]string{"from: {topics: [TOPIC], session_timeout: 6s}"}, v.lines...)...)
		v.r = v.start(v.route)
		send(v, 0, 20)
	}
	all("20 are settled", func(v *variant) bool { return v.watermark(0) == 20 })

	node(t, "kill", follower)
	all("the follower is out", func(v *variant) bool {
		p, ok := v.partition(0)
		return ok && slices.Equal(p.ISR, []int32{leader})
	})
	for _, v := range vs {
		send(v, 20, 10)
	}
	all("30 are settled", func(v *variant) bool { return v.watermark(0) == 30 })
	for _, v := range vs {
		if !v.running {
			v.r.stop()
		}
	}
	node(t, "kill", leader)
	node(t, "start", follower)
	all("the follower leads", func(v *variant) bool {
		p, ok := v.partition(0)
		if ok && p.Leader != follower { // the controller may have done it by itself
			_, err := v.adm.ElectLeaders(within(t), kadm.ElectLiveReplica, kadm.TopicsSet{v.topic: {0: {}}})
			var auth *kadm.AuthError
			if errors.As(err, &auth) {
				t.Fatal(err)
			}
		}
		return ok && p.Leader == follower
	})
	for _, v := range vs {
		if end := v.end(); end != 20 {
			t.Errorf("%s: the log ends at %d, 20 were replicated and 30 settled: the fault didn't fire", v.name, end)
		}
		send(v, 100, v.after)
	}

	for _, v := range vs {
		t.Run(v.name, func(t *testing.T) {
			v.t = t
			if v.halts {
				reason := ""
				if v.running {
					<-v.r.done
					must(t, v.r.err)
					reason = halted(t, v.r.result)
				} else {
					r, err := v.try(v.route)
					must(t, err)
					reason = halted(t, r)
				}
				if !strings.Contains(reason, "cut at 20") || !strings.Contains(reason, "30 was settled") {
					t.Errorf("it names no cut: %s", reason)
				}
				v.want("SELECT count(*) FROM t", "30")
				v.want("SELECT next_offset FROM semel.watermark", "30")
				v.accepting(v.route)
			} else if !v.running {
				v.scene.run(v.route)
			}
			until(t, "the new log is settled", func() bool { return v.watermark(0) == int64(20+v.after) })
			v.want("SELECT count(*) || ' ' || count(*) FILTER (WHERE id >= 100) FROM t", fmt.Sprintf("%d %d", 30+v.after, v.after))
			v.want("SELECT (detail->>'settled') || ' ' || (detail->>'back_to') FROM semel.event WHERE kind = 'cut'", "30 20")
			v.sums()
		})
	}

	// The old leader comes back, gives up what nobody else has, and is one that follows.
	node(t, "start", leader)
	for _, v := range vs {
		v.t = t
		v.whole(1)
		send(v, 200, 5)
		n := int64(25 + v.after)
		if !v.running || v.halts {
			v.scene.run(v.route)
		}
		until(t, "all is settled: "+v.name, func() bool { return v.watermark(0) == n })
		v.want("SELECT count(*) FROM t", strconv.Itoa(35+v.after))
		v.want("SELECT count(*) FROM semel.event WHERE kind = 'cut'", "1")
		v.want("SELECT count(*) FROM semel.dead_letter", "0")
		if v.running && !v.halts {
			v.r.alive()
			v.r.stop()
		}
		v.audited(v.route)
	}
}

func halted(t *testing.T, r daemon.Result) string {
	t.Helper()
	if len(r.Halted) != 1 {
		t.Fatalf("it didn't halt: %+v", r)
	}
	return r.Halted[0].Reason
}

// audited reads the log again and compares.
func (s *scene) audited(route string) {
	s.t.Helper()
	f := s.file(route)
	v, err := daemon.NewViewer(within(s.t), f, quiet)
	must(s.t, err)
	defer v.Close()
	as, err := v.Audit(within(s.t), []config.Route{f.Routes[0]}, true)
	must(s.t, err)
	for _, a := range as {
		if len(a.Wrong) > 0 {
			s.t.Errorf("audit of partition %d: %v", a.Partition, a.Wrong)
		}
	}
}
