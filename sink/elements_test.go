package sink_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func TestElementsOfAnArrayAreAsSent(t *testing.T) {
	t.Parallel()
	m, err := sink.NewMapping(sink.MappingConfig{Columns: sink.ByName([]string{"a"})})
	if err != nil {
		t.Fatal(err)
	}
	var row sink.Row
	value := `{"a": [ 1.50 , "x\u00e9", null,{"b":[1,2]} ,[ ],"\u0000" ]}`
	if err := m.Decode(&semel.Message{Value: []byte(value)}, &row); err != nil {
		t.Fatal(err)
	}
	var got []string
	for v := range row.Values[0].Elements() {
		got = append(got, v.Kind.String()+" "+string(v.Text(nil)))
	}
	want := []string{"number 1.50", "string xé", "null ", `object {"b":[1,2]}`, "array [ ]", "string \x00"}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("element %d is %q, want %q", i, got[i], want[i])
		}
	}
	if err := m.Decode(&semel.Message{Value: []byte(`{"a":[]}`)}, &row); err != nil {
		t.Fatal(err)
	}
	for range row.Values[0].Elements() {
		t.Error("an empty array has an element")
	}
}
