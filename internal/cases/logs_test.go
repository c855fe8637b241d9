package cases_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

func parse(text string) error {
	_, err := config.Parse("semel.yaml", []byte(text), func(string) (string, bool) { return "", false })
	return err
}

// again deletes the topic and makes it under its old name, with a retention inside the window.
func (s *scene) again(partitions int32) {
	s.t.Helper()
	rs, err := s.adm.DeleteTopics(within(s.t), s.topic)
	must(s.t, err)
	must(s.t, rs.Error())
	s.create(s.topic, partitions, map[string]*string{"retention.ms": kadm.StringPtr("3600000")})
}

// G6: a topic that was deleted and made again is another log: fewer, as many or more messages than before, other
// partitions, stopped or running. Nothing is skipped in silence.
func TestATopicMadeAgainIsAnotherLog(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		for i, c := range []struct{ n, before, after int32 }{{10, 1, 1}, {50, 1, 1}, {70, 1, 1}, {10, 1, 3}, {10, 2, 1}} {
			to := []string{"append", "insert"}[i%2]
			t.Run(fmt.Sprint("running ", running, c, to), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, c.before, "CREATE TABLE t (id int PRIMARY KEY)")
				route := s.route("id: {fields: [value.id]}", "to: {table: t, write: "+to+"}")
				s.send(numbered(50, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
				r := s.start(route)
				until(t, "the first ones took effect", func() bool { return s.count("t") == 50 })
				if !running {
					r.stop()
				}
				s.again(c.after)
				s.send(numbered(int(c.n), func(i int) string { return fmt.Sprintf(`{"id":%d}`, 1000+i) })...)
				if !running {
					r = s.start(route)
				}
				until(t, "the new ones took effect", func() bool { return s.count("t") == int64(50+c.n) })
				s.send(`{"id":49}`) // the memory of IDs is older than the log
				until(t, "a repeat from the old log is recognised", func() bool { return s.count("semel.watermark WHERE duplicate > 0") == 1 })
				r.alive()
				r.stop()
				s.want("SELECT count(*) FROM t", fmt.Sprint(50+c.n))
			})
		}
	}
}

