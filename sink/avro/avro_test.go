package avro_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	ref "github.com/twmb/avro"

	"github.com/semelhq/semel/sink/avro"
	"github.com/semelhq/semel/sink/internal/exact"
)

// line is what the transcoder makes of what another encoder wrote.
func line(t *testing.T, schema string, v any, references ...string) string {
	t.Helper()
	var cache ref.SchemaCache
	for _, r := range references {
		if _, err := cache.Parse(r); err != nil {
			t.Fatal(err)
		}
	}
	other, err := cache.Parse(schema)
	if err != nil {
		t.Fatal(err)
	}
	data, err := other.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	s, err := avro.Parse(schema, references...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.AppendJSON(nil, data)
	if err != nil {
		t.Fatalf("%x: %v", data, err)
	}
	if !json.Valid(got) {
		t.Fatalf("%s is no JSON", got)
	}
	return string(got)
}

func TestEachTypeIsWrittenAsWhatItIs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 29, 1, 59, 59, 123456789, time.UTC)
	num, _ := new(big.Rat).SetString("-0.00001")
	for _, c := range []struct {
		schema string
		value  any
		want   string
	}{
		{`"null"`, nil, `null`},
		{`"boolean"`, true, `true`},
		{`"int"`, int32(math.MinInt32), `-2147483648`},
		{`"long"`, int64(9007199254740993), `9007199254740993`},
		{`"long"`, int64(math.MinInt64), `-9223372036854775808`},
		{`"float"`, float32(0.1), `0.1`},
		{`"double"`, 0.1, `0.1`},
		{`"double"`, 1e300, `1e+300`},
		{`"double"`, math.NaN(), `"NaN"`},
		{`"float"`, float32(math.Inf(-1)), `"-Infinity"`},
		{`"string"`, "a\"\\\n\x00é", `"a\"\\\u000a\u0000é"`},
		{`"bytes"`, []byte{0, 255}, `"\\x00ff"`},
		{`{"type":"fixed","name":"f","size":2}`, []byte{1, 2}, `"\\x0102"`},
		{`{"type":"enum","name":"e","symbols":["A","B"]}`, "B", `"B"`},
		{`{"type":"array","items":"int"}`, []int32{1, 2, 3}, `[1,2,3]`},
		{`{"type":"array","items":"int"}`, []int32{}, `[]`},
		{`{"type":"array","items":{"type":"array","items":["null","int"]}}`, [][]any{{nil, int32(1)}, {}}, `[[null,1],[]]`},
		{`{"type":"map","values":"long"}`, map[string]int64{"a b": 1}, `{"a b":1}`},
		{`["null","string"]`, nil, `null`},
		{`["null","string"]`, "x", `"x"`},
		{`{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}`, num, `-0.00001`},
		{`{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}`, big.NewRat(60, 1), `60.00000`},
		{`{"type":"bytes","logicalType":"decimal","precision":15,"scale":5}`, big.NewRat(0, 1), `0.00000`},
		{`{"type":"fixed","name":"f","size":16,"logicalType":"decimal","precision":38,"scale":10}`, new(big.Rat).SetFrac(pow10(38, -1), pow10(10, 0)), `-9999999999999999999999999999.9999999999`},
		{`{"type":"fixed","name":"f","size":16,"logicalType":"decimal","precision":38,"scale":10}`, big.NewRat(1, 1e10), `0.0000000001`},
		{`{"type":"int","logicalType":"date"}`, at, `"2026-03-29"`},
		{`{"type":"int","logicalType":"time-millis"}`, 5*time.Hour + time.Millisecond, `"05:00:00.001"`},
		{`{"type":"long","logicalType":"time-micros"}`, 23*time.Hour + time.Microsecond, `"23:00:00.000001"`},
		{`{"type":"long","logicalType":"timestamp-millis"}`, at, `"2026-03-29T01:59:59.123Z"`},
		{`{"type":"long","logicalType":"timestamp-micros"}`, at, `"2026-03-29T01:59:59.123456Z"`},
		{`{"type":"long","logicalType":"timestamp-nanos"}`, at, `"2026-03-29T01:59:59.123456789Z"`},
		{`{"type":"long","logicalType":"local-timestamp-millis"}`, at, `"2026-03-29T01:59:59.123"`},
		{`{"type":"long","logicalType":"local-timestamp-micros"}`, at, `"2026-03-29T01:59:59.123456"`},
		{`{"type":"string","logicalType":"uuid"}`, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", `"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`},
		{`{"type":"fixed","name":"u","size":16,"logicalType":"uuid"}`, [16]byte{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}, `"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`},
	} {
		if got := line(t, c.schema, c.value); got != c.want {
			t.Errorf("%s: got %s, want %s", c.schema, got, c.want)
		}
	}
}

