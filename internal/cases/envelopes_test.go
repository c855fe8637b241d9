package cases_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// shopSchema is what JsonConverter sends before each change of shop.public.orders.
const shopSchema = `{"type":"struct","fields":[` +
	`{"type":"struct","fields":[` + shopFields + `],"optional":true,"name":"shop.public.orders.Value","field":"before"},` +
	`{"type":"struct","fields":[` + shopFields + `],"optional":true,"name":"shop.public.orders.Value","field":"after"},` +
	`{"type":"string","optional":false,"field":"op"}],"optional":false,"name":"shop.public.orders.Envelope","version":2}`

const shopFields = `{"type":"int64","optional":false,"field":"id"},` +
	`{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"5","connect.decimal.precision":"15"},"field":"total"},` +
	`{"type":"int64","optional":true,"name":"io.debezium.time.MicroTimestamp","version":1,"field":"placed"},` +
	`{"type":"int32","optional":true,"name":"io.debezium.time.Date","version":1,"field":"due"},` +
	`{"type":"string","optional":true,"name":"io.debezium.data.Json","version":1,"field":"doc"}`

// change is a Debezium event of a row whose key is id; after "" is a deletion.
func change(op string, id int, after string, lsn int) *kgo.Record {
	before := "null"
	if after == "" {
		before, after = fmt.Sprintf(`{"id":%d}`, id), "null"
	}
	return &kgo.Record{
		Key: fmt.Appendf(nil, `{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}]},"payload":{"id":%d}}`, id),
		Value: fmt.Appendf(nil, `{"schema":%s,"payload":{"before":%s,"after":%s,"source":{"connector":"postgresql","ts_ms":%d,"snapshot":"false","sequence":"[\"%d\",\"%d\"]","lsn":%d},"op":%q,"ts_ms":1}}`,
			shopSchema, before, after, lsn, lsn-1, lsn, lsn, op),
	}
}

func TestChangeEventsBecomeRows(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(15,5), placed timestamp, due date, doc jsonb, lsn bigint)`)
	tombstone := &kgo.Record{Key: change("d", 2, "", 0).Key}
	s.produce(
		change("r", 1, `{"id":1,"total":"W42A","placed":1764460800000001,"due":20421,"doc":"{\"a\":1}"}`, 10),
		change("c", 2, `{"id":2,"total":"/w==","placed":null,"due":null,"doc":null}`, 11),
		change("u", 1, `{"id":1,"total":"AA==","placed":1764460800000001,"due":-1,"doc":"[]"}`, 12),
		change("d", 2, "", 13), tombstone,
		change("t", 0, `{"id":0}`, 14),
	)
	r := s.run(s.route("id: {position: true}", "envelope: debezium",
		"to: {table: orders, write: upsert, version: envelope.position, columns: {id: value.id, total: value.total, placed: value.placed, due: value.due, doc: value.doc, lsn: envelope.position}}"))
	a := r.Tallies[0].Accounts
	if a.Outcome[inbox.Skipped].Count != 2 || a.Outcome[inbox.Dead].Count != 1 {
		t.Errorf("%+v", a)
	}
	s.want("SELECT string_agg(o::text, ' ' ORDER BY id) FROM orders o",
		`(1,0.00000,"2025-11-30 00:00:00.000001",1969-12-31,[],12) (2,-0.00001,,,,11)`)
	s.want("SELECT class || error FROM semel.dead_letter", "decodevalue: a truncate (op t): rows are deleted only by messages that name them; empty the table by hand, or leave the connector's skipped.operations at t")
}

// matching is a route of topics below the scene's.
func (s *scene) matching(names string, lines ...string) string {
	return s.route(append([]string{`from: {topics_matching: '\QTOPIC\E\.` + names + `', session_timeout: 6s}`}, lines...)...)
}

func (s *scene) topicBelow(name string, values ...string) {
	s.t.Helper()
	s.create(s.topic+"."+name, 1, nil)
	s.below(name, values...)
}

func (s *scene) below(name string, values ...string) {
	s.t.Helper()
	for _, v := range values {
		s.produce(&kgo.Record{Topic: s.topic + "." + name, Value: []byte(v)})
	}
}

func TestManyTopicsGoIntoTheirTablesInOneRoute(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, w text NOT NULL); CREATE SCHEMA other; CREATE TABLE other."C" (id int PRIMARY KEY)`)
	s.topicBelow("public.a", `{"id":1,"v":"x"}`, `{"id":2}`)
	s.topicBelow("public.b", `{"id":1,"w":"x"}`, `{"id":2}`) // the second is refused
	s.topicBelow(`other.C`, `{"id":1}`)
	s.run(s.matching(`(\w+)\.(\w+)`, "id: {position: true}", `to: {table: '{1}."{2}"', write: upsert}`))
	s.want("SELECT string_agg(a::text, ' ' ORDER BY id) FROM a", "(1,x) (2,)")
	s.want("SELECT string_agg(b::text, ' ') FROM b", "(1,x)")
	s.want(`SELECT string_agg(c::text, ' ') FROM other."C" c`, "(1)")
	if got := s.outcomes(); got != "4 applied, 1 dead" {
		t.Error(got)
	}
	s.want("SELECT class || ' ' || sqlstate FROM semel.dead_letter", "constraint 23502")
}

