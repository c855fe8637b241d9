package sink_test

import (
	"fmt"
	"testing"

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
