package cases_test

import (
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
)

// registered is a scene whose file names a schema registry.
func registered(t *testing.T, ddl string, opts ...srfake.Option) (*scene, *srfake.Registry) {
	t.Helper()
	s := newScene(t, 1, ddl)
	reg := srfake.New(opts...)
	t.Cleanup(reg.Close)
	s.more = fmt.Sprintf("schema_registry: {url: %q}\n", reg.URL())
	return s, reg
}

// by puts the zero and the ID in front of data.
func by(id uint32, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), data...)
}

// avroOf encodes by another encoder.
func avroOf(t *testing.T, schema string, v any, references ...string) []byte {
	t.Helper()
	var cache avro.SchemaCache
	for _, r := range references {
		_, err := cache.Parse(r)
		must(t, err)
	}
	s, err := cache.Parse(schema)
	must(t, err)
	data, err := s.Encode(v)
	must(t, err)
	return data
}

const (
	orderV1 = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}}]}`
	orderV2 = `{"type":"record","name":"Order","fields":[{"name":"note","type":["null","string"],"default":null},{"name":"id","type":"long"},{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}}]}`
)

func rat(s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		panic(s)
	}
	return r
}

// G25: the scale is the writer's, and no digit is lost.
func TestAvroDecimalsKeepTheirScale(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, a numeric(15,5), b numeric(38,10), n numeric)`)
	const schema = `{"type":"record","name":"D","fields":[{"name":"id","type":"long"},{"name":"a","type":{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}},
		{"name":"b","type":["null",{"type":"fixed","name":"F","size":16,"logicalType":"decimal","precision":38,"scale":10}]}]}`
	reg.SeedSchema("d-value", 1, 7, sr.Schema{Schema: schema})
	most := "9999999999999999999999999999.9999999999"
	for i, v := range [][2]string{{"60", most}, {"-0.00001", "-" + most}, {"0", "-0.0000000001"}} {
		s.produce(&kgo.Record{Value: by(7, avroOf(t, schema, map[string]any{"id": int64(i), "a": rat(v[0]), "b": rat(v[1])}))})
	}
	s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert, columns: {id: value.id, a: value.a, b: value.b, n: value.a}}"))
	s.want("SELECT string_agg(concat_ws('|', a, b, n), ' ' ORDER BY id) FROM o",
		"60.00000|"+most+"|60.00000 -0.00001|-"+most+"|-0.00001 0.00000|-0.0000000001|0.00000")
}