func TestATopicWithoutATableHaltsUntilItIsThere(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE a (id int PRIMARY KEY)`)
	s.topicBelow("a", `{"id":1}`)
	route := s.matching("(.*)", "id: {fields: [value.id]}", `to: {table: 'public."{1}"', write: append}`)
	d := s.start(route)
	until(t, "the first table is written", func() bool { return s.ask("SELECT count(*) FROM a") == "1" })
	s.topicBelow("b", `{"id":1}`)
	until(t, "the route halts", func() bool {
		return s.ask("SELECT count(*) FROM semel.event WHERE kind = 'halt' AND detail->>'why' LIKE '%table public.b: it does not exist%'") == "1"
	})
	d.stop()
	s.exec(`CREATE TABLE b (id int PRIMARY KEY)`)
	s.run(route)
	s.want("SELECT count(*) FROM b", "1")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

// changeIn is a bare event of Debezium, for a topic below the scene's.
func (s *scene) changeIn(name, op, key, before, after string, lsn int) *kgo.Record {
	return &kgo.Record{
		Topic: s.topic + "." + name, Key: []byte(key),
		Value: fmt.Appendf(nil, `{"before":%s,"after":%s,"source":{"connector":"postgresql","ts_ms":%d,"snapshot":"false","sequence":"[\"%d\",\"%d\"]","lsn":%d},"op":%q,"ts_ms":1}`, before, after, lsn, lsn-1, lsn, lsn, op),
	}
}

func TestTablesOfAnotherDatabaseAreMirrored(t *testing.T) { // G15, G27
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE orders (id bigint PRIMARY KEY, note text, doc text); CREATE TABLE items (a int, b int, n int, PRIMARY KEY (a, b))`)
	s.topicBelow("orders")
	s.topicBelow("items")
	tombstone := func(name, key string) *kgo.Record {
		return &kgo.Record{Topic: s.topic + "." + name, Key: []byte(key)}
	}
	s.produce(
		s.changeIn("orders", "c", `{"id":1}`, "null", `{"id":1,"note":"a","doc":"long"}`, 1),
		s.changeIn("items", "c", `{"a":1,"b":2}`, "null", `{"a":1,"b":2,"n":3}`, 2),
		s.changeIn("items", "c", `{"a":1,"b":3}`, "null", `{"a":1,"b":3,"n":4}`, 3),
		s.changeIn("orders", "u", `{"id":1}`, "null", `{"id":1,"note":"b","doc":"__debezium_unavailable_value"}`, 4),
		s.changeIn("items", "d", `{"a":1,"b":2}`, `{"a":1,"b":2,"n":null}`, "null", 5), tombstone("items", `{"a":1,"b":2}`),
		s.changeIn("items", "d", `{"other":1}`, `{"a":1,"b":3,"n":null}`, "null", 6), tombstone("items", `{"other":1}`), // its key is not the table's
		s.changeIn("orders", "c", `{"id":2}`, "null", `{"id":2,"note":"x","doc":null}`, 7),
		s.changeIn("orders", "d", `{"id":2}`, `{"id":2}`, "null", 8), tombstone("orders", `{"id":2}`),
		s.changeIn("orders", "c", `{"id":2}`, "null", `{"id":2,"note":"again","doc":"d"}`, 9),
	)
	route := s.matching("(.*)", "id: {position: true}", "envelope: debezium", "batch: {messages: 4}", `to: {table: 'public."{1}"', write: mirror, absent: keep}`)
	s.run(route)
	s.want("SELECT string_agg(o::text, ' ' ORDER BY id) FROM orders o", "(1,b,long) (2,again,d)")
	s.want("SELECT count(*) FROM items", "0")
	s.want("SELECT sum(skipped) FROM semel.watermark", "3")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