// pow10 is 10^n, less one if sign is below 0, and then negative.
func pow10(n int64, sign int) *big.Int {
	p := new(big.Int).Exp(big.NewInt(10), big.NewInt(n), nil)
	if sign < 0 {
		return p.Sub(p, big.NewInt(1)).Neg(p)
	}
	return p
}

func TestRecordsNestAndReferToThemselvesAndToOthers(t *testing.T) {
	t.Parallel()
	const address = `{"type":"record","name":"Address","namespace":"shop","fields":[{"name":"city","type":"string"},{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["HOME","WORK"]}}]}`
	const order = `{"type":"record","name":"Order","namespace":"shop","fields":[
		{"name":"id","type":"long"},
		{"name":"to","type":["null","Address"]},
		{"name":"kind","type":"shop.Kind"},
		{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","namespace":"shop.inner","fields":[{"name":"sku","type":"string"},{"name":"next","type":["null","Line"]}]}}}]}`
	got := line(t, order, map[string]any{
		"id": int64(7), "to": map[string]any{"city": "Łódź", "kind": "WORK"}, "kind": "HOME",
		"lines": []any{map[string]any{"sku": "a", "next": map[string]any{"sku": "b", "next": nil}}},
	}, address)
	const want = `{"id":7,"to":{"city":"Łódź","kind":"WORK"},"kind":"HOME","lines":[{"sku":"a","next":{"sku":"b","next":null}}]}`
	if got != want {
		t.Errorf("got %s", got)
	}
	s, err := avro.Parse(order, address)
	if err != nil {
		t.Fatal(err)
	}
	if fields, ok := s.Fields(); !ok || strings.Join(fields, " ") != "id to kind lines" {
		t.Error(fields, ok)
	}
}