func TestAvroValuesOfEveryTypeReachTheirColumns(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TYPE mood AS ENUM ('GOOD', 'BAD');
		CREATE TABLE o (b bool, i int, l bigint PRIMARY KEY, f real, d double precision, s text, raw bytea, m mood, a bigint[], doc jsonb, day date, at timestamptz, wall timestamp, clock time, u uuid, nothing text, rec jsonb, big double precision, took interval)`)
	const schema = `{"type":"record","name":"All","fields":[
		{"name":"b","type":"boolean"},{"name":"i","type":"int"},{"name":"l","type":"long"},{"name":"f","type":"float"},{"name":"d","type":"double"},{"name":"s","type":"string"},{"name":"raw","type":"bytes"},
		{"name":"m","type":{"type":"enum","name":"M","symbols":["GOOD","BAD"]}},{"name":"a","type":{"type":"array","items":["null","long"]}},{"name":"doc","type":{"type":"map","values":"string"}},
		{"name":"day","type":{"type":"int","logicalType":"date"}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"wall","type":{"type":"long","logicalType":"local-timestamp-millis"}},
		{"name":"clock","type":{"type":"long","logicalType":"time-micros"}},{"name":"u","type":{"type":"string","logicalType":"uuid"}},{"name":"nothing","type":["null","string"]},
		{"name":"rec","type":{"type":"record","name":"R","fields":[{"name":"x","type":["null","R"]},{"name":"y","type":"int"}]}},{"name":"big","type":"double"},{"name":"took","type":{"type":"fixed","name":"T","size":12,"logicalType":"duration"}}]}`
	reg.SeedSchema("all-value", 1, 1, sr.Schema{Schema: schema})
	at := time.Date(2026, 3, 29, 1, 59, 59, 123456000, time.UTC)
	s.produce(&kgo.Record{Value: by(1, avroOf(t, schema, map[string]any{
		"b": true, "i": int32(-5), "l": int64(9007199254740993), "f": float32(0.1), "d": 1e-300, "s": "a\"é\n", "raw": []byte{0, 255}, "m": "BAD",
		"a": []any{int64(1), nil}, "doc": map[string]any{"k": "v"}, "day": at, "at": at, "wall": at, "clock": 5*time.Hour + time.Microsecond,
		"u": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "nothing": nil, "rec": map[string]any{"x": map[string]any{"x": nil, "y": int32(1)}, "y": int32(2)},
		"big": posInf, "took": avro.Duration{Months: 1, Days: 2, Milliseconds: 3500},
	}))})
	s.run(s.route("format: avro", "id: {position: true}", "to: {table: o, write: append}"))
	s.want("SELECT o FROM (SELECT b, i, l, f, d, s, raw, m, a, doc, day, at AT TIME ZONE 'UTC', wall, clock, u, nothing, rec, big, took FROM o) o",
		"(t,-5,9007199254740993,0.1,1e-300,\"a\"\"é\n\","+`"\\x00ff",BAD,"{1,NULL}","{""k"": ""v""}",2026-03-29,"2026-03-29 01:59:59.123456","2026-03-29 01:59:59.123",05:00:00.000001,6ba7b810-9dad-11d1-80b4-00c04fd430c8,,"{""x"": {""x"": null, ""y"": 1}, ""y"": 2}",Infinity,"1 mon 2 days 00:00:03.5")`)
}

var posInf = func() float64 { var zero float64; return 1 / zero }()

func TestSchemasMayChangeWhileItRuns(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric, note text)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	r := s.start(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}"))
	one := func(id int64) *kgo.Record {
		return &kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": id, "total": rat("1.5")}))}
	}
	s.produce(one(1))
	until(t, "the first is there", func() bool { return s.count("o") == 1 })
	reg.SeedSchema("o-value", 2, 2, sr.Schema{Schema: orderV2})
	s.produce(&kgo.Record{Value: by(2, avroOf(t, orderV2, map[string]any{"id": int64(2), "total": rat("2.5"), "note": "x"}))}, one(3))
	until(t, "all are there", func() bool { return s.count("o") == 3 })
	r.stop()
	s.want("SELECT string_agg(concat_ws('|', id, total, note), ' ' ORDER BY id) FROM o", "1|1.50000 2|2.50000|x 3|1.50000")
}

func TestOneTopicMayHoldSeveralTypesWithReferences(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, city text, amount bigint)`)
	const city = `{"type":"record","name":"City","namespace":"geo","fields":[{"name":"name","type":"string"}]}`
	const placed = `{"type":"record","name":"Placed","fields":[{"name":"id","type":"long"},{"name":"at","type":"geo.City"}]}`
	const paid = `{"type":"record","name":"Paid","fields":[{"name":"amount","type":"int"},{"name":"id","type":"long"}]}`
	reg.SeedSchema("city", 1, 1, sr.Schema{Schema: city})
	reg.SeedSchema("placed", 1, 2, sr.Schema{Schema: placed, References: []sr.SchemaReference{{Name: "geo.City", Subject: "city", Version: 1}}})
	reg.SeedSchema("paid", 1, 3, sr.Schema{Schema: paid})
	s.produce(
		&kgo.Record{Value: by(2, avroOf(t, placed, map[string]any{"id": int64(1), "at": map[string]any{"name": "Łódź"}}, city))},
		&kgo.Record{Value: by(3, avroOf(t, paid, map[string]any{"id": int64(2), "amount": int32(5)}))},
	)
	s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert, columns: {id: value.id, city: value.at.name, amount: value.amount}}"))
	s.want("SELECT string_agg(concat_ws('|', id, city, amount), ' ' ORDER BY id) FROM o", "1|Łódź 2|5")
}

func TestARegistryThatIsDownIsWaitedOut(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	var down atomic.Bool
	var refused atomic.Int32
	down.Store(true)
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if !down.Load() {
			return false
		}
		refused.Add(1)
		http.Error(w, `{"error_code":50003,"message":"no leader"}`, http.StatusInternalServerError)
		return true
	})
	for i := range 50 {
		s.produce(&kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": int64(i), "total": rat("1")}))})
	}
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}")
	r := s.start(route)
	until(t, "it has asked in vain again and again", func() bool { return refused.Load() >= 3 })
	r.alive()
	if _, err := daemon.DryRun(within(t), daemon.Config{File: s.file(route), Logger: quiet}, 5); err == nil || !strings.Contains(err.Error(), "schema registry") {
		t.Errorf("the dry run says %v", err)
	}
	if n := s.count("semel.dead_letter"); n != 0 || s.count("o") != 0 {
		t.Errorf("%d dead letters while the registry is down", n)
	}
	down.Store(false)
	until(t, "all are there", func() bool { return s.count("o") == 50 })
	r.stop()
	if s.outcomes() != "50 applied" {
		t.Error(s.outcomes())
	}
}