func TestADeletionOfASourceHasItsVersion(t *testing.T) { // G19
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE orders (id bigint PRIMARY KEY, note text, lsn bigint, gone_at timestamptz)`)
	s.topicBelow("orders")
	s.produce(
		s.changeIn("orders", "c", `{"id":1}`, "null", `{"id":1,"note":"a"}`, 5),
		s.changeIn("orders", "d", `{"id":1}`, `{"id":1}`, "null", 9),
		s.changeIn("orders", "u", `{"id":1}`, "null", `{"id":1,"note":"late"}`, 7), // an older change comes after the deletion
		s.changeIn("orders", "c", `{"id":2}`, "null", `{"id":2,"note":"b"}`, 10),
	)
	s.run(s.matching("(.*)", "id: {position: true}", "envelope: debezium",
		`to: {table: 'public."{1}"', write: mirror, version: envelope.position, deleted: gone_at, columns: {id: value.id, note: value.note, lsn: envelope.position}}`))
	s.want("SELECT string_agg(concat_ws('|', id, lsn, gone_at IS NOT NULL), ' ' ORDER BY id) FROM orders o", "1|9|t 2|10|f")
}

func TestCloudEventsTakeEffectOnceByTheirSourceAndID(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE orders (no bigint, kind text, source text)`)
	binary := func(id, source, no string) *kgo.Record {
		return &kgo.Record{Value: []byte(`{"no":` + no + `}`), Key: []byte("text"), Headers: []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: []byte(id)},
			{Key: "ce_source", Value: []byte(source)},
			{Key: "ce_type", Value: []byte("order")},
			{Key: "content-type", Value: []byte("application/json")},
		}}
	}
	structured := func(id, source, no string) *kgo.Record {
		return &kgo.Record{
			Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
			Value:   []byte(`{"specversion":"1.0","id":"` + id + `","source":"` + source + `","type":"order","data":{"no":` + no + `}}`),
		}
	}
	s.produce(binary("1", "a", "1"), structured("1", "a", "1"), structured("1", "b", "2"), binary("2", "a", "3"), binary("2", "a", "4"), &kgo.Record{Value: []byte(`{"no":5}`)})
	s.run(s.route("envelope: cloudevents", "to: {table: orders, write: append, columns: {no: value.no, kind: envelope.type, source: envelope.source}}"))
	s.want("SELECT string_agg(concat_ws('|', no, kind, source), ' ' ORDER BY no) FROM orders", "1|order|a 2|order|b 3|order|a")
	if got := s.outcomes(); got != "3 applied, 1 duplicate, 2 dead" {
		t.Error(got)
	}
	s.want("SELECT string_agg(class, ' ' ORDER BY \"offset\") FROM semel.dead_letter", "collision decode")
}

