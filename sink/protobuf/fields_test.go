package protobuf_test

import (
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

// asText hides that a format knows where fields stand.
type asText struct{ sink.Decoder }

func TestFieldsAreThoseOfTheText(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.All")
	var paths []string
	for _, name := range p.ours.Fields() {
		paths = append(paths, "value."+name)
	}
	paths = append(paths, paths[0]+".a", paths[len(paths)-1]+".a", "value.none", "offset")
	rapid.Check(t, func(t *rapid.T) {
		m := dynamicpb.NewMessage(p.theirs)
		draw(t, m, 2)
		data, err := proto.Marshal(m)
		if err != nil {
			t.Skip(err)
		}
		switch rapid.IntRange(0, 3).Draw(t, "harm") {
		case 0:
			data = data[:rapid.IntRange(0, len(data)).Draw(t, "cut")]
		case 1:
			if len(data) > 0 {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		}
		var columns []sink.Column
		for i, path := range rapid.SliceOfNDistinct(rapid.SampledFrom(paths), 1, 8, rapid.ID[string]).Draw(t, "paths") {
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
		got, gotErr := decode(p.ours)
		want, wantErr := decode(asText{p.ours})
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v, by its text %v", data, gotErr, wantErr)
		}
		if gotErr == nil && (!reflect.DeepEqual(got.Values, want.Values) || got.UnknownFields != want.UnknownFields) {
			t.Fatalf("%x: got  %v and %d\nwant %v and %d", data, got.Values, got.UnknownFields, want.Values, want.UnknownFields)
		}
	})
}