func TestWrongCredentialsOfTheRegistryAreAnOutage(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`, srfake.WithAuth("Basic c2VtZWw6cmlnaHQ=")) // semel:right
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte("wrong\n"), 0o600))
	s.more = fmt.Sprintf("schema_registry: {url: %q, user: semel, password: {file: %q}}\n", reg.URL(), file)
	s.produce(&kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": int64(1), "total": rat("1")}))})
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}")
	_, err := daemon.Check(within(t), s.file(route), quiet)
	if err == nil || !strings.Contains(err.Error(), "refuses our credentials") {
		t.Errorf("check says %v", err)
	}
	r := s.start(route)
	until(t, "the partition is claimed", func() bool {
		return s.ask("SELECT to_regclass('semel.watermark') IS NOT NULL") == "true" && s.count("semel.watermark") == 1
	})
	must(t, os.WriteFile(file, []byte("right\n"), 0o600))
	until(t, "it is there", func() bool { return s.count("o") == 1 })
	r.stop()
	if s.outcomes() != "1 applied" {
		t.Error(s.outcomes())
	}
}

func TestTheRegistryMayBeBehindTLS(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	srv := httptest.NewTLSServer(reg.Handler())
	t.Cleanup(srv.Close)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	s.produce(&kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": int64(1), "total": rat("1")}))})
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}")

	s.more = fmt.Sprintf("schema_registry: {url: %q}\n", srv.URL)
	if _, err := daemon.Check(within(t), s.file(route), quiet); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	s.more = fmt.Sprintf("schema_registry: {url: %q, tls: {ca: %q}}\n", srv.URL, ca)
	s.run(route)
	s.want("SELECT o FROM o", "(1,1.00000)")
}

func TestMessagesThatNoSchemaReadsAreBuriedAlone(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	good := func(id int64) *kgo.Record {
		return &kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": id, "total": rat("1")}))}
	}
	cut := good(9)
	cut.Value = cut.Value[:6]
	s.produce(good(1), &kgo.Record{Value: by(99, nil)}, cut, &kgo.Record{Value: []byte(`{"id":5}`)}, good(2))
	s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}"))
	s.want("SELECT string_agg(id::text, ' ' ORDER BY id) FROM o", "1 2")
	s.want("SELECT string_agg(class || ' ' || error, E'\\n' ORDER BY \"offset\") FROM semel.dead_letter",
		"decode value: schema 99: the schema registry doesn't have it\n"+
			"decode value: by schema 1: the data ends inside a value\n"+
			"decode value: no zero in front of the ID of a schema: not written by a serializer with a schema registry")
	s.want("SELECT encode(value, 'hex') FROM semel.dead_letter WHERE error LIKE '%99%'", "0000000063")
}

func TestKeysHaveFormatsToo(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint, region text, total numeric, PRIMARY KEY (id, region))`)
	const key = `{"type":"record","name":"Key","fields":[{"name":"id","type":"long"},{"name":"region","type":"string"}]}`
	reg.SeedSchema("o-key", 1, 1, sr.Schema{Schema: key})
	reg.SeedSchema("o-value", 1, 2, sr.Schema{Schema: orderV1})
	s.produce(&kgo.Record{
		Key:   by(1, avroOf(t, key, map[string]any{"id": int64(1), "region": "north"})),
		Value: by(2, avroOf(t, orderV1, map[string]any{"id": int64(5), "total": rat("1.25")})),
	})
	s.run(s.route("from: {topics: [TOPIC], key_format: avro}", "format: avro", "id: {fields: [key.id, key.region, value.total]}",
		"to: {table: o, write: upsert, columns: {id: key.id, region: key.region, total: value.total}}"))
	s.want("SELECT o FROM o", "(1,north,1.25000)")
}

func TestAvroMayHaveItsSchemaInAFile(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	file := filepath.Join(t.TempDir(), "order.avsc")
	must(t, os.WriteFile(file, []byte(orderV1), 0o600))
	s.produce(&kgo.Record{Value: avroOf(t, orderV1, map[string]any{"id": int64(1), "total": rat("1.25")})})
	route := s.route("format: avro", fmt.Sprintf("schema: {file: %q}", file), "id: {fields: [value.id]}", "to: {table: o, write: insert}")
	s.run(route)
	s.want("SELECT o FROM o", "(1,1.25000)")

	must(t, os.WriteFile(file, []byte(`{"type":"recrod"}`), 0o600))
	var mistake *config.Error
	if _, err := s.try(route); !errors.As(err, &mistake) || mistake.Line < 6 {
		t.Errorf("a wrong schema: %v", err)
	}
}

const orderProto = `syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; LARGE = 1; }
message Order {
  int64 id = 1; uint64 unit_price = 2; string note = 3; optional string maybe = 4; bytes raw = 5; Kind kind = 6;
  google.protobuf.Timestamp at = 7; repeated int64 numbers = 8; map<string, int64> by_name = 9; Line line = 10;
  message Line { string sku = 1; }
}
message Paid { int64 id = 1; }
`

const orderColumns = `CREATE TABLE o (id bigint PRIMARY KEY, unit_price numeric, note text, maybe text, raw bytea, kind text, at timestamptz, numbers bigint[], by_name jsonb, line jsonb)`

