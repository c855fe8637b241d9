//go:build !race

package sink_test

// The race detector lets sync.Pool drop what it holds.

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func TestStepsUseTheirMemoryAgain(t *testing.T) {
	step := opener(func(_ *semel.Message, o *sink.Opened) (err error) {
		o.Value, err = o.Append(func(dst []byte) ([]byte, error) { return append(dst, o.Value...), nil })
		return err
	})
	m := newMapping(t, sink.MappingConfig{Open: []sink.Opener{step}, Columns: sink.ByName([]string{"a"})})
	msg := semel.Message{Value: []byte(`{"a":1}`)}
	var row sink.Row
	if n := testing.AllocsPerRun(100, func() {
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
}