// G6: where the place is the identity there is nobody to tell old from new: it halts and names both logs.
func TestATopicMadeAgainHaltsWherePlaceIsIdentity(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE t (id int)")
	route := s.route("id: {position: true}", "to: {table: t, write: append}")
	s.send(numbered(50, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
	s.run(route)
	old := s.ask("SELECT topic_id FROM semel.watermark")
	s.again(1)
	s.send(numbered(60, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
	r, err := s.try(route)
	must(t, err)
	if len(r.Halted) != 1 {
		t.Fatalf("it went on: %+v", r)
	}
	topics, err := s.adm.ListTopics(within(t), s.topic)
	must(t, err)
	is := topics[s.topic].ID
	plain := func(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }
	said := plain(r.Halted[0].Reason)
	for _, id := range []string{plain(old), fmt.Sprintf("%x", is[:])} {
		if !strings.Contains(said, id) {
			t.Errorf("%s isn't named in: %s", id, r.Halted[0].Reason)
		}
	}
	s.want("SELECT count(*) FROM t", "50")
}

func (s *scene) deleteBelow(at int64) {
	s.t.Helper()
	var os kadm.Offsets
	os.Add(kadm.Offset{Topic: s.topic, Partition: 0, At: at})
	rs, err := s.adm.DeleteRecords(within(s.t), os)
	must(s.t, err)
	must(s.t, rs.Error())
}

// G7: retention overtook the consumer: what is there is applied, what is gone is told, by whatever rule it starts; the
// client has no rule of its own.
func TestRetentionThatOvertakesIsTold(t *testing.T) {
	t.Parallel()
	for _, start := range []string{"group", "earliest", "latest", "2020-01-01T00:00:00Z"} {
		for _, id := range []string{"{position: true}", "{fields: [value.id]}"} {
			for _, gap := range []string{"go-on", "halt"} {
				if gap == "halt" && start != "group" {
					continue
				}
				t.Run(strings.Join([]string{start, id, gap}, " "), func(t *testing.T) {
					t.Parallel()
					s := newScene(t, 1, "CREATE TABLE t (id int)")
					route := s.route("from: {topics: [TOPIC], start: "+start+"}", "id: "+id, "to: {table: t, write: append}", "on_gap: "+gap)
					r := s.start(route)
					until(t, "the start is written down", func() bool { return s.count("semel.watermark WHERE claim_token IS NOT NULL") == 1 })
					s.send(numbered(100, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
					until(t, "the first ones took effect", func() bool { return s.count("t") == 100 })
					r.stop()
					s.send(numbered(900, func(i int) string { return fmt.Sprintf(`{"id":%d}`, 100+i) })...)
					s.deleteBelow(400)
					result, err := s.try(route)
					must(t, err)
					if gap == "halt" {
						if len(result.Halted) != 1 || !strings.Contains(result.Halted[0].Reason, "100 to 399") {
							t.Errorf("no halt that names the gap: %+v", result.Halted)
						}
						s.want("SELECT count(*) FROM t", "100")
						return
					}
					s.want("SELECT count(*) || ' ' || min(id) FILTER (WHERE id >= 100) || ' ' || max(id) FROM t", "700 400 999")
					if got := s.outcomes(); got != "700 applied, 300 lost" {
						t.Error(got)
					}
					s.want("SELECT count(*) FROM semel.event WHERE kind = 'gap'", "1")
				})
			}
		}
	}
}

// G7: what the file says of the start reaches the client: a group's offset below what is left, and none at all.
func TestTheStartOfTheFileIsTheStart(t *testing.T) {
	t.Parallel()
	for start, want := range map[string]string{"group": "6", "earliest": "6", "latest": "1"} {
		for _, group := range []int64{-1, 1, 7} {
			t.Run(fmt.Sprint(start, group), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, "CREATE TABLE t (id int)")
				s.send(numbered(10, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
				s.deleteBelow(5)
				if group >= 0 {
					var os kadm.Offsets
					os.Add(kadm.Offset{Topic: s.topic, Partition: 0, At: group})
					must(t, s.adm.CommitAllOffsets(within(t), s.topic, os))
				}
				r := s.start(s.route("from: {topics: [TOPIC], start: "+start+"}", "id: {position: true}", "to: {table: t, write: append}"))
				until(t, "the start is written down", func() bool { return s.count("semel.watermark WHERE claim_token IS NOT NULL") == 1 })
				s.send(`{"id":10}`)
				until(t, "the end is reached", func() bool { return s.watermark(0) == 11 })
				r.stop()
				rows := want
				if start == "group" && group == 7 {
					rows = "4" // an existing group's place is taken over
				}
				s.want("SELECT count(*) FROM t", rows)
				if start == "group" && group == 1 {
					s.want("SELECT lost FROM semel.watermark", "4")
				}
			})
		}
	}
}

// G8: the group's offsets expire, and the IDs are gone: the watermark knows what is done.
func TestAnExpiredGroupRepeatsNothing(t *testing.T) {
	t.Parallel()
	for _, start := range []string{"group", "earliest", "latest"} {
		for _, id := range []string{"{position: true}", "{fields: [value.id]}"} {
			t.Run(start+" "+id, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 2, "CREATE TABLE t (id int)")
				route := s.route("from: {topics: [TOPIC], start: "+start+"}", "id: "+id, "to: {table: t, write: append}")
				r := s.start(route)
				until(t, "the starts are written down", func() bool { return s.count("semel.watermark WHERE claim_token IS NOT NULL") == 2 })
				s.send(numbered(100, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
				until(t, "they took effect", func() bool { return s.count("t") == 100 })
				r.stop()
				for _, whole := range []bool{false, true} {
					if whole {
						// One whose offsets are gone may be gone itself.
						if _, err := s.adm.DeleteGroup(within(t), s.topic); !errors.Is(err, kerr.GroupIDNotFound) {
							must(t, err)
						}
					} else {
						_, err := s.adm.DeleteOffsets(within(t), s.topic, kadm.TopicsSet{s.topic: {0: {}, 1: {}}})
						must(t, err)
					}
					s.exec("DELETE FROM semel.inbox_all")
					if at := s.acked(0); at >= 0 {
						t.Fatalf("the group's offset is %d: the fault didn't fire", at)
					}
					was := s.count("t")
					s.send(fmt.Sprintf(`{"id":%d}`, 1000+was))
					s.run(route)
					if n := s.count("t"); n != was+1 {
						t.Errorf("%d new effects, one message was sent", n-was)
					}
				}
			})
		}
	}
}

// G13: a compacted topic has holes at its end too: the end is reached, the last of each key is there, the lag is 0.
func TestACompactedTopicIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ write, id string }{{"upsert", "{position: true}"}, {"upsert, version: value.v", "{position: true}"}, {"append", "{fields: [value.k, value.v]}"}} {
		for _, stopped := range []bool{true, false} {
			t.Run(fmt.Sprint(c.write, " stopped in the middle ", stopped), func(t *testing.T) {
				t.Parallel()
				b, _ := testenv.OwnBroker(t, nil)
				must(t, b.Cluster().CreateTopic("t", 1, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1", "min.compaction.lag.ms": "0", "segment.bytes": "2000"}))
				s := sceneAt(t, []string{b.Addr()}, "t", "CREATE TABLE t (k int, v int)")
				if strings.HasPrefix(c.write, "upsert") {
					s.exec("ALTER TABLE t ADD PRIMARY KEY (k)")
				}
				route := s.route("id: "+c.id, "to: {table: t, write: "+c.write+"}", "batch: {messages: 7}")
				send := func(k, v int) {
					s.produce(&kgo.Record{Key: []byte(fmt.Sprint(k)), Value: fmt.Appendf(nil, `{"k":%d,"v":%d}`, k, v)})
				}
				send(99, 0) // this broker lets its log start at the first record that is left: one stays
				if stopped {
					s.run(route)
				}
				for v := range 30 {
					for k := range 10 {
						send(k, v)
					}
				}
				b.Cluster().Compact()
				s.run(route)
				if n := s.count("t"); n >= 301 || n < 11 {
					t.Errorf("%d rows: nothing was compacted, or too much", n)
				}
				if n := s.watermark(0); n != 301 {
					t.Errorf("the watermark is %d, the end 301", n)
				}
				until(t, "the lag is 0", func() bool { return s.acked(0) == 301 })
				s.want("SELECT string_agg(v::text, ' ' ORDER BY k) FROM (SELECT k, max(v) AS v FROM t GROUP BY k) x", strings.Repeat("29 ", 10)+"0")
				s.want("SELECT holes > 0 FROM semel.watermark", "true")
			})
		}
	}
}

// G6, on a broker that has no topic IDs: a topic that was made again is taken for the old one. Where it ends below the
// watermark that is a cut log: recorded, or the route halts by on_gap; what comes after it takes effect.
func TestATopicMadeAgainWithoutIDsIsACutLog(t *testing.T) {
	t.Parallel()
	b, err := devenv.StartBroker(within(t), devenv.BrokerConfig{Versions: kversion.V2_7_0(), Topics: map[string]int32{"t": 1}})
	must(t, err)
	t.Cleanup(b.Close)
	s := sceneAt(t, []string{b.Addr()}, "t", "CREATE TABLE t (id int PRIMARY KEY)")
	lines := []string{"id: {fields: [value.id]}", "to: {table: t, write: append}"}
	numbers := func(from, n int) {
		s.send(numbered(n, func(i int) string { return fmt.Sprintf(`{"id":%d}`, from+i) })...)
	}
	numbers(0, 50)
	s.run(s.route(lines...))
	s.again(1)
	numbers(100, 10)
	r, err := s.try(s.route(append(lines, "on_gap: halt")...))
	must(t, err)
	if len(r.Halted) != 1 {
		t.Errorf("on_gap: halt went on: %+v", r)
	}
	s.run(s.route(lines...))
	s.want("SELECT count(*) || ' ' || max(detail->>'back_to') FROM semel.event WHERE kind = 'cut'", "1 10")
	numbers(200, 10)
	s.run(s.route(lines...))
	s.want("SELECT count(*) FROM t WHERE id >= 200", "10")
}
