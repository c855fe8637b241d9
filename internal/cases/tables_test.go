package cases_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/semelhq/semel/internal/daemon"
)

// schema registers the next version of the topic's values, under the ID that it answers.
func (s *scene) schema(reg *srfake.Registry, version int, of sr.SchemaType, text string) uint32 {
	reg.SeedSchema(s.topic+"-value", version, version, sr.Schema{Type: of, Schema: text})
	return uint32(version)
}

func (s *scene) columns(table string) string {
	s.t.Helper()
	return s.ask(`SELECT coalesce(string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum), '') FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0`, table)
}

const everyAvro = `{"type":"record","name":"All","fields":[
	{"name":"id","type":"long"},{"name":"b","type":"boolean"},{"name":"i","type":"int"},{"name":"f","type":"float"},{"name":"d","type":"double"},{"name":"Mixed_Case","type":"string"},{"name":"raw","type":"bytes"},
	{"name":"m","type":{"type":"enum","name":"M","symbols":["GOOD","BAD"]}},{"name":"dec","type":{"type":"bytes","logicalType":"decimal","precision":38,"scale":10}},
	{"name":"day","type":{"type":"int","logicalType":"date"}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"wall","type":{"type":"long","logicalType":"local-timestamp-micros"}},
	{"name":"clock","type":{"type":"int","logicalType":"time-millis"}},{"name":"u","type":["null",{"type":"string","logicalType":"uuid"}]},{"name":"longs","type":{"type":"array","items":["null","long"]}},
	{"name":"texts","type":{"type":"array","items":"string"}},{"name":"doc","type":{"type":"map","values":"double"}},{"name":"rec","type":{"type":"record","name":"R","fields":[{"name":"x","type":["null","R"]}]}},
	{"name":"either","type":["null","long","string"]},{"name":"took","type":{"type":"fixed","name":"T","size":12,"logicalType":"duration"}}]}`

