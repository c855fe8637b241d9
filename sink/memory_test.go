//go:build !race

package sink_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

// The race detector makes pools forget on purpose, hence the build tag.
func TestDecodingTakesNoMemory(t *testing.T) {
	m := newMapping(t, sink.MappingConfig{Columns: sink.ByName(flightColumns)})
	row := &m.NewRows(1)[0]
	msg := &semel.Message{Value: []byte(flight)}
	if n := testing.AllocsPerRun(1000, func() {
		if err := m.Decode(msg, row); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
}
