package avro_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	ref "github.com/twmb/avro"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
)

// asText hides that a format knows where fields stand.
type asText struct{ sink.Decoder }

func TestFieldsAreThoseOfTheText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var fields []string
		value := map[string]any{}
		for i := range rapid.IntRange(1, 5).Draw(t, "fields") {
			name := fmt.Sprintf("f%d", i)
			f := drawField(t, name)
			fields, value[name] = append(fields, f.writer), f.value
		}
		fields = append(fields, `{"name":"doc","type":{"type":"string","connect.name":"io.debezium.data.Json"}}`)
		value["doc"] = rapid.SampledFrom([]string{`{}`, " [1,\n2] ", `"\ud800"`, `"\u0000"`, `{"a":{"a":1},"a":2}`, "no JSON", `tru`}).Draw(t, "doc")
		text := record(strings.Join(fields, ","))
		data, err := ref.MustParse(text).Encode(value)
		if err != nil {
			t.Fatal(err)
		}
		switch rapid.IntRange(0, 3).Draw(t, "harm") {
		case 0:
			data = data[:rapid.IntRange(0, len(data)).Draw(t, "cut")]
		case 1:
			if len(data) > 0 {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		}
		s, err := avro.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var columns []sink.Column
		for i, path := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"value.f0", "value.f1", "value.f2", "value.f3.a", "value.f0.b", "value.f4", "value.doc", "value.doc.a", "value.none", "offset"}), 1, 6, rapid.ID[string]).Draw(t, "paths") {
			p, err := sink.ParsePath(path)
			if err != nil {
				t.Fatal(err)
			}
			columns = append(columns, sink.Column{Name: fmt.Sprint(i), From: p})
		}
		decode := func(d sink.Decoder) (sink.Row, error) {
			m, err := sink.NewMapping(sink.MappingConfig{Columns: columns, Open: []sink.Opener{sink.Formats(d, nil)}})
			if err != nil {
				t.Fatal(err)
			}
			var row sink.Row
			msg := semel.Message{Value: data}
			for range 2 { // a row is used again
				err = m.Decode(&msg, &row)
			}
			return row, err
		}
		got, gotErr := decode(s)
		want, wantErr := decode(asText{s})
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("%s\n%x: %v, by its text %v", text, data, gotErr, wantErr)
		}
		if gotErr == nil && (!reflect.DeepEqual(got.Values, want.Values) || got.UnknownFields != want.UnknownFields) {
			t.Fatalf("%s\n%x: got  %v and %d\nwant %v and %d", text, data, got.Values, got.UnknownFields, want.Values, want.UnknownFields)
		}
	})
}