func TestATableOfEveryAvroTypeHoldsItsExtremes(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	s.schema(reg, 1, sr.TypeAvro, everyAvro)
	most, least := "9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999"
	at := time.Date(2026, 3, 29, 1, 59, 59, 123456000, time.UTC)
	old := time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	row := func(id int64, b bool, i int32, f float32, d float64, text string, dec string, at time.Time, u any, longs []any, either any) *kgo.Record {
		return &kgo.Record{Value: by(1, avroOf(t, everyAvro, map[string]any{
			"id": id, "b": b, "i": i, "f": f, "d": d, "Mixed_Case": text, "raw": []byte{0, 255}, "m": "BAD", "dec": rat(dec), "day": at, "at": at, "wall": at, "clock": 24*time.Hour - time.Millisecond,
			"u": u, "longs": longs, "texts": []any{"a,\"b", ""}, "doc": map[string]any{"k": 0.1}, "rec": map[string]any{"x": map[string]any{"x": nil}}, "either": either, "took": avro.Duration{Months: 1, Days: 2, Milliseconds: 3500},
		}))}
	}
	s.produce(
		row(math.MaxInt64, true, math.MaxInt32, math.MaxFloat32, math.MaxFloat64, "é\n", most, at, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", []any{int64(math.MaxInt64), nil, int64(math.MinInt64)}, int64(7)),
		row(math.MinInt64, false, math.MinInt32, math.SmallestNonzeroFloat32, math.SmallestNonzeroFloat64, "", least, old, nil, []any{}, "x"),
		row(0, false, 0, float32(-posInf), posInf, " ", "0", at, nil, []any{nil}, nil),
	)
	s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: every, write: insert, create: true, primary_key: [id]}"))
	if got, want := s.columns("every"), "id bigint, b boolean, i integer, f real, d double precision, Mixed_Case text, raw bytea, m text, dec numeric(38,10), day date, at timestamp with time zone, wall timestamp without time zone, "+
		"clock time without time zone, u uuid, longs bigint[], texts text[], doc jsonb, rec jsonb, either jsonb, took interval"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const list = `SELECT string_agg(e::text, E'\n' ORDER BY id) FROM (SELECT id, b, i, f, d, "Mixed_Case", raw, m, dec, day, at AT TIME ZONE 'UTC', wall, clock, u, longs, texts, doc, rec, either, took FROM every) e`
	s.want(list, `(-9223372036854775808,f,-2147483648,1e-45,5e-324,"","\\x00ff",BAD,`+least+`,0001-01-01,"0001-01-01 00:00:00.000001","0001-01-01 00:00:00.000001",23:59:59.999,,{},"{""a,\\""b"",""""}","{""k"": 0.1}","{""x"": {""x"": null}}","""x""","1 mon 2 days 00:00:03.5")`+"\n"+
		`(0,f,0,-Infinity,Infinity," ","\\x00ff",BAD,0.0000000000,2026-03-29,"2026-03-29 01:59:59.123456","2026-03-29 01:59:59.123456",23:59:59.999,,{NULL},"{""a,\\""b"",""""}","{""k"": 0.1}","{""x"": {""x"": null}}",,"1 mon 2 days 00:00:03.5")`+"\n"+
		`(9223372036854775807,t,2147483647,3.4028235e+38,1.7976931348623157e+308,"é`+"\n"+`","\\x00ff",BAD,`+most+`,2026-03-29,"2026-03-29 01:59:59.123456","2026-03-29 01:59:59.123456",23:59:59.999,6ba7b810-9dad-11d1-80b4-00c04fd430c8,"{9223372036854775807,NULL,-9223372036854775808}","{""a,\\""b"",""""}","{""k"": 0.1}","{""x"": {""x"": null}}",7,"1 mon 2 days 00:00:03.5")`)
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

const everyProto = `syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/duration.proto";
message All {
  enum Kind { NONE = 0; LARGE = 1; }
  message Line { string sku = 1; Line inner = 2; }
  int64 id = 1; uint64 u64 = 2; uint32 u32 = 3; sint32 s32 = 4; fixed64 f64 = 5; bool b = 6; string text = 7; bytes raw = 8; Kind kind = 9; float f = 10; double d = 11;
  google.protobuf.Timestamp at = 12; google.protobuf.Int64Value wrapped = 13; google.protobuf.BoolValue maybe = 14; google.protobuf.Struct doc = 15; google.protobuf.Duration took = 16;
  repeated uint64 many = 17; repeated Line lines = 18; map<string, int32> by_name = 19; Line line = 20; optional string opt = 21; oneof one { string a = 22; int32 n = 23; } repeated Kind kinds = 24;
}`

func TestATableOfEveryProtobufTypeHoldsItsExtremes(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	id := s.schema(reg, 1, sr.TypeProtobuf, everyProto)
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{"all.proto": everyProto})})}
	files, err := c.Compile(t.Context(), "all.proto")
	must(t, err)
	for _, text := range []string{
		`id: 9223372036854775807 u64: 18446744073709551615 u32: 4294967295 s32: -2147483648 f64: 18446744073709551615 b: true text: "é" raw: "\000\377" kind: LARGE f: inf d: 5e-324
		 at {seconds: 253402300799 nanos: 999999000} wrapped {value: -9223372036854775808} maybe {} doc {fields {key: "k" value {number_value: 0.1}}} took {seconds: -1 nanos: -1}
		 many: 18446744073709551615 many: 0 lines {sku: "x"} by_name {key: "a" value: -1} line {inner {sku: "y"}} opt: "" n: 5 kinds: LARGE kinds: NONE`,
		`id: -9223372036854775808`,
	} {
		m := dynamicpb.NewMessage(files[0].FindDescriptorByName("shop.All").(protoreflect.MessageDescriptor))
		must(t, prototext.Unmarshal([]byte(text), m))
		data, err := proto.Marshal(m)
		must(t, err)
		s.produce(&kgo.Record{Value: by(id, append([]byte{0}, data...))})
	}
	s.run(s.route("format: protobuf", "id: {position: true}", "to: {table: every, write: upsert, create: true, primary_key: [id]}"))
	if got, want := s.columns("every"), "id bigint, u64 numeric(20,0), u32 bigint, s32 integer, f64 numeric(20,0), b boolean, text text, raw bytea, kind text, f real, d double precision, at timestamp with time zone, wrapped bigint, maybe boolean, "+
		"doc jsonb, took text, many numeric(20,0)[], lines jsonb, by_name jsonb, line jsonb, opt text, a text, n integer, kinds text[]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.want(`SELECT string_agg(e::text, E'\n' ORDER BY id) FROM (SELECT id, u64, u32, s32, f64, b, text, raw, kind, f, d, at AT TIME ZONE 'UTC', wrapped, maybe, doc, took, many, lines, by_name, line, opt, a, n, kinds FROM every) e`,
		`(-9223372036854775808,0,0,0,0,f,"","\\x",NONE,0,0,,,,,,{},[],{},,,,,{})`+"\n"+
			`(9223372036854775807,18446744073709551615,4294967295,-2147483648,18446744073709551615,t,é,"\\x00ff",LARGE,Infinity,5e-324,"9999-12-31 23:59:59.999999",-9223372036854775808,f,"{""k"": 0.1}",PT-1.000000001S,`+
			`"{18446744073709551615,0}","[{""sku"": ""x""}]","{""a"": -1}","{""sku"": """", ""inner"": {""sku"": ""y""}}","",,5,"{LARGE,NONE}")`)
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

