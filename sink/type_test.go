package sink_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func TestAnExpressionHasATypeWhereItIsExact(t *testing.T) {
	t.Parallel()
	of := func(k sink.TypeKind) *sink.Type { return &sink.Type{Kind: k} }
	types := sink.Types{
		Value: &sink.Type{Kind: sink.TypeRecord, Fields: []sink.Field{
			{Name: "n", Type: of(sink.TypeInt64)},
			{Name: "map", Type: &sink.Type{Kind: sink.TypeMap, Elem: of(sink.TypeDate)}},
			{Name: "in", Type: &sink.Type{Kind: sink.TypeRecord, Fields: []sink.Field{{Name: "x", Type: of(sink.TypeUUID)}}}},
			{Name: "any", Type: of(sink.TypeAny)},
		}},
		Envelope: &sink.Type{Kind: sink.TypeRecord, Fields: []sink.Field{{Name: "op", Type: of(sink.TypeText)}}},
	}
	for expr, want := range map[string]string{
		"value": "record", "value.n": "integer of 64 bits", "value.in.x": "UUID", "value.map.k": "date", "envelope.op": "text", "envelope.position": "decimal",
		"key": "text", "headers.a": "text", "timestamp": "instant", "topic": "text", "partition": "integer of 32 bits", "offset": "integer of 64 bits",
		"string(value.n)": "text", "value.n > 1.0": "boolean", "bytes('a')": "bytes", `timestamp("2026-01-01T00:00:00Z")`: "instant",
		"value.no": `the schema has no field "no" in value`, "value.in.y": `the schema has no field "y" in value.in`, "value.n.x": "by the schema value.n is integer of 64 bits, and has no known fields",
		"value.any.x":   "by the schema value.any is any value, and has no known fields",
		"value.n * 2.0": "value.n * 2.0 computes double, which is no one type of column", "size(topic)": "size(topic) computes int, which is no one type of column",
		"[value.n]": "[value.n] computes list(a value of any type), which is no one type of column",
		"1.5":       "1.5 computes double, which is no one type of column",
	} {
		p, err := sink.ParseExpr(expr)
		if err != nil {
			t.Fatal(err)
		}
		got, err := types.Of(p, sink.KeyText)
		if text := fmt.Sprint(got); err == nil && text != want || err != nil && err.Error() != want {
			t.Errorf("%s: %s, %v, want %s", expr, text, err, want)
		}
	}
	key, _ := sink.ParseExpr("key.id")
	if _, err := types.Of(key, sink.KeyJSON); err == nil || err.Error() != "no schema says what key is" {
		t.Error(err)
	}
}

// A schema says of a message what it says of the value in it.
func TestATypeGoesThroughTheEnvelope(t *testing.T) {
	t.Parallel()
	row := &sink.Type{Kind: sink.TypeRecord}
	event := &sink.Type{Kind: sink.TypeRecord, Fields: []sink.Field{{Name: "after", Type: row}}}
	if got := sink.ValueType(event, []sink.Opener{sink.NewDebezium()}); got != row {
		t.Errorf("a change event: %v", got)
	}
	if got := sink.ValueType(row, []sink.Opener{sink.NewDebezium()}); got != nil {
		t.Errorf("no change event: %v", got)
	}
	structured := &sink.Type{Kind: sink.TypeRecord, Fields: []sink.Field{{Name: "specversion", Type: &sink.Type{Kind: sink.TypeText}}, {Name: "data", Type: row}}}
	for _, sent := range []*sink.Type{structured, row} {
		if got := sink.ValueType(sent, []sink.Opener{sink.NewCloudEvents()}); got != row {
			t.Errorf("a CloudEvent: %v", got)
		}
	}
}

// A column that a table gets later is the last, and null in what came before.
func TestADigestOutlastsALaterColumn(t *testing.T) {
	t.Parallel()
	before, after := decode(t, mapping(t, "value.a"), `{"a":1}`), decode(t, mapping(t, "value.a", "value.b"), `{"a":1}`)
	if before.Digest() != after.Digest() {
		t.Error("one message has two digests")
	}
	if with := decode(t, mapping(t, "value.a", "value.b"), `{"a":1,"b":2}`); with.Digest() == after.Digest() {
		t.Error("two messages have one digest")
	}
	x, y := decode(t, mapping(t, "value.a", "value.b", "value.c"), `{"a":1,"c":1}`), decode(t, mapping(t, "value.a", "value.b", "value.c"), `{"a":1,"b":1}`)
	if x.Digest() == y.Digest() {
		t.Error("a null in between counts for nothing")
	}
}

func TestASchemaInsideOfAnEventSaysWhatItsRowIs(t *testing.T) {
	t.Parallel()
	const row = `"type":"struct","fields":[
		{"type":"int64","field":"id"},{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2","connect.decimal.precision":"9"},"field":"d"},
		{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"},"field":"n"},{"type":"string","name":"io.debezium.data.EnumSet","field":"e"},{"type":"int64","name":"io.debezium.time.NanoDuration","field":"i"},
		{"type":"map","keys":{"type":"int32"},"values":{"type":"string"},"field":"m"},{"type":"array","items":{"type":"int32"},"field":"a"},{"type":"struct","name":"io.debezium.data.geometry.Point","fields":[],"field":"p"},
		{"type":"struct","name":"io.debezium.data.geometry.Geometry","fields":[{"type":"bytes","field":"wkb"}],"field":"g"},{"type":"string","name":"io.debezium.time.IsoDate","field":"day"}]`
	event := func(schema string) *semel.Message {
		return &semel.Message{Key: []byte(`{"schema":{"type":"struct","fields":[{"type":"int32","field":"id"}]},"payload":{"id":1}}`), Value: []byte(`{` + schema + `"payload":{"op":"c","after":{}}}`)}
	}
	d := sink.NewDebezium()
	types, ok := d.Types(event(`"schema":{"type":"struct","fields":[{` + row + `,"field":"after"},{"type":"string","field":"op"}]},`))
	if !ok {
		t.Fatal("no types")
	}
	var got []string
	for _, f := range types.Value.Fields {
		got = append(got, f.Name+": "+f.Type.String())
	}
	if want := "[id: integer of 64 bits d: decimal(9,2) n: decimal e: text i: interval m: any value a: array of integer of 32 bits p: text g: record day: date]"; fmt.Sprint(got) != want {
		t.Errorf("%v\nwant %s", got, want)
	}
	if types.Key.Field("id").String() != "integer of 32 bits" || types.Envelope.Field("op").String() != "text" {
		t.Errorf("%v, %v", types.Key, types.Envelope)
	}
	for _, none := range []string{``, `"schema":null,`, `"schema":{"type":"struct","fields":[]},`, `"schema":{"type":1},`} {
		if types, ok := d.Types(event(none)); ok {
			t.Errorf("%s: %v", none, types.Value)
		}
	}
}