// protoOf encodes an order by another encoder.
func protoOf(t *testing.T) (data []byte, set []byte) {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{"order.proto": orderProto})})}
	files, err := c.Compile(t.Context(), "order.proto")
	must(t, err)
	d := files[0].FindDescriptorByName("shop.Order").(protoreflect.MessageDescriptor)
	m := dynamicpb.NewMessage(d)
	f := func(name string) protoreflect.FieldDescriptor { return d.Fields().ByName(protoreflect.Name(name)) }
	m.Set(f("id"), protoreflect.ValueOfInt64(9007199254740993))
	m.Set(f("unit_price"), protoreflect.ValueOfUint64(18446744073709551615))
	m.Set(f("raw"), protoreflect.ValueOfBytes([]byte{0, 255}))
	m.Set(f("kind"), protoreflect.ValueOfEnum(1))
	at := m.Mutable(f("at")).Message()
	at.Set(at.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(1774749599))
	at.Set(at.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32(123456000))
	m.Mutable(f("numbers")).List().Append(protoreflect.ValueOfInt64(-1))
	m.Mutable(f("by_name")).Map().Set(protoreflect.ValueOfString("a").MapKey(), protoreflect.ValueOfInt64(2))
	line := m.Mutable(f("line")).Message()
	line.Set(line.Descriptor().Fields().ByName("sku"), protoreflect.ValueOfString("x"))
	data, err = proto.Marshal(m)
	must(t, err)
	set, err = proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(files[0].Imports().Get(0).FileDescriptor), protodesc.ToFileDescriptorProto(files[0]),
	}})
	must(t, err)
	return data, set
}

const orderRow = `(9007199254740993,18446744073709551615,"",,"\\x00ff",LARGE,"2026-03-29 01:59:59.123456",{-1},"{""a"": 2}","{""sku"": ""x""}")`

const askOrder = "SELECT o FROM (SELECT id, unit_price, note, maybe, raw, kind, at AT TIME ZONE 'UTC', numbers, by_name, line FROM o) o"

func TestProtobufIsReadByTheRegistrysSchema(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, orderColumns)
	reg.SeedSchema("o-value", 1, 4, sr.Schema{Type: sr.TypeProtobuf, Schema: orderProto})
	data, _ := protoOf(t)
	paid := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 5)
	s.produce(
		&kgo.Record{Value: by(4, append([]byte{0}, data...))},     // the first message
		&kgo.Record{Value: by(4, append([]byte{2, 2}, paid...))},  // the second
		&kgo.Record{Value: by(4, append([]byte{2, 20}, paid...))}, // none
	)
	s.run(s.route("format: protobuf", "id: {fields: [value.id]}", "to: {table: o, write: insert}"))
	s.want(askOrder+" WHERE id > 5", orderRow)
	s.want("SELECT o FROM o WHERE id = 5", "(5,,,,,,,,,)")
	s.want("SELECT class || ' ' || error FROM semel.dead_letter", "decode value: by schema 4: a message that the schema doesn't have")
}

func TestProtobufMayHaveItsSchemaInAFile(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, orderColumns)
	data, set := protoOf(t)
	s.produce(&kgo.Record{Value: data})
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "order.proto"), []byte(orderProto), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "order.desc"), set, 0o600))
	for i, name := range []string{"order.proto", "order.desc"} {
		s.run(s.route(fmt.Sprintf("name: r%d", i), fmt.Sprintf("consumer: TOPIC-%d", i), "from: {topics: [TOPIC], start: earliest}", "format: protobuf", fmt.Sprintf("schema: {file: %q, message: shop.Order}", filepath.Join(dir, name)), "id: {fields: [value.id]}", "to: {table: o, write: insert}"))
		s.want(askOrder, orderRow)
		s.exec("TRUNCATE o")
	}
}

func TestJSONBehindASchemaIsJSON(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"object"}`})
	s.produce(&kgo.Record{Value: by(1, []byte(`{"id":9007199254740993,"total":1.10}`))}, &kgo.Record{Value: []byte(`{"id":2}`)}, &kgo.Record{Value: by(1, []byte(`{"id":`))})
	s.run(s.route("format: json-schema", "id: {fields: [value.id]}", "to: {table: o, write: insert}"))
	s.want("SELECT o FROM o", "(9007199254740993,1.10)")
	s.want("SELECT string_agg(class, ' ') FROM semel.dead_letter", "decode decode")
}

func TestRawValuesAreBytes(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE o (at bigint PRIMARY KEY, body bytea, body_text text)`)
	s.produce(&kgo.Record{Value: []byte("\x00\xff")}, &kgo.Record{Value: []byte{}}, &kgo.Record{Value: []byte("é")}, &kgo.Record{Value: nil})
	s.run(s.route("format: raw", "id: {position: true}", "to: {table: o, write: append, columns: {at: offset, body: value}}"))
	s.want("SELECT string_agg(at || encode(body, 'hex'), ' ' ORDER BY at) FROM o", "000ff 1 2c3a9")
	s.exec("TRUNCATE o")
	s.run(s.route("name: t", "consumer: TOPIC-t", "from: {topics: [TOPIC], start: earliest}", "format: raw", "id: {position: true}", "to: {table: o, write: append, columns: {at: offset, body_text: value}}"))
	s.want("SELECT string_agg(at || body_text, ' ' ORDER BY at) FROM o", "1 2é")
	s.want("SELECT class FROM semel.dead_letter", "value")
}