func TestATableOfEveryJSONSchemaTypeHoldsItsExtremes(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	id := s.schema(reg, 1, sr.TypeJSON, `{"type":"object","$defs":{"money":{"type":"number"}},"properties":{"id":{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807},"n":{"type":"integer"},"half":{"type":"integer","minimum":0},
		"small":{"type":"integer","connect.type":"int16"},"x":{"$ref":"#/$defs/money"},"at":{"type":"string","format":"date-time"},"day":{"type":["string","null"],"format":"date"},"clock":{"type":"string","format":"time"},
		"u":{"oneOf":[{"type":"null"},{"type":"string","format":"uuid"}]},"text":{"enum":["a","b"]},"yes":{"type":"boolean"},"doc":{"type":"object","additionalProperties":true},"list":{"type":"array","items":{"type":"integer"}},"any":{},"two":{"type":["integer","string"]}}}`)
	huge := strings.Repeat("9", 60)
	for _, v := range []string{
		`{"id":-9223372036854775808,"n":` + huge + `,"half":18446744073709551616,"small":-32768,"x":-0.` + huge + `,"at":"9999-12-31T23:59:59.999999+14:00","day":"9999-12-31","clock":"23:59:59.9999999Z","u":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","text":"a","yes":true,"doc":{"a":` + huge + `},"list":[` + huge + `],"any":1.50,"two":"x"}`,
		`{"id":9223372036854775807,"small":null,"any":null,"two":7,"day":null}`,
	} {
		s.produce(&kgo.Record{Value: by(id, []byte(v))})
	}
	s.run(s.route("format: json-schema", "id: {fields: [value.id]}", "to: {table: every, write: insert, create: true, primary_key: [id]}"))
	if got, want := s.columns("every"), "any jsonb, at timestamp with time zone, clock text, day date, doc jsonb, half numeric, id bigint, list jsonb, n numeric, small smallint, text text, two jsonb, u uuid, x numeric, yes boolean"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.want(`SELECT string_agg(e::text, E'\n' ORDER BY id) FROM (SELECT id, n, half, small, x, at AT TIME ZONE 'UTC', day, clock, u, text, yes, doc, list, "any", two FROM every) e`,
		`(-9223372036854775808,`+huge+`,18446744073709551616,-32768,-0.`+huge+`,"9999-12-31 09:59:59.999999",9999-12-31,23:59:59.9999999Z,6ba7b810-9dad-11d1-80b4-00c04fd430c8,a,t,"{""a"": `+huge+`}",[`+huge+`],1.50,"""x""")`+"\n"+
			`(9223372036854775807,,,,,,,,,,,,,,7)`)
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

const (
	partV1 = `{"type":"record","name":"Part","fields":[{"name":"id","type":"long"}]}`
	partV2 = `{"type":"record","name":"Part","fields":[{"name":"id","type":"long"},{"name":"note","type":["null","string"],"default":null},{"name":"cost","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}`
)

// part is a message by one of them.
func part(t *testing.T, version uint32, id int64) *kgo.Record {
	t.Helper()
	if version == 1 {
		return &kgo.Record{Value: by(1, avroOf(t, partV1, map[string]any{"id": id}))}
	}
	return &kgo.Record{Value: by(version, avroOf(t, partV2, map[string]any{"id": id, "note": "n", "cost": rat("1.25")}))}
}

// Two instances of two lanes each meet the missing table, and later the newer schema, at once.
func TestInstancesMakeATableAndItsColumnsTogether(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	s.topic += "-parts"
	s.create(s.topic, 4, nil)
	s.schema(reg, 1, sr.TypeAvro, partV1)
	route := s.route("from: {topics: [TOPIC], concurrency: 2, session_timeout: 6s}", "format: avro", "id: {fields: [value.id]}", "to: {table: parts, write: insert, create: true, evolve: add-columns, primary_key: [id]}")
	a, b := s.start(route), s.start(route)
	send := func(version uint32, from int64) {
		for i := range int64(40) {
			r := part(t, version, from+i)
			r.Partition = int32(i % 4)
			s.produce(r)
		}
	}
	send(1, 0)
	until(t, "all of the first schema are there", func() bool { return s.count("parts") == 40 })
	s.schema(reg, 2, sr.TypeAvro, partV2)
	send(2, 40)
	send(1, 80)
	until(t, "all are there", func() bool { return s.count("parts") == 120 })
	for _, r := range []*running{a, b} {
		if result := r.stop(); len(result.Halted) > 0 {
			t.Errorf("halted: %+v", result.Halted)
		}
	}
	if got, want := s.columns("parts"), "id bigint, note text, cost numeric(9,2)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.want("SELECT concat_ws(' ', count(*), count(note), sum(cost), count(*) FILTER (WHERE (id BETWEEN 40 AND 79) <> (note IS NOT NULL))) FROM parts", "120 40 50.00 0")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	s.sums()
}

// Serializers may name subjects by the record, or by topic and record.
func TestTheSubjectOfASchemaIsNamed(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ under, subject string }{{"shop.Part", "shop.Part"}, {"TOPIC-shop.Part", "'{0}-shop.Part'"}} {
		s, reg := registered(t, "")
		reg.SeedSchema(strings.ReplaceAll(c.under, "TOPIC", s.topic), 1, 2, sr.Schema{Type: sr.TypeAvro, Schema: partV2})
		s.produce(part(t, 2, 1))
		s.run(s.route("format: avro", "schema: {subject: "+c.subject+"}", "id: {fields: [value.id]}", "to: {table: parts, write: insert, create: true, primary_key: [id]}"))
		if got, want := s.columns("parts"), "id bigint, note text, cost numeric(9,2)"; got != want {
			t.Errorf("%d: got  %s\nwant %s", i, got, want)
		}
		s.want("SELECT count(*) FROM parts", "1")
	}
}