func TestWhatDebeziumMeansByNamesIsKept(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"record","name":"Value","fields":[
		{"name":"day","type":["null",{"type":"int","connect.name":"io.debezium.time.Date"}]},
		{"name":"at","type":{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}},
		{"name":"clock","type":{"type":"long","connect.name":"io.debezium.time.MicroTime"}},
		{"name":"any","type":{"type":"record","name":"VariableScaleDecimal","namespace":"io.debezium.data","connect.name":"io.debezium.data.VariableScaleDecimal","fields":[{"name":"scale","type":"int"},{"name":"value","type":"bytes"}]}},
		{"name":"doc","type":{"type":"string","connect.name":"io.debezium.data.Json"}},
		{"name":"bits","type":{"type":"bytes","connect.parameters":{"length":"9"},"connect.name":"io.debezium.data.Bits"}},
		{"name":"low","type":{"type":"bytes","connect.parameters":{"length":"12"},"connect.name":"io.debezium.data.Bits"}},
		{"name":"all","type":{"type":"bytes","connect.parameters":{"length":"2147483647"},"connect.name":"io.debezium.data.Bits"}},
		{"name":"pt","type":["null",{"type":"record","name":"Point","namespace":"io.debezium.data.geometry","connect.name":"io.debezium.data.geometry.Point","fields":[{"name":"x","type":"double"},{"name":"y","type":"double"},{"name":"wkb","type":["null","bytes"]},{"name":"srid","type":["null","int"]}]}]},
		{"name":"took","type":{"type":"long","connect.name":"io.debezium.time.MicroDuration"}},
		{"name":"never","type":{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}},
		{"name":"end","type":{"type":"long","connect.name":"io.debezium.time.Timestamp"}},
		{"name":"begin","type":{"type":"long","connect.name":"io.debezium.time.Timestamp"}},
		{"name":"money","type":{"type":"bytes","scale":2,"precision":64,"connect.version":1,"connect.parameters":{"scale":"2"},"connect.name":"org.apache.kafka.connect.data.Decimal","logicalType":"decimal"}}]}`
	got := line(t, schema, map[string]any{
		"day": int32(20000), "at": int64(1_700_000_000_000_001), "clock": int64(1),
		"any": map[string]any{"scale": int32(3), "value": []byte{0xfb}},
		"doc": `{"a":1}`, "bits": []byte{3, 1}, "low": []byte{1}, "all": []byte{1},
		"pt": map[string]any{"x": 1.5, "y": math.Inf(-1), "wkb": []byte{1, 1}, "srid": nil}, "took": int64(-1_500_000), "never": int64(9223372036825200000),
		"end": int64(9223372036825200), "begin": int64(-9223372036832400), "money": big.NewRat(12345, 100),
	})
	if want := `{"day":"2024-10-04","at":"2023-11-14T22:13:20.000001","clock":"00:00:00.000001","any":-0.005,"doc":{"a":1},"bits":"100000011","low":"000000000001","all":"00000001","pt":"(1.5,-Infinity)","took":"-1.500000 seconds","never":"infinity","end":"infinity","begin":"-infinity","money":123.45}`; got != want {
		t.Errorf("got %s", got)
	}
}

func TestDurationsAreISO8601(t *testing.T) {
	t.Parallel()
	s, err := avro.Parse(`{"type":"fixed","name":"d","size":12,"logicalType":"duration"}`)
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, n := range []uint32{14, 3, 3_600_007} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	if got, err := s.AppendJSON(nil, b); string(got) != `"P14M3DT3600.007S"` || err != nil {
		t.Error(string(got), err)
	}
}

func TestBytesThatAreNoValueAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why, schema string
		data        []byte
	}{
		{"short", `"double"`, []byte{1, 2}},
		{"more", `"int"`, []byte{2, 2}},
		{"out of range", `"int"`, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0x01}},
		{"endless number", `"long"`, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}},
		{"boolean", `"boolean"`, []byte{2}},
		{"length", `"string"`, []byte{100, 'a'}},
		{"negative length", `"bytes"`, []byte{1}},
		{"UTF-8", `"string"`, []byte{2, 0xff}},
		{"branch", `["null","int"]`, []byte{4}},
		{"symbol", `{"type":"enum","name":"e","symbols":["A"]}`, []byte{2}},
		{"decimal without bytes", `{"type":"bytes","logicalType":"decimal","precision":4}`, []byte{0}},
		{"no such time", `{"type":"int","logicalType":"time-millis"}`, []byte{1}},
	} {
		s, err := avro.Parse(c.schema)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.AppendJSON(nil, c.data); err == nil {
			t.Errorf("%s: %x is taken as %s", c.why, c.data, got)
		}
	}
}

func TestFewBytesClaimLittle(t *testing.T) {
	t.Parallel()
	nulls, err := avro.Parse(`{"type":"array","items":"null"}`)
	if err != nil {
		t.Fatal(err)
	}
	many := binary.AppendVarint(nil, math.MaxInt64)
	if got, err := nulls.AppendJSON(nil, many); !errors.Is(err, exact.ErrLarge) || len(got) > 2*exact.Limit(len(many)) {
		t.Error(len(got), err)
	}
	deep, err := avro.Parse(`{"type":"record","name":"r","fields":[{"name":"next","type":["null","r"]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deep.AppendJSON(nil, []byte(strings.Repeat("\x02", 20_000))); !errors.Is(err, exact.ErrDepth) {
		t.Error(err)
	}
}

var fuzzSchemas = []string{
	`{"type":"record","name":"r","fields":[{"name":"a","type":["null","long","r"]},{"name":"b","type":{"type":"array","items":{"type":"map","values":["null","string","bytes","double"]}}},{"name":"c","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}`,
	`{"type":"array","items":{"type":"array","items":"null"}}`,
	`{"type":"record","name":"t","fields":[{"name":"a","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"b","type":{"type":"int","logicalType":"date"}},{"name":"c","type":{"type":"long","logicalType":"time-micros"}},{"name":"d","type":{"type":"enum","name":"e","symbols":["A","B"]}}]}`,
}

func FuzzAnyBytesMakeJSONOrAnError(f *testing.F) {
	var ours []*avro.Schema
	var theirs []*ref.Schema
	for _, text := range fuzzSchemas {
		s, err := avro.Parse(text)
		if err != nil {
			f.Fatal(err)
		}
		ours, theirs = append(ours, s), append(theirs, ref.MustParse(text))
	}
	f.Add(uint8(0), []byte{0, 0, 2, 1})
	f.Add(uint8(0), []byte{2, 4, 2, 2, 2, 'a', 2, 2, 'b', 0, 0, 2, 1})
	f.Add(uint8(1), []byte{1, 2, 2, 0, 0})
	f.Add(uint8(1), []byte{2, 0xa8, 0x41, 0, 0}) // 4,180 nulls
	f.Add(uint8(2), []byte{2, 2, 2, 2})
	f.Add(uint8(2), []byte{2, 2, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0}) // 0, in more bytes than an int has
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		i := int(which) % len(ours)
		got, err := ours[i].AppendJSON(nil, data)
		if len(got) > 2*exact.Limit(len(data))+1<<12 {
			t.Fatalf("%d bytes became %d", len(data), len(got))
		}
		if err != nil {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%s is no JSON", got)
		}
		if bytes.Count(got, []byte("null")) > 4096 {
			return // the other reader takes no more items without bytes
		}
		var v any
		if rest, err := theirs[i].Decode(data, &v); err != nil || len(rest) > 0 {
			t.Fatalf("%x is read as %s; another reader says %v", data, got, err)
		}
	})
}