// What Debezium sends through AvroConverter.
func TestChangeEventsMayBeAvro(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(15,5), placed timestamp, due date, doc jsonb, lsn bigint)`)
	const key = `{"type":"record","name":"Key","namespace":"shop.public.orders","fields":[{"name":"id","type":"long"}]}`
	const value = `{"type":"record","name":"Envelope","namespace":"shop.public.orders","fields":[
		{"name":"before","type":["null",{"type":"record","name":"Value","fields":[{"name":"id","type":"long"},
			{"name":"total","type":["null",{"type":"bytes","scale":5,"precision":15,"connect.name":"org.apache.kafka.connect.data.Decimal","logicalType":"decimal"}]},
			{"name":"placed","type":["null",{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}]},{"name":"due","type":["null",{"type":"int","connect.name":"io.debezium.time.Date"}]},
			{"name":"doc","type":["null",{"type":"string","connect.name":"io.debezium.data.Json"}]}]}]},
		{"name":"after","type":["null","Value"]},
		{"name":"source","type":{"type":"record","name":"Source","namespace":"io.debezium.connector.postgresql","fields":[{"name":"connector","type":"string"},{"name":"ts_ms","type":"long"},{"name":"sequence","type":["null","string"]},{"name":"lsn","type":["null","long"]}]}},
		{"name":"op","type":"string"},{"name":"ts_ms","type":["null","long"]}]}`
	reg.SeedSchema("shop.public.orders-key", 1, 1, sr.Schema{Schema: key})
	reg.SeedSchema("shop.public.orders-value", 1, 2, sr.Schema{Schema: value})
	change := func(op string, id int64, after any, lsn int64) *kgo.Record {
		return &kgo.Record{
			Key: by(1, avroOf(t, key, map[string]any{"id": id})),
			Value: by(2, avroOf(t, value, map[string]any{"before": nil, "after": after, "op": op, "ts_ms": lsn, "source": map[string]any{
				"connector": "postgresql", "ts_ms": lsn, "sequence": fmt.Sprintf(`["%d","%d"]`, lsn-1, lsn), "lsn": lsn,
			}})),
		}
	}
	row := func(total string) map[string]any {
		return map[string]any{"id": int64(1), "total": rat(total), "placed": int64(1764460800000001), "due": int32(20421), "doc": `{"a":1}`}
	}
	tombstone := &kgo.Record{Key: change("c", 2, nil, 1).Key}
	s.produce(change("c", 1, row("60"), 10), change("u", 1, row("-0.00001"), 11), tombstone)
	s.run(s.route("format: avro", "envelope: debezium", "id: {fields: [key.id, envelope.position]}",
		"to: {table: orders, write: upsert, version: envelope.position, columns: {id: value.id, total: value.total, placed: value.placed, due: value.due, doc: value.doc, lsn: envelope.position}}"))
	s.want("SELECT o FROM orders o", `(1,-0.00001,"2025-11-30 00:00:00.000001",2025-11-29,"{""a"": 1}",11)`)
	if got := s.outcomes(); got != "1 applied, 1 superseded, 1 skipped" {
		t.Error(got)
	}
}

func TestCheckLooksIntoSchemas(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert, columns: {id: value.id, total: value.totl}}")
	found := func() string {
		fs, err := daemon.Check(within(t), s.file(route), quiet)
		must(t, err)
		var b strings.Builder
		for _, f := range fs {
			fmt.Fprintf(&b, "%v %s %s\n", f.Wrong, f.What, f.Hint)
		}
		return b.String()
	}
	if got := found(); !strings.Contains(got, "has no subject "+s.topic+"-value") {
		t.Error(got)
	}
	reg.SeedSchema(s.topic+"-value", 1, 1, sr.Schema{Schema: orderV1})
	if got := found(); !strings.Contains(got, `true semel.yaml:`) || !strings.Contains(got, `value.totl: the schema has no field "totl" did you mean value.total?`) {
		t.Error(got)
	}
	reg.Close()
	if _, err := daemon.Check(within(t), s.file(route), quiet); err == nil || !strings.HasPrefix(err.Error(), "format: schema registry http") {
		t.Errorf("without a registry: %v", err)
	}
}

func TestAReadersSchemaDecidesWhatRowsHave(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (no bigint PRIMARY KEY, total numeric, state text, note text)`)
	const old = `{"type":"record","name":"Order","fields":[{"name":"id","type":"int"},{"name":"gone","type":"string"},{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","LOST"]}}]}`
	const now = `{"type":"record","name":"Order","fields":[{"name":"no","aliases":["id"],"type":"long"},{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2},"default":"\u0000\u00ff"},
		{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","OTHER"],"default":"OTHER"}},{"name":"note","type":["null","string"],"default":null}]}`
	const foreign = `{"type":"record","name":"Paid","fields":[{"name":"no","type":"long"}]}`
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: old})
	reg.SeedSchema("o-value", 2, 2, sr.Schema{Schema: now})
	reg.SeedSchema("paid", 1, 3, sr.Schema{Schema: foreign})
	file := filepath.Join(t.TempDir(), "order.avsc")
	must(t, os.WriteFile(file, []byte(now), 0o600))
	s.produce(
		&kgo.Record{Value: by(1, avroOf(t, old, map[string]any{"id": int32(1), "gone": "x", "state": "NEW"}))},
		&kgo.Record{Value: by(1, avroOf(t, old, map[string]any{"id": int32(2), "gone": "x", "state": "LOST"}))},
		&kgo.Record{Value: by(2, avroOf(t, now, map[string]any{"no": int64(3), "total": rat("1.5"), "state": "NEW", "note": "x"}))},
		&kgo.Record{Value: by(3, avroOf(t, foreign, map[string]any{"no": int64(4)}))},
	)
	s.run(s.route("format: avro", fmt.Sprintf("schema: {reader: %q}", file), "id: {fields: [value.no]}", "to: {table: o, write: insert}"))
	s.want("SELECT string_agg(o::text, ' ' ORDER BY no) FROM o", "(1,2.55,NEW,) (2,2.55,OTHER,) (3,1.50,NEW,x)")
	s.want("SELECT class || ' ' || split_part(error, ':', 1) || split_part(error, ':', 2) FROM semel.dead_letter", "decode value schema 3")

	// The same without a registry: all messages by one schema, as another one has them.
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "old.avsc"), []byte(old), 0o600))
	s.exec("TRUNCATE o")
	s.more = ""
	s.topicBelow("plain")
	s.produce(&kgo.Record{Topic: s.topic + ".plain", Value: avroOf(t, old, map[string]any{"id": int32(5), "gone": "x", "state": "LOST"})})
	route := s.matching("plain", "consumer: TOPIC-p", "format: avro", fmt.Sprintf("schema: {file: %q, reader: %q}", filepath.Join(dir, "old.avsc"), file), "id: {fields: [value.no]}", "to: {table: o, write: insert}")
	s.run(route)
	s.want("SELECT o FROM o", "(5,2.55,OTHER,)")

	must(t, os.WriteFile(file, []byte(`{"type":"record","name":"Order","fields":[{"name":"must","type":"long"}]}`), 0o600))
	if _, err := s.try(route); err == nil || !strings.Contains(err.Error(), "no default") {
		t.Errorf("schemas that don't fit: %v", err)
	}
}