func TestWithoutEvolveANewFieldIsUnknown(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "CREATE TABLE parts (id bigint PRIMARY KEY)")
	s.schema(reg, 2, sr.TypeAvro, partV2)
	s.produce(part(t, 2, 1))
	r := s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: parts, write: insert, create: true, primary_key: [id]}"))
	if n := r.Tallies[0].UnknownFields; n != 2 {
		t.Errorf("%d unknown fields", n)
	}
	if got := s.columns("parts"); got != "id bigint" {
		t.Errorf("altered: %s", got)
	}
}

// A field that the schema doesn't know has no type: it stays unknown beside those that get columns.
func TestAFieldWithoutASchemaStaysUnknownThoughTheTableEvolves(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "CREATE TABLE parts (id bigint PRIMARY KEY)")
	id := s.schema(reg, 1, sr.TypeJSON, `{"type":"object","properties":{"id":{"type":"integer","maximum":9,"minimum":0},"note":{"type":"string"}}}`)
	s.produce(&kgo.Record{Value: by(id, []byte(`{"id":1,"note":"x"}`))}, &kgo.Record{Value: by(id, []byte(`{"id":2,"stray":1}`))})
	to := "to: {table: parts, write: insert, evolve: add-columns, primary_key: [id], unknown_fields: %s}"
	r, err := s.try(s.route("format: json-schema", "id: {fields: [value.id]}", fmt.Sprintf(to, "halt")))
	must(t, err)
	if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, "1 fields without a column") {
		t.Fatalf("%+v", r.Halted)
	}
	r = s.run(s.route("format: json-schema", "id: {fields: [value.id]}", fmt.Sprintf(to, "ignore")))
	if n := r.Tallies[0].UnknownFields; n != 1 {
		t.Errorf("%d unknown fields", n)
	}
	s.want("SELECT string_agg(p::text, ' ' ORDER BY id) FROM parts p", "(1,x) (2,)")
}

func TestATypeThatNoLongerFitsHaltsTheRouteAndIsNamed(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	s.schema(reg, 1, sr.TypeAvro, partV1)
	route := s.route("format: avro", "id: {position: true}", "to: {table: parts, write: append, create: true, evolve: add-columns}")
	s.produce(part(t, 1, 1))
	s.run(route)
	other := `{"type":"record","name":"Part","fields":[{"name":"id","type":"string"},{"name":"more","type":"int"}]}`
	s.produce(part(t, 1, 2), &kgo.Record{Value: by(2, avroOf(t, other, map[string]any{"id": "3", "more": int32(1)}))})
	reg.SeedSchema("elsewhere", 1, 2, sr.Schema{Type: sr.TypeAvro, Schema: other}) // the newest of the topic is still the first
	r, err := s.try(route)
	must(t, err)
	if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, `column "id": it is bigint, and by the schema values are text`) || !strings.Contains(r.Halted[0].Reason, "ALTER COLUMN \"id\" TYPE text") {
		t.Fatalf("%+v", r.Halted)
	}
	if got := s.columns("parts"); got != "id bigint" {
		t.Errorf("altered: %s", got)
	}
	s.exec(`ALTER TABLE parts ALTER COLUMN "id" TYPE text`)
	s.run(route)
	s.want("SELECT string_agg(concat_ws('|', id, more), ' ' ORDER BY id) FROM parts", "1 2 3|1")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

