package cases_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// G45: a repeat that differs in bytes and in place is recognised, acked and gone; it is no dead letter.
func TestRepeatsAreDuplicatesWhereverTheyStand(t *testing.T) {
	t.Parallel()
	const columns = ", columns: {id: value.id, v: value.v, at: timestamp, part: partition, off: offset}"
	for name, lines := range map[string][]string{
		"in the inbox, by field":  {"id: {fields: [value.id]}", "to: {table: t, write: append" + columns + "}"},
		"in the inbox, by header": {"id: {header: message-id}", "to: {table: t, write: insert" + columns + "}"},
		"in the inbox, by key":    {"id: {key: true}", "to: {table: t, write: append" + columns + "}"},
		"in the target":           {"id: {fields: [value.id]}", "to: {table: t, write: insert" + columns + "}"},
	} {
		for _, messages := range []int{1, 1000} {
			t.Run(fmt.Sprint(name, ", batches of ", messages), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 2, "CREATE TABLE t (id int PRIMARY KEY, v numeric, at timestamptz, part int, off bigint)")
				lines := append([]string{fmt.Sprintf("batch: {messages: %d}", messages)}, lines...)
				r := func(p int32, value string) *kgo.Record {
					return &kgo.Record{Partition: p, Key: []byte("7"), Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte("m7")}}}
				}
				s.produce(r(0, `{"id":7,"v":1.0}`), r(0, `{"v":1, "id":7}`))
				s.run(s.route(lines...))
				s.produce(r(0, `{"id":7,"v":1.00,"sent_at":"later"}`), r(1, `{"id":7,"v":1}`), r(1, `{"id":7,"v":1}`))
				s.run(s.route(lines...))
				s.want("SELECT count(*) FROM t", "1")
				if got := s.outcomes(); got != "1 applied, 4 duplicate" {
					t.Errorf("%s; dead: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
				}
				until(t, "all is acked", func() bool { return s.acked(0) == 3 && s.acked(1) == 2 })
				// Another message under the ID is none.
				s.produce(r(1, `{"id":7,"v":2}`))
				s.run(s.route(lines...))
				if got := s.dead(); got != "1/2 collision" {
					t.Errorf("dead: %s", got)
				}
			})
		}
	}
}

// G45: effects whose acks were lost are delivered again; they are recognised by their place, without any message ID.
func TestEffectsWithoutAnAckAreAckedLater(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE t (id int)")
	route := s.route("id: {position: true}", "to: {table: t, write: append}")
	s.send(numbered(20, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
	s.run(route)
	for _, to := range []int64{0, 7} {
		var back kadm.Offsets
		os, err := s.adm.FetchOffsets(within(t), s.topic)
		must(t, err)
		os.Each(func(o kadm.OffsetResponse) { o.At = to; back.Add(o.Offset) })
		must(t, s.adm.CommitAllOffsets(within(t), s.topic, back))
		if at := s.acked(0); at != to {
			t.Fatalf("the group's offset is %d: the fault didn't fire", at)
		}
		s.run(route)
		until(t, "all is acked", func() bool { return s.acked(0) == 20 })
	}
	s.want("SELECT count(*) FROM t", "20")
	if got := s.outcomes(); got != "20 applied" {
		t.Error(got)
	}
}

// G2: consumers of one stream remember apart, whatever identifies a message; a restart adds nothing.
func TestRoutesOfOneTopicRememberApart(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"{fields: [value.id]}", "{header: message-id}", "{key: true}", "{position: true}"} {
		for _, write := range []string{"append", "insert"} {
			t.Run(id+" "+write, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
				routes := []string{
					s.route("name: a", "consumer: TOPIC-a", "id: "+id, "to: {table: a, write: "+write+"}"),
					s.route("name: b", "consumer: TOPIC-b", "id: "+id, "to: {table: b, write: "+write+"}"),
				}
				send := func(from, to int) {
					for i := from; i < to; i++ {
						n := []byte(fmt.Sprint(i))
						s.produce(&kgo.Record{Key: n, Value: fmt.Appendf(nil, `{"id":%d}`, i), Headers: []kgo.RecordHeader{{Key: "message-id", Value: n}}})
					}
				}
				send(0, 100)
				s.run(routes[0])
				s.run(routes...)
				s.want("SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)", "100 100")
				send(100, 110)
				s.run(routes...)
				s.want("SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)", "110 110")
				if got := s.outcomes(); got != "220 applied" {
					t.Error(got)
				}
			})
		}
	}
}

// G2: one ID in two topics of a route names two messages, where the topic is part of it; a sender's own ID is one.
func TestTopicsOfARouteRememberApart(t *testing.T) {
	t.Parallel()
	for id, rows := range map[string]string{"{fields: [value.id]}": "4", "{key: true}": "4", "{position: true}": "4", "{header: message-id}": "2"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE a (id int, what text)")
			other := s.topic + "-2"
			s.create(other, 1, nil)
			for _, topic := range []string{s.topic, other} {
				for i := range 2 {
					n := []byte(fmt.Sprint(i))
					s.produce(&kgo.Record{Topic: topic, Key: n, Value: fmt.Appendf(nil, `{"id":%d,"what":"x"}`, i), Headers: []kgo.RecordHeader{{Key: "message-id", Value: n}}})
				}
			}
			s.run(s.route("from: {topics: [TOPIC, TOPIC-2]}", "id: "+id, "to: {table: a, write: append}"))
			s.want("SELECT count(*) FROM a", rows)
			s.want("SELECT count(*) FROM semel.dead_letter", "0")
		})
	}
}