func TestAVersionOfTheSchemaIsNoCollision(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint, total numeric)`)
	reg.SeedSchema("o-value", 1, 1, sr.Schema{Schema: orderV1})
	reg.SeedSchema("o-value", 2, 2, sr.Schema{Schema: orderV2})
	s.produce(
		&kgo.Record{Value: by(1, avroOf(t, orderV1, map[string]any{"id": int64(1), "total": rat("1.5")}))},
		&kgo.Record{Value: by(2, avroOf(t, orderV2, map[string]any{"id": int64(1), "total": rat("1.5"), "note": "in no column"}))}, // the same, by a newer program
		&kgo.Record{Value: by(2, avroOf(t, orderV2, map[string]any{"id": int64(1), "total": rat("1.50001"), "note": nil}))},        // another one
	)
	s.run(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: append, columns: {id: value.id, total: value.total}}"))
	s.want("SELECT o FROM o", "(1,1.50000)")
	if got := s.outcomes(); got != "1 applied, 1 duplicate, 1 dead" {
		t.Error(got)
	}
	s.want("SELECT class FROM semel.dead_letter", "collision")
}

func TestProtobufImportsAreFetchedToo(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, sku text, amount bigint)`)
	reg.SeedSchema("line", 1, 1, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; package shop.parts; message Line { string sku = 1; }`})
	reg.SeedSchema("placed", 1, 2, sr.Schema{
		Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; import "parts/line.proto"; message Placed { int64 id = 1; shop.parts.Line line = 2; }`,
		References: []sr.SchemaReference{{Name: "parts/line.proto", Subject: "line", Version: 1}},
	})
	reg.SeedSchema("paid", 1, 3, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message Paid { int64 amount = 1; int64 id = 2; }`})
	s.produce(&kgo.Record{Value: by(2, []byte("\x00\x08\x01\x12\x03\x0a\x01A"))}, &kgo.Record{Value: by(3, []byte("\x00\x08\x05\x10\x02"))}, &kgo.Record{Value: by(3, []byte("\x00\x08\x06\x10\x03\x1a\x02xy"))}) // the last one by a newer program
	s.run(s.route("format: protobuf", "id: {fields: [value.id]}", "to: {table: o, write: insert, columns: {id: value.id, sku: value.line.sku, amount: value.amount}}"))
	s.want("SELECT string_agg(concat_ws('|', id, sku, amount), ' ' ORDER BY id) FROM o", "1|A 2|5 3|6")
}

func TestJSONIsCheckedByItsSchemaIfThatIsAskedFor(t *testing.T) {
	t.Parallel()
	s, reg := registered(t, `CREATE TABLE o (id bigint PRIMARY KEY, total numeric)`)
	const money = `{"type":"number","minimum":0,"multipleOf":0.01}`
	const order = `{"type":"object","required":["id"],"properties":{"id":{"type":"integer"},"total":{"$ref":"money.json"}}}`
	reg.SeedSchema("money", 1, 1, sr.Schema{Type: sr.TypeJSON, Schema: money})
	reg.SeedSchema("o-value", 1, 2, sr.Schema{Type: sr.TypeJSON, Schema: order, References: []sr.SchemaReference{{Name: "money.json", Subject: "money", Version: 1}}})
	var texts [][]byte
	for _, text := range []string{`{"id":9007199254740993,"total":1.10}`, `{"id":2,"total":-1}`, `{"total":1}`, `{"id":4,"total":1.001}`, `{"id":5}`} {
		texts = append(texts, []byte(text))
		s.produce(&kgo.Record{Value: by(2, []byte(text))})
	}
	const rows, letters = "SELECT string_agg(o::text, ' ' ORDER BY id) FROM o o", `SELECT string_agg(class || ' ' || error, ' | ' ORDER BY "offset") FROM semel.dead_letter`
	s.run(s.route("format: json-schema", "schema: {validate: true}", "id: {position: true}", "to: {table: o, write: append}"))
	s.want(rows, "(5,) (9007199254740993,1.10)")
	s.want(letters, "decode value: by schema 2: /total: minimum: got -1, want 0 | decode value: by schema 2: the whole: missing property 'id' | decode value: by schema 2: /total: multipleOf: got 1.001, want 0.01")

	// By a schema in a file, messages have no prefix and are always checked.
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "order.json"), []byte(order), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "money.json"), []byte(money), 0o600))
	s.exec("TRUNCATE o, semel.dead_letter")
	s.more = ""
	s.topicBelow("plain")
	for _, text := range texts {
		s.produce(&kgo.Record{Topic: s.topic + ".plain", Value: text})
	}
	s.run(s.matching("plain", "consumer: TOPIC-p", "format: json-schema", fmt.Sprintf("schema: {file: %q}", filepath.Join(dir, "order.json")), "id: {position: true}", "to: {table: o, write: append}"))
	s.want(rows, "(5,) (9007199254740993,1.10)")
	s.want("SELECT count(*) FROM semel.dead_letter WHERE class = 'decode'", "3")
}

// An ID that two updates of a row have in common would take the second for a repeat of the first: the topic of states
// would end with the first state of each row.
func TestCheckRefusesIDsThatWouldEatATopicOfStates(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE orders (id bigint PRIMARY KEY, total numeric, version numeric); CREATE TABLE parts (a bigint, b bigint, n bigint, PRIMARY KEY (a, b))`)
	s.acked(0) // a broker that has had no group yet makes its place first, and check asks for the group
	dir := t.TempDir()
	avsc, proto, schema := filepath.Join(dir, "order.avsc"), filepath.Join(dir, "order.proto"), filepath.Join(dir, "order.json")
	must(t, os.WriteFile(avsc, []byte(orderV1), 0o600))
	must(t, os.WriteFile(proto, []byte(`syntax = "proto3"; message Order { int64 id = 1; double total = 2; int64 version = 3; }`), 0o600))
	must(t, os.WriteFile(schema, []byte(`{}`), 0o600))
	const columns = "columns: {id: value.id, total: value.total}"
	for _, c := range []struct {
		reads, id, to string
		eaten         bool
	}{
		{"format: json", "{fields: [value.id]}", "{table: orders, write: upsert}", true},
		{"format: json", "{fields: [value.id, value.version]}", "{table: orders, write: upsert}", false},
		{"format: json", "{key: true}", "{table: orders, write: mirror}", true},
		{"format: json", "{fields: [key]}", "{table: orders, write: upsert}", true},
		{"format: json", "{fields: [value.id]}", "{table: orders, write: insert}", false},
		{"format: json", "{fields: [value.a]}", "{table: parts, write: upsert}", true},
		{"format: json", "{fields: [value.a, value.b]}", "{table: parts, write: mirror}", true},
		{"format: json", "{fields: [value.a, value.n]}", "{table: parts, write: upsert}", false},
		{fmt.Sprintf("format: avro\n    schema: {file: %q}", avsc), "{fields: [value.id]}", "{table: orders, write: upsert, " + columns + "}", true},
		{fmt.Sprintf("format: avro\n    schema: {file: %q}", avsc), "{fields: [value.id, value.total]}", "{table: orders, write: upsert, " + columns + "}", false},
		{fmt.Sprintf("format: protobuf\n    schema: {file: %q, message: Order}", proto), "{fields: [value.id]}", "{table: orders, write: mirror, " + columns + "}", true},
		{fmt.Sprintf("format: protobuf\n    schema: {file: %q, message: Order}", proto), "{fields: [value.id, value.version]}", "{table: orders, write: mirror, " + columns + "}", false},
		{fmt.Sprintf("format: json-schema\n    schema: {file: %q}", schema), "{fields: [value.id]}", "{table: orders, write: upsert}", true},
		{"format: raw\n    from: {topics: [TOPIC], key_format: json}", "{fields: [key.id]}", "{table: orders, write: upsert, columns: {id: key.id}}", true},
		{"envelope: debezium", "{fields: [value.id]}", "{table: orders, write: mirror}", true},
		{"envelope: debezium", "{fields: [key.id]}", "{table: orders, write: mirror}", true},
		{"envelope: debezium", "{fields: [envelope.after.id]}", "{table: orders, write: upsert}", true},
		{"envelope: debezium", "{fields: [key.a, key.b]}", "{table: parts, write: mirror}", true},
		{"envelope: debezium", "{fields: [key.id, envelope.position]}", "{table: orders, write: mirror}", false},
		{"envelope: debezium", "{fields: [key.id, envelope.op]}", "{table: orders, write: mirror}", true},
		{"envelope: debezium", "{fields: [envelope.op, key.a, envelope.source.table]}", "{table: parts, write: upsert}", true},
		{"envelope: debezium", "{fields: [key.id, envelope.op, envelope.source.ts_ms]}", "{table: orders, write: mirror}", false},
		{"envelope: debezium", "{fields: [envelope.op, envelope.source.table]}", "{table: orders, write: append}", true},
		{"format: json", "{fields: [value.id, topic]}", "{table: orders, write: upsert}", true},
		{"envelope: cloudevents", "{fields: [value.id]}", "{table: orders, write: upsert}", true},
		{"envelope: cloudevents", "{fields: [envelope.source, envelope.id]}", "{table: orders, write: upsert}", false},
	} {
		lines := append(strings.Split(strings.ReplaceAll(c.reads, "\n    ", "\n"), "\n"), "id: "+c.id, "to: "+c.to)
		what := strings.Join(lines, ", ")
		eaten := false
		f, err := config.Parse("semel.yaml", []byte(s.text(s.route(lines...))), func(string) (string, bool) { return "", false })
		if err != nil {
			if eaten = strings.Contains(err.Error(), "would be a duplicate"); !eaten {
				t.Errorf("%s: %v", what, err)
			}
		} else {
			found, err := daemon.Check(within(t), f, quiet)
			must(t, err)
			for _, f := range found {
				if strings.Contains(f.What, "would be a duplicate") {
					eaten = true
				} else if f.Wrong {
					t.Errorf("%s: %s", what, f.What)
				}
			}
		}
		if eaten != c.eaten {
			t.Errorf("%s: refused %v, want %v", what, eaten, c.eaten)
		}
	}
}