// The process is killed when the columns are there and before the batch that needs them is written.
func TestKilledBetweenTheColumnAndItsBatchLosesNothing(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	s.schema(reg, 1, sr.TypeAvro, partV1)
	text := s.text(s.route("format: avro", "from: {topics: [TOPIC], session_timeout: 6s}", "id: {fields: [value.id]}", "to: {table: parts, write: insert, create: true, evolve: add-columns, primary_key: [id]}"))
	s.produce(part(t, 1, 1))
	p := s.spawn(nil, nil, text)
	until(t, "the first is there", func() bool { return s.count("parts") == 1 })
	block, err := pgx.Connect(within(t), s.url)
	must(t, err)
	defer block.Close(context.Background())
	_, err = block.Exec(within(t), "BEGIN; LOCK semel.watermark IN EXCLUSIVE MODE") // no batch can begin
	must(t, err)
	s.schema(reg, 2, sr.TypeAvro, partV2)
	s.produce(part(t, 2, 2))
	until(t, "the columns are there", func() bool { return s.columns("parts") == "id bigint, note text, cost numeric(9,2)" })
	p.signal(syscall.SIGKILL)
	<-p.end
	s.want("SELECT count(*) FROM parts", "1")
	_, err = block.Exec(within(t), "ROLLBACK")
	must(t, err)
	s.spawn(nil, nil, text)
	until(t, "the second is there", func() bool { return s.count("parts") == 2 })
	s.want("SELECT string_agg(p::text, ' ' ORDER BY id) FROM parts p", "(1,,) (2,n,1.25)")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

// Change events of a database in Avro: the rows' columns, with the types of the source, keys from the messages' keys.
func TestTablesOfAnotherDatabaseAreMadeAndMirrored(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	const row = `{"type":"record","name":"Value","fields":[{"name":"id","type":"long"},{"name":"Code","type":"string"},{"name":"total","type":["null",{"type":"bytes","logicalType":"decimal","precision":15,"scale":5,"connect.name":"org.apache.kafka.connect.data.Decimal"}]},
		{"name":"vast","type":["null",{"type":"record","name":"V","connect.name":"io.debezium.data.VariableScaleDecimal","fields":[{"name":"scale","type":"int"},{"name":"value","type":"bytes"}]}]},
		{"name":"placed","type":["null",{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}]},{"name":"seen","type":["null",{"type":"string","connect.name":"io.debezium.time.ZonedTimestamp"}]},
		{"name":"due","type":["null",{"type":"int","connect.name":"io.debezium.time.Date"}]},{"name":"at","type":["null",{"type":"long","connect.name":"io.debezium.time.MicroTime"}]},
		{"name":"u","type":["null",{"type":"string","connect.name":"io.debezium.data.Uuid"}]},{"name":"doc","type":["null",{"type":"string","connect.name":"io.debezium.data.Json"}]},{"name":"tags","type":["null",{"type":"array","items":["null","string"]}]},
		{"name":"bits","type":["null",{"type":"bytes","connect.name":"io.debezium.data.Bits","connect.parameters":{"length":"9"}}]},{"name":"took","type":["null",{"type":"long","connect.name":"io.debezium.time.MicroDuration"}]}]}`
	const event = `{"type":"record","name":"Envelope","fields":[{"name":"before","type":["null",` + row + `]},{"name":"after","type":["null","Value"]},{"name":"op","type":"string"},
		{"name":"source","type":{"type":"record","name":"S","fields":[{"name":"connector","type":"string"},{"name":"lsn","type":["null","long"]}]}}]}`
	const key = `{"type":"record","name":"Key","fields":[{"name":"Code","type":"string"},{"name":"id","type":"long"}]}`
	at := func(id int64, op string, after any) *kgo.Record {
		return &kgo.Record{
			Topic: s.topic + ".orders", Key: by(2, avroOf(t, key, map[string]any{"id": id, "Code": "x"})),
			Value: by(1, avroOf(t, event, map[string]any{"before": nil, "after": after, "op": op, "source": map[string]any{"connector": "postgresql", "lsn": id}})),
		}
	}
	reg.SeedSchema(s.topic+".orders-value", 1, 1, sr.Schema{Schema: event})
	reg.SeedSchema(s.topic+".orders-key", 1, 2, sr.Schema{Schema: key})
	route := s.matching("(.*)", "format: avro", "envelope: debezium", "id: {position: true}", `to: {table: 'public."{1}"', write: mirror, create: true, evolve: add-columns}`)
	d := s.start(route)
	s.create(s.topic+".orders", 1, nil) // while it runs
	full := map[string]any{
		"id": int64(1), "Code": "x", "total": rat("-9999999999.99999"), "vast": map[string]any{"scale": int32(-2), "value": []byte{1}}, "placed": int64(-1), "seen": "2026-03-29T01:59:59.123456Z", "due": int32(-1), "at": int64(86399999999),
		"u": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "doc": `{"a": 1.50}`, "tags": []any{"a", nil}, "bits": []byte{0xff, 1}, "took": int64(-1500000),
	}
	empty := map[string]any{"id": int64(2), "Code": "x", "total": nil, "vast": nil, "placed": nil, "seen": nil, "due": nil, "at": nil, "u": nil, "doc": nil, "tags": nil, "bits": nil, "took": nil}
	gone := map[string]any{}
	for k, v := range empty {
		gone[k] = v
	}
	gone["id"] = int64(3)
	s.produce(at(1, "c", full), at(2, "c", empty), at(3, "c", gone), at(3, "d", nil))
	until(t, "all are there", func() bool { return s.count("orders WHERE id < 3") == 2 && s.count("orders") == 2 })
	d.stop()
	if got, want := s.columns("orders"), "id bigint, Code text, total numeric(15,5), vast numeric, placed timestamp without time zone, seen timestamp with time zone, due date, at time without time zone, u uuid, doc jsonb, tags text[], bits bit varying(9), took interval"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.want(`SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'orders'::regclass`, `CREATE UNIQUE INDEX orders_pkey ON public.orders USING btree ("Code", id)`)
	s.want(`SELECT string_agg(o::text, E'\n' ORDER BY id) FROM (SELECT id, "Code", total, vast, placed, seen AT TIME ZONE 'UTC', due, at, u, doc, tags, bits, took FROM orders) o`,
		`(1,x,-9999999999.99999,100,"1969-12-31 23:59:59.999999","2026-03-29 01:59:59.123456",1969-12-31,23:59:59.999999,6ba7b810-9dad-11d1-80b4-00c04fd430c8,"{""a"": 1.50}","{a,NULL}",111111111,-00:00:01.5)`+"\n(2,x,,,,,,,,,,,)")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

// The topics of a table may be found by their names, and more of them may come while the route runs.
func TestOneTableOfMatchingTopicsIsMadeByTheSchemasOfAll(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "")
	route := s.matching("parts-.*", "format: avro", "id: {fields: [value.id]}", "to: {table: parts, write: insert, create: true, evolve: add-columns, primary_key: [id]}")
	findings := func() (all string) {
		fs, err := daemon.Check(within(t), s.file(route), quiet)
		must(t, err)
		for _, f := range fs {
			all += fmt.Sprintf("%v %s\n", f.Wrong, f.What)
		}
		return all
	}
	if got := findings(); strings.Contains(got, "true ") || !strings.Contains(got, "what columns there are is said by the schemas of the topics, and none that the route reads is there") {
		t.Error(got)
	}
	send := func(name string, version uint32, text string, id int64) {
		t.Helper()
		reg.SeedSchema(s.topic+"."+name+"-value", 1, int(version), sr.Schema{Schema: text})
		s.create(s.topic+"."+name, 1, nil)
		r := part(t, version, id)
		r.Topic = s.topic + "." + name
		s.produce(r)
	}
	send("parts-a", 1, partV1, 1)
	d := s.start(route)
	until(t, "the first is there", func() bool { return s.count("parts") == 1 })
	send("parts-b", 2, partV2, 2)
	until(t, "the second is there", func() bool { return s.count("parts") == 2 })
	d.stop()
	s.want("SELECT string_agg(p::text, ' ' ORDER BY id) FROM parts p", "(1,,) (2,n,1.25)")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	s.exec("DROP TABLE parts")
	if got := findings(); !strings.Contains(got, "table parts is missing, and will be made") {
		t.Error(got)
	}
	sql, err := daemon.Plan(within(t), s.file(route))
	must(t, err)
	s.exec(sql)
	if got, want := s.columns("parts"), "id bigint, note text, cost numeric(9,2)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What a plan prints is run as it is, and then the routes run without leave to make anything.
func TestAPlanIsAllThatARouteNeeds(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, "CREATE TABLE old (id bigint PRIMARY KEY)")
	s.schema(reg, 2, sr.TypeAvro, partV2)
	s.produce(part(t, 2, 1))
	routes := func(leave string) []string {
		return []string{
			s.route("format: avro", "id: {fields: [value.id]}", "to: {table: 'public.\"New Parts\"', write: insert, primary_key: [id]"+leave+"}"),
			s.route("name: s", "consumer: TOPIC-s", "format: avro", "id: {position: true}", "to: {table: old, write: upsert, columns: {id: value.id, kept: value.note, Cost: value.cost, long: 'value.note == null ? \"\" : string(value.note)', sent: timestamp}"+leave+"}"),
			s.route("name: j", "consumer: TOPIC-j", "id: {position: true}", "to: {table: none, write: append}"),
		}
	}
	found := func(routes ...string) string {
		t.Helper()
		fs, err := daemon.Check(within(t), s.file(routes...), quiet)
		must(t, err)
		var b strings.Builder
		for _, f := range fs {
			fmt.Fprintf(&b, "%v %s (%s)\n", f.Wrong, f.What, f.Hint)
		}
		return b.String()
	}
	off := found(routes("")...)
	for _, want := range []string{`table public."New Parts": it does not exist (semel check --plan prints the SQL)`, `column "kept": it does not exist (semel check --plan prints the SQL)`, "table none: it does not exist ()"} {
		if !strings.Contains(off, want) {
			t.Errorf("no %q in\n%s", want, off)
		}
	}
	on := found(routes(", create: true, evolve: add-columns")[:2]...)
	if strings.Contains(on, "true ") || !strings.Contains(on, `"New Parts" is missing, and will be made`) || !strings.Contains(on, "table old lacks columns, which will be added") {
		t.Error(on)
	}
	sql, err := daemon.Plan(within(t), s.file(routes("")...))
	must(t, err)
	if !strings.Contains(sql, "-- route j: table none is missing, and format: json has no schema: write the CREATE TABLE yourself") {
		t.Error(sql)
	}
	s.want("SELECT to_regclass('public.\"New Parts\"') IS NULL", "true")
	s.exec(sql)
	s.run(routes("")[:2]...)
	s.want(`SELECT concat_ws(' ', n::text, o.id, o.kept, o."Cost", o.long, o.sent IS NOT NULL) FROM "New Parts" n, old o`, "(1,n,1.25) 1 n 1.25 n t")
	if got := s.columns("old"); got != "id bigint, kept text, Cost numeric(9,2), long text, sent timestamp with time zone" {
		t.Error(got)
	}
}

// changeEvent is a change event as Kafka Connect's JSON converter writes it, with its schema; fields are the row's, as the
// converter has them.
func changeEvent(op, key, fields, row string) *kgo.Record {
	struct_ := func(name, of string) string {
		return `{"type":"struct","optional":true,"field":"` + name + `","fields":[` + of + `]}`
	}
	schema := struct_("", struct_("before", fields)+","+struct_("after", fields)+`,{"type":"string","field":"op"}`)
	image := `"before":null,"after":` + row
	if op == "d" {
		image = `"before":` + row + `,"after":null`
	}
	return &kgo.Record{
		Key:   []byte(`{"schema":{"type":"struct","fields":[{"type":"int64","field":"id"},{"type":"string","field":"Code"}]},"payload":` + key + `}`),
		Value: []byte(`{"schema":` + schema + `,"payload":{` + image + `,"op":"` + op + `","source":{"connector":"postgresql","lsn":1}}}`),
	}
}

// The schema that change events bring with them says as much as one in a registry: of a table that is missing, and of columns
// that come later.
func TestSchemasInsideOfChangeEventsMakeTables(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "")
	const first = `{"type":"int64","field":"id"},{"type":"string","field":"Code"},
		{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"5","connect.decimal.precision":"15"},"field":"total"},
		{"type":"struct","name":"io.debezium.data.VariableScaleDecimal","fields":[{"type":"int32","field":"scale"},{"type":"bytes","field":"value"}],"field":"vast"},
		{"type":"int64","name":"io.debezium.time.MicroTimestamp","field":"placed"},{"type":"string","name":"io.debezium.time.ZonedTimestamp","field":"seen"},{"type":"int32","name":"io.debezium.time.Date","field":"due"},
		{"type":"int64","name":"io.debezium.time.MicroTime","field":"at"},{"type":"string","name":"io.debezium.data.Uuid","field":"u"},{"type":"string","name":"io.debezium.data.Json","field":"doc"},
		{"type":"array","items":{"type":"string","optional":true},"field":"tags"},{"type":"bytes","name":"io.debezium.data.Bits","parameters":{"length":"9"},"field":"bits"},
		{"type":"int64","name":"io.debezium.time.MicroDuration","field":"took"},{"type":"bytes","field":"raw"},{"type":"map","keys":{"type":"string"},"values":{"type":"int32"},"field":"m"},{"type":"float","field":"f"},{"type":"boolean","field":"b"},{"type":"int16","field":"small"}`
	const second = first + `,{"type":"string","name":"io.debezium.data.Enum","field":"note"}`
	const row = `{"id":%d,"Code":"x","total":"AYaf","vast":{"scale":2,"value":"AYaf"},"placed":-1,"seen":"2026-03-29T01:59:59.123456Z","due":-1,"at":86399999999,"u":"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
		"doc":"{\"a\": 1.50}","tags":["a",null],"bits":"/wE=","took":-1500000,"raw":"AP8=","m":{"k":1},"f":0.5,"b":true,"small":-1%s}`
	key := func(id int) string { return fmt.Sprintf(`{"id":%d,"Code":"x"}`, id) }
	d := s.start(s.matching("(.*)", "envelope: debezium", "id: {position: true}", `to: {table: 'public."{1}"', write: mirror, create: true, evolve: add-columns}`))
	one := s.start(s.route("consumer: TOPIC-one", "from: {topics: [TOPIC.orders]}", "envelope: debezium", "id: {position: true}", `to: {table: one, write: mirror, create: true}`))
	s.create(s.topic+".orders", 1, nil) // while both run: they wait for its first event
	send := func(r *kgo.Record) {
		r.Topic = s.topic + ".orders"
		s.produce(r)
	}
	send(changeEvent("c", key(1), first, fmt.Sprintf(row, 1, "")))
	until(t, "the first is there", func() bool { return s.count("orders") == 1 && s.count("one") == 1 })
	const columns = "id bigint, Code text, total numeric(15,5), vast numeric, placed timestamp without time zone, seen timestamp with time zone, due date, at time without time zone, u uuid, doc jsonb, tags text[], " +
		"bits bit varying(9), took interval, raw bytea, m jsonb, f real, b boolean, small smallint"
	if got := s.columns("one"); got != columns {
		t.Errorf("got  %s\nwant %s", got, columns)
	}
	send(changeEvent("u", key(2), second, fmt.Sprintf(row, 2, `,"note":"n"`)))
	send(changeEvent("d", key(1), second, `{"id":1,"Code":"x"}`))
	send(&kgo.Record{Key: []byte(key(1))})
	until(t, "the second alone is there", func() bool {
		return s.count("orders WHERE id = 2") == 1 && s.count("orders") == 1 && s.count("one WHERE id = 2") == 1 && s.count("one") == 1
	})
	d.stop()
	one.stop()
	if got, want := s.columns("orders"), columns+", note text"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := s.columns("one"); got != columns {
		t.Errorf("altered without evolve: %s", got)
	}
	s.want(`SELECT concat_ws('|', id, "Code", total, vast, placed, seen AT TIME ZONE 'UTC', due, at, u, doc, tags, bits, took, raw, m, f, b, small, note) FROM orders`,
		`2|x|0.99999|999.99|1969-12-31 23:59:59.999999|2026-03-29 01:59:59.123456|1969-12-31|23:59:59.999999|6ba7b810-9dad-11d1-80b4-00c04fd430c8|{"a": 1.50}|{a,NULL}|111111111|-00:00:01.5|\x00ff|{"k": 1}|0.5|t|-1|n`)
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	s.want(`SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute JOIN pg_index ON indrelid = attrelid AND attnum = ANY(indkey) WHERE attrelid = 'orders'::regclass`, "id,Code")
}

func TestChangeEventsWithoutASchemaMakeNoTable(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "")
	s.produce(&kgo.Record{Key: []byte(`{"id":1}`), Value: []byte(`{"before":null,"after":{"id":1},"op":"c","source":{"connector":"postgresql","lsn":1}}`)})
	r, err := s.try(s.route("envelope: debezium", "id: {position: true}", `to: {table: one, write: mirror, create: true}`))
	must(t, err)
	if len(r.Halted) != 1 || !strings.Contains(r.Halted[0].Reason, "bring no schema that says what columns there are") {
		t.Errorf("%+v", r.Halted)
	}
}