func TestARelationTakesWhatIsComputed(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE total (account text PRIMARY KEY, n bigint); INSERT INTO total VALUES ('a:1', 0)`)
	s.send(`{"id":1,"account":1,"group":"a","n":2}`, `{"id":2,"account":1,"group":"a","n":3}`, `{"id":3,"account":1,"group":"b","n":9}`)
	route := func(n string) string {
		return s.route("id: {fields: [value.id]}", `filter: value.group == "a"`, `to: {relation: {account: {type: text, from: 'value.group + ":" + string(value.account)'}, amount: {type: bigint, from: `+n+
			`}}, sql: "UPDATE total SET n = total.n + b.n FROM (SELECT account, sum(amount)::bigint AS n FROM batch GROUP BY account) b WHERE total.account = b.account"}`)
	}
	s.run(route("value.n"))
	s.want("SELECT n FROM total", "5")
	if got := s.outcomes(); got != "2 applied, 1 skipped" {
		t.Error(got)
	}
	if r, err := s.try(route("value.n * 2.0")); err == nil && len(r.Halted) == 0 {
		t.Error("a computed number went into an exact column")
	}
}

// later is a bare event of Debezium for the scene's topic: place in the log, the commit before it, and the source's clock.
func later(op, source string, id int, note string) *kgo.Record {
	return &kgo.Record{
		Key:   fmt.Appendf(nil, `{"id":%d}`, id),
		Value: fmt.Appendf(nil, `{"before":null,"after":{"id":%d,"note":%q},"source":%s,"op":%q,"ts_ms":1}`, id, note, source, op),
	}
}

func pgSource(lsn, before, millis int) string {
	return fmt.Sprintf(`{"connector":"postgresql","ts_ms":%d,"snapshot":"false","sequence":"[\"%d\",\"%d\"]","lsn":%d}`, millis, before, lsn, lsn)
}

func mysqlSource(file, pos, millis int) string {
	return fmt.Sprintf(`{"connector":"mysql","ts_ms":%d,"snapshot":"false","server_id":1,"gtid":"x:%d","file":"binlog.%06d","pos":%d,"row":0}`, millis, pos, file, pos)
}

// versioned is a scene with a route whose versions are places in a source's log.
func versioned(t *testing.T) (s *scene, route string) {
	s = newScene(t, 1, `CREATE TABLE orders (id bigint PRIMARY KEY, note text, lsn numeric)`)
	return s, s.route("id: {position: true}", "envelope: debezium",
		"to: {table: orders, write: upsert, version: envelope.position, columns: {id: value.id, note: value.note, lsn: envelope.position}}")
}

// halts runs until the route halts for a new log of its source.
func (s *scene) halts(route, why string) {
	s.t.Helper()
	r, err := s.try(route)
	must(s.t, err)
	if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, why) {
		s.t.Fatalf("halted: %+v, where %q is expected", r.Halted, why)
	}
}

func (s *scene) resume() {
	s.t.Helper()
	must(s.t, postgres.NewStatus(s.db, "").SetDesired(within(s.t), s.topic, false, ""))
}

func TestASourceThatBeganAnewWhileNobodyRanIsNoticed(t *testing.T) {
	t.Parallel()
	for what, of := range map[string]struct{ old, new, why string }{
		"a fail-over to a server that is behind": {pgSource(200, 190, 5), pgSource(50, 40, 6), "LSN 0/28, after LSN 0/BE at or before offset 1"},
		"a new connector takes a snapshot":       {pgSource(200, 190, 5), `{"connector":"postgresql","ts_ms":6,"snapshot":"first","sequence":"[null,\"60\"]","lsn":60}`, "LSN 0/3C, after LSN 0/BE"},
		"a binlog that was reset":                {mysqlSource(7, 100, 5), mysqlSource(1, 4, 6), "file 1, position 4 of server 1, after file 7, position 100"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, route := versioned(t)
			s.produce(later("c", of.old, 1, "a"), later("c", of.old, 2, "b"))
			s.run(route)
			s.produce(later("u", of.new, 1, "c"))
			s.halts(route, of.why)
			s.halts(route, of.why) // a restart is no answer
			s.want("SELECT string_agg(note, ' ' ORDER BY id) FROM orders", "a b")
			if got := s.outcomes(); got != "2 applied" {
				t.Error(got)
			}
			s.exec("UPDATE orders SET lsn = NULL")
			s.resume()
			s.run(route)
			s.want("SELECT string_agg(note, ' ' ORDER BY id) FROM orders", "c b")
			if got := s.outcomes(); got != "3 applied" {
				t.Error(got)
			}
		})
	}
}

func TestAResumeForgetsNoSourceThatDidNotHalt(t *testing.T) {
	t.Parallel()
	s, route := versioned(t)
	s.produce(later("c", pgSource(200, 190, 5), 1, "a"))
	s.run(route)
	s.resume()
	s.produce(later("u", pgSource(50, 40, 6), 1, "b"))
	s.halts(route, "LSN 0/28")
}

func TestWhatAKilledConnectorSendsAgainIsNoNewSource(t *testing.T) {
	t.Parallel()
	s, route := versioned(t)
	s.produce(later("c", pgSource(100, 90, 4), 1, "a"), later("u", pgSource(200, 190, 5), 1, "b"))
	s.run(route)
	s.produce(later("c", pgSource(100, 90, 4), 1, "a"), later("u", pgSource(200, 190, 5), 1, "b"), later("u", pgSource(300, 290, 6), 1, "c"))
	s.run(route)
	s.want("SELECT note FROM orders", "c")
	// A snapshot of the same server, and changes that were on their way when it began; an incremental one knows no place.
	s.produce(
		later("r", `{"connector":"postgresql","ts_ms":7,"snapshot":"true","sequence":"[null,\"400\"]","lsn":400}`, 1, "d"),
		later("u", pgSource(380, 370, 8), 2, "x"), later("u", pgSource(500, 490, 9), 2, "y"),
		later("r", `{"connector":"postgresql","ts_ms":10,"snapshot":"incremental","sequence":"[null,\"470\"]","lsn":470}`, 1, "e"),
	)
	s.run(route)
	s.want("SELECT string_agg(note, ' ' ORDER BY id) FROM orders", "e y")
}

func TestATopicThatIsReadAgainComparesFromItsBeginning(t *testing.T) {
	t.Parallel()
	s, route := versioned(t)
	s.produce(later("c", pgSource(100, 90, 4), 1, "a"), later("u", pgSource(200, 190, 5), 1, "b"))
	s.run(route)
	s.exec(`UPDATE semel.watermark SET next_offset = 0, source = jsonb_set(source, '{latest,order}', '[900, 0]')`) // as if it had come from elsewhere
	s.run(route)
	s.want("SELECT source->'latest'->>'order' FROM semel.watermark", "[190, 0]")
}
