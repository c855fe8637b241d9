package avro_test

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
)

func fieldsOf(t *sink.Type) string {
	var all []string
	for _, f := range t.Fields {
		all = append(all, f.Name+" "+f.Type.String())
	}
	return strings.Join(all, ", ")
}

func schemaOf(t *testing.T, text string) *avro.Schema {
	t.Helper()
	s, err := avro.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASchemaSaysTypes(t *testing.T) {
	t.Parallel()
	s := schemaOf(t, `{"type":"record","name":"R","fields":[
		{"name":"self","type":["null","R"]},{"name":"list","type":{"type":"array","items":"R"}},{"name":"nothing","type":"null"},{"name":"two","type":["int","string"]},
		{"name":"fix","type":{"type":"fixed","name":"F","size":4}},{"name":"dec","type":{"type":"fixed","name":"D","size":8,"logicalType":"decimal","precision":9,"scale":2}},
		{"name":"ns","type":{"type":"long","logicalType":"timestamp-nanos"}},{"name":"span","type":{"type":"long","connect.name":"io.debezium.time.MicroDuration"}},{"name":"fine","type":{"type":"long","connect.name":"io.debezium.time.NanoDuration"}},
		{"name":"zoned","type":{"type":"string","connect.name":"io.debezium.time.ZonedTime"}},{"name":"bits","type":{"type":"bytes","connect.name":"io.debezium.data.Bits"}},{"name":"unknown","type":{"type":"long","logicalType":"fancy"}}]}`)
	const want = "self record, list array, nothing any value, two any value, fix bytes, dec decimal(9,2), ns instant, span interval, fine text, zoned time of day with zone, bits bits, unknown integer of 64 bits"
	if got := fieldsOf(s.Type()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s.Type().Field("self") != s.Type() || s.Type().Field("list").Elem != s.Type() {
		t.Error("a record in itself is another one")
	}
}

// What all is read as says the types, whoever wrote it.
func TestTypesAreThoseOfTheReader(t *testing.T) {
	t.Parallel()
	reader := schemaOf(t, `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"note","type":"string","default":""}]}`)
	s, err := schemaOf(t, `{"type":"record","name":"R","fields":[{"name":"old","type":"string"},{"name":"id","type":"int"}]}`).As(reader)
	if err != nil {
		t.Fatal(err)
	}
	if s.Type() != reader.Type() || fieldsOf(s.Type()) != "id integer of 64 bits, note text" {
		t.Error(fieldsOf(s.Type()))
	}
}