// G2: two routes under one memory would take each other's messages for repeats: the file is refused.
func TestRoutesCanNotShareAMemory(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE a (id int); CREATE TABLE b (id int)")
	for _, second := range []string{"consumer: TOPIC", "consumer: other"} {
		text := s.text(
			s.route("name: a", "id: {fields: [value.id]}", "to: {table: a, write: append}"),
			s.route("name: b", second, "from: {topics: [TOPIC], group: TOPIC}", "id: {fields: [value.id]}", "to: {table: b, write: append}"))
		if err := parse(text); err == nil {
			t.Errorf("%s and the same group: accepted", second)
		} else if !strings.Contains(err.Error(), "consumer") && !strings.Contains(err.Error(), "group") {
			t.Error(err)
		}
	}
}

// G3: an ID is unique over the whole window, not within the day, the piece or the transaction in which it came: repeats
// over midnight, late on the same day, and of the window's oldest IDs while old ones are being forgotten.
func TestAnIDIsUniqueOverTheWholeWindow(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, "CREATE TABLE s (id text)")
	route := s.route("id: {fields: [value.id]}", "to: {table: s, write: append}", "inbox: {window: 3d}", "batch: {messages: 1}")
	message := func(partition int32, id string) *kgo.Record {
		return &kgo.Record{Partition: partition, Value: fmt.Appendf(nil, `{"id":%q}`, id)}
	}
	// When it came first; the clock is the database's.
	first := map[string]string{
		"before midnight": "date_trunc('day', now()) - interval '2 seconds'",
		"after midnight":  "date_trunc('day', now()) + interval '3 seconds'",
		"yesterday":       "now() - interval '1 day'",
		"almost too old":  "now() - interval '2 days 23 hours 59 minutes'",
	}
	for id := range first {
		s.produce(message(0, id))
	}
	s.run(route)
	s.want("SELECT count(*) FROM s", "4")
	for id, at := range first {
		// An ID is found by the row that it made: rows and IDs are of one transaction.
		s.exec(fmt.Sprintf("UPDATE semel.inbox_all SET at = %s WHERE xmin = (SELECT xmin FROM s WHERE id = '%s')", at, id))
	}
	s.exec("UPDATE semel.generation SET from_time = now() - interval '4 days'")
	s.want("SELECT count(DISTINCT date_trunc('minute', at)) >= 3 FROM semel.inbox_all", "true")
	s.exec("CALL semel.forget('" + s.topic + "')")
	repeats := 0
	for range 3 { // in transactions of their own
		for id := range first {
			s.produce(message(int32(repeats%2), id))
			repeats++
			s.run(route)
		}
	}
	s.want("SELECT count(*) || ' ' || count(DISTINCT id) FROM s", "4 4")
	if got := s.outcomes(); got != fmt.Sprint("4 applied, ", repeats, " duplicate") {
		t.Error(got)
	}
}

// G4: a letter that is redriven when the IDs of its days are forgotten takes effect once, whatever producers send again
// before and after: its own ID is kept as long as it is open, and counts from the redrive.
func TestARedriveAfterTheWindowTakesEffectOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE t (id text, v int CONSTRAINT small CHECK (v < 5))")
	route := s.route("id: {header: message-id}", "to: {table: t, write: append}", "inbox: {window: 1d}")
	message := func(id string, v int) *kgo.Record {
		return &kgo.Record{Value: fmt.Appendf(nil, `{"id":%q,"v":%d}`, id, v), Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}}}
	}
	later := func() { // six days: the inbox table is frozen, and then too old
		t.Helper()
		for range 2 {
			s.exec(`UPDATE semel.inbox_all SET at = at - interval '3 days'; UPDATE semel.dead_letter SET at = at - interval '3 days';
				UPDATE semel.generation SET from_time = from_time - interval '3 days', to_time = to_time - interval '3 days'`)
			s.exec("CALL semel.forget('" + s.topic + "')")
		}
	}
	s.produce(message("m-1", 9), message("m-2", 2))
	s.run(route)
	s.exec("ALTER TABLE t DROP CONSTRAINT small")
	later()
	s.want("SELECT string_agg(how, ' ') FROM semel.inbox", "dead") // m-2 is forgotten
	s.produce(message("m-1", 9))
	s.run(route)
	s.want("SELECT coalesce(string_agg(id || v, ' ' ORDER BY id), '') FROM t", "m-22")
	s.exec("UPDATE semel.dead_letter SET state = 'redrive'")
	s.run(route)
	s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t", "m-19 m-22")
	s.exec("CALL semel.forget('" + s.topic + "')")
	s.produce(message("m-1", 9))
	s.run(route)
	s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t", "m-19 m-22")
	s.sums()
}
