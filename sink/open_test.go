package sink_test

import (
	"bytes"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

type opener func(m *semel.Message, o *sink.Opened) error

func (f opener) Open(m *semel.Message, o *sink.Opened) error { return f(m, o) }

// wrap makes JSON of a text and changes the key; skipEmpty skips what it made of an empty one.
var (
	wrap opener = func(_ *semel.Message, o *sink.Opened) (err error) {
		o.Value, err = o.Append(func(dst []byte) ([]byte, error) {
			return append(append(append(dst, `{"a":"`...), o.Value...), `"}`...), nil
		})
		o.Key = []byte("k-" + string(o.Key))
		return err
	}
	skipEmpty opener = func(_ *semel.Message, o *sink.Opened) error {
		if bytes.Equal(o.Value, []byte(`{"a":""}`)) {
			o.Skip = "empty"
		}
		return nil
	}
)

func TestStepsRewriteWhatTheMappingReads(t *testing.T) {
	t.Parallel()
	m := newMapping(t, sink.MappingConfig{
		Open: []sink.Opener{wrap, skipEmpty},
		Columns: []sink.Column{
			{Name: "a", From: path(t, "value.a")}, {Name: "k", From: path(t, "key")}, {Name: "o", From: path(t, "offset")},
		},
	})
	var row sink.Row
	for _, text := range []string{"x", "yy", "z"} {
		msg := semel.Message{Value: []byte(text), Key: []byte("1"), Offset: 7}
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatal(err)
		}
		got := string(row.Values[0].Text(nil)) + " " + string(row.Values[1].Text(nil)) + " " + string(row.Values[2].Text(nil))
		if got != text+" k-1 7" || string(msg.Value) != text || string(msg.Key) != "1" {
			t.Errorf("%s became %q; the message is %q now", text, got, msg.Value)
		}
	}
	if err := m.Decode(&semel.Message{Value: []byte{}}, &row); err != nil || row.Skip != "empty" {
		t.Errorf("not skipped: %q, %v", row.Skip, err)
	}
	if err := m.Decode(&semel.Message{Value: []byte("x")}, &row); err != nil || row.Skip != "" {
		t.Errorf("skipped by the one before: %q, %v", row.Skip, err)
	}
}