// An ID that may be meant (an order has each status once) is said to be doubtful, and not
// refused.
func TestAnIDOfTheKeyAndAKindIsDoubted(t *testing.T) {
	t.Parallel()
	const eats = "taken for "
	s := newScene(t, 1, `CREATE TYPE status AS ENUM ('new', 'paid'); CREATE TABLE state (id integer PRIMARY KEY, status status, paid boolean, total numeric); CREATE TABLE change (id integer, status text)`)
	s.acked(0)
	for _, c := range []struct {
		envelope, id, to string
		doubted          bool
	}{
		{"none", "[value.id, value.status]", "{table: state, write: upsert}", true},
		{"none", "[value.id, value.paid, topic]", "{table: state, write: upsert}", true},
		{"none", "[value.id, value.status, value.total]", "{table: state, write: upsert}", false},
		{"none", "[value.id, value.status]", "{table: state, write: insert}", false},
		{"debezium", "[key.id, envelope.after.status]", "{table: state, write: mirror}", true},
		{"debezium", "[key.id, envelope.op]", "{table: change, write: append}", true},
		{"debezium", "[key.id, envelope.op, envelope.position]", "{table: change, write: append}", false},
	} {
		f, err := config.Parse("semel.yaml", []byte(s.text(s.route("envelope: "+c.envelope, "id: {fields: "+c.id+"}", "to: "+c.to))), func(string) (string, bool) { return "", false })
		must(t, err)
		found, err := daemon.Check(within(t), f, quiet)
		must(t, err)
		doubted := false
		for _, f := range found {
			if f.Wrong {
				t.Errorf("%v: %s", c, f.What)
			}
			doubted = doubted || strings.Contains(f.What, eats)
		}
		if doubted != c.doubted {
			t.Errorf("%v: doubted %v, want %v", c, doubted, c.doubted)
		}
	}
}
