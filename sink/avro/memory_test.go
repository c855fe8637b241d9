//go:build !race

package avro_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
)

func TestAMessageCostsNoMemoryOfItsOwn(t *testing.T) {
	s, err := avro.Parse(`{"type":"record","name":"r","fields":[{"name":"id","type":"long"},{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"d","type":"double"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sink.ParsePath("value.total")
	if err != nil {
		t.Fatal(err)
	}
	m, err := sink.NewMapping(sink.MappingConfig{Columns: []sink.Column{{Name: "total", From: p}}, Open: []sink.Opener{sink.Formats(s, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	msg := semel.Message{Value: []byte{2, 2, 5, 2, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f}}
	var row sink.Row
	decode := func() {
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatal(err)
		}
	}
	decode()
	if n := testing.AllocsPerRun(100, decode); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
	if string(row.Values[0].Raw) != "0.05" {
		t.Errorf("%s", row.Values[0].Raw)
	}
}
