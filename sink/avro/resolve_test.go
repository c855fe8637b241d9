package avro_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"

	ref "github.com/twmb/avro"
	"pgregory.net/rapid"

	"github.com/semelhq/semel/sink/avro"
)

// as reads what writer wrote as reader has it.
func as(t *testing.T, writer string, v any, reader string) string {
	t.Helper()
	data, err := ref.MustParse(writer).Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	w, err := avro.Parse(writer)
	if err != nil {
		t.Fatal(err)
	}
	r, err := avro.Parse(reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.As(r)
	if err != nil {
		t.Fatalf("%s as %s: %v", writer, reader, err)
	}
	got, err := s.AppendJSON(nil, data)
	if err != nil {
		t.Fatalf("%s as %s: %x: %v", writer, reader, data, err)
	}
	if !json.Valid(got) {
		t.Fatalf("%s is no JSON", got)
	}
	return string(got)
}

func record(fields string) string {
	return `{"type":"record","name":"R","fields":[` + fields + `]}`
}

func TestAReadersSchemaHasTheLastWord(t *testing.T) {
	t.Parallel()
	const id = `{"name":"id","type":"long"}`
	one := map[string]any{"id": int64(1)}
	for _, c := range []struct {
		what, writer string
		value        any
		reader, want string
	}{
		{"a field that is new", record(id), one, record(id + `,{"name":"note","type":"string","default":"é\"x"}`), `{"id":1,"note":"é\"x"}`},
		{"null by default", record(id), one, record(`{"name":"note","type":["null","string"],"default":null},` + id), `{"id":1,"note":null}`},
		{"bytes by default", record(id), one, record(`{"name":"b","type":"bytes","default":"\u00ff\u0001"},` + id), `{"id":1,"b":"\\xff01"}`},
		{"a decimal by default", record(id), one, record(`{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2},"default":"\u0000\u00ff"},` + id), `{"id":1,"d":2.55}`},
		{"a large long by default", record(id), one, record(`{"name":"n","type":"long","default":9007199254740993},` + id), `{"id":1,"n":9007199254740993}`},
		{"a time by default", record(id), one, record(`{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"default":1},` + id), `{"id":1,"at":"1970-01-01T00:00:00.001Z"}`},
		{"an array of records by default", record(id), one, record(id + `,{"name":"l","type":{"type":"array","items":{"type":"record","name":"L","fields":[{"name":"a","type":"int"}]}},"default":[{"a":1}]}`), `{"id":1,"l":[{"a":1}]}`},
		{"a field that is gone", record(`{"name":"old","type":"string"},` + id), map[string]any{"id": int64(1), "old": "x"}, record(id), `{"id":1}`},
		{"all fields are gone", record(id), one, record(""), `{}`},
		{"an int that is a long", record(`{"name":"id","type":"int"}`), map[string]any{"id": int32(1)}, record(id), `{"id":1}`},
		{"a long that is a double stays what it was", record(id), map[string]any{"id": int64(9007199254740993)}, record(`{"name":"id","type":"double"}`), `{"id":9007199254740993}`},
		{"an int that is a time", record(`{"name":"id","type":"int"}`), map[string]any{"id": int32(7)}, record(`{"name":"id","type":["null","long"]}`), `{"id":7}`},
		{"a long that means a time now", record(id), one, record(`{"name":"id","type":{"type":"long","logicalType":"timestamp-micros"}}`), `{"id":"1970-01-01T00:00:00.000001Z"}`},
		{"the writer's unit", record(`{"name":"id","type":{"type":"long","logicalType":"timestamp-millis"}}`), one, record(`{"name":"id","type":{"type":"long","logicalType":"timestamp-micros"}}`), `{"id":"1970-01-01T00:00:00.001Z"}`},
		{"bytes that are a string", record(`{"name":"s","type":"bytes"}`), map[string]any{"s": []byte("é")}, record(`{"name":"s","type":"string"}`), `{"s":"é"}`},
		{"a string that is bytes", record(`{"name":"s","type":"string"}`), map[string]any{"s": "a"}, record(`{"name":"s","type":"bytes"}`), `{"s":"\\x61"}`},
		{"renamed", record(`{"name":"nr","type":"int"}`), map[string]any{"nr": int32(1)}, record(`{"name":"id","aliases":["nr"],"type":"long"}`), `{"id":1}`},
		{"a record that is renamed", `{"type":"record","name":"a.Old","fields":[` + id + `]}`, one, `{"type":"record","name":"b.New","aliases":["a.Old"],"fields":[` + id + `]}`, `{"id":1}`},
		{"a symbol that isn't known", record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}`), map[string]any{"e": "B"}, record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A","OTHER"],"default":"OTHER"}}`), `{"e":"OTHER"}`},
		{"symbols in another order", record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}`), map[string]any{"e": "B"}, record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["B","A"]}}`), `{"e":"B"}`},
		{"optional now", record(id), one, record(`{"name":"id","type":["null","long"]}`), `{"id":1}`},
		{"optional once", record(`{"name":"id","type":["null","int"]}`), map[string]any{"id": int32(1)}, record(`{"name":"id","type":["long","null"]}`), `{"id":1}`},
		{"its own branch before one that it promotes to", record(`{"name":"id","type":"int"}`), map[string]any{"id": int32(1)}, record(`{"name":"id","type":["double",{"type":"int","logicalType":"date"}]}`), `{"id":"1970-01-02"}`},
		{
			"records in records",
			record(id + `,{"name":"next","type":["null","R"]}`),
			map[string]any{"id": int64(1), "next": map[string]any{"id": int64(2), "next": nil}},
			record(`{"name":"next","type":["null","R"],"default":null},{"name":"n","type":"long","aliases":["id"]},{"name":"k","type":"int","default":5}`), `{"n":1,"next":{"n":2,"next":null,"k":5},"k":5}`,
		},
		{"maps", record(`{"name":"m","type":{"type":"map","values":"int"}}`), map[string]any{"m": map[string]any{"a": int32(1)}}, record(`{"name":"m","type":{"type":"map","values":["null","long"]}}`), `{"m":{"a":1}}`},
	} {
		if got := as(t, c.writer, c.value, c.reader); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

func TestSchemasThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{record(``), record(`{"name":"id","type":"long"}`), "no default"},
		{record(`{"name":"id","type":"long"}`), record(`{"name":"id","type":"int"}`), "incompatible"},
		{`{"type":"record","name":"A","fields":[]}`, `{"type":"record","name":"B","fields":[]}`, "names do not match"},
		{record(`{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}`), record(`{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":3}}`), "scale"},
		{record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}`), record(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}}`), `symbol "B"`},
		{record(`{"name":"u","type":["null","string"]}`), record(`{"name":"u","type":"string"}`), "incompatible"},
	} {
		w, err := avro.Parse(c[0])
		if err != nil {
			t.Fatal(err)
		}
		r, err := avro.Parse(c[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.As(r); !errors.Is(err, avro.ErrUnresolved) || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s as %s: %v", c[0], c[1], err)
		}
	}
}

// evolving is a field of a writer, its value, and what a reader makes of it.
type evolving struct {
	writer, reader string
	value          any
}

func drawField(t *rapid.T, name string) evolving {
	types := []struct {
		writer  string
		value   any
		readers []string
	}{
		{`"int"`, int32(rapid.Int32().Draw(t, "int")), []string{`"int"`, `"long"`, `["null","long"]`, `["null","int","string"]`, `{"type":"int","logicalType":"date"}`}},
		{`"long"`, rapid.Int64().Draw(t, "long"), []string{`"long"`, `["null","long"]`}},
		{`"string"`, rapid.String().Draw(t, "string"), []string{`"string"`, `["null","string"]`, `"bytes"`}},
		{`"bytes"`, rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"), []string{`"bytes"`, `["bytes","null"]`}},
		{`"double"`, rapid.Float64().Draw(t, "double"), []string{`"double"`, `["null","double"]`}},
		{`["null","int"]`, rapid.SampledFrom([]any{nil, int32(3)}).Draw(t, "union"), []string{`["null","int"]`, `["long","null"]`}},
		{`{"type":"array","items":"int"}`, rapid.SliceOf(rapid.Int32()).Draw(t, "array"), []string{`{"type":"array","items":"long"}`, `{"type":"array","items":["null","int"]}`}},
		{`{"type":"map","values":"string"}`, map[string]string{"k": rapid.String().Draw(t, "map")}, []string{`{"type":"map","values":["null","string"]}`}},
		{`{"type":"enum","name":"E` + name + `","symbols":["A","B","C"]}`, rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "enum"), []string{`{"type":"enum","name":"E` + name + `","symbols":["C","X"],"default":"X"}`}},
		{`{"type":"record","name":"I` + name + `","fields":[{"name":"a","type":"int"},{"name":"b","type":"string"}]}`, map[string]any{"a": int32(1), "b": "x"}, []string{`["null",{"type":"record","name":"I` + name + `","fields":[{"name":"c","type":"string","aliases":["b"]},{"name":"z","type":"long","default":-1}]}]`}},
		{`{"type":"bytes","logicalType":"decimal","precision":20,"scale":3}`, big.NewRat(rapid.Int64().Draw(t, "unscaled"), 1000), []string{`["null",{"type":"bytes","logicalType":"decimal","precision":20,"scale":3}]`}},
	}
	of := rapid.SampledFrom(types).Draw(t, "type")
	f := evolving{writer: fmt.Sprintf(`{"name":%q,"type":%s}`, name, of.writer), value: of.value}
	switch rapid.IntRange(0, 4).Draw(t, "fate") {
	case 0: // gone
	case 1:
		f.reader = fmt.Sprintf(`{"name":"new_%s","aliases":[%q],"type":%s}`, name, name, rapid.SampledFrom(of.readers).Draw(t, "reader"))
	default:
		f.reader = fmt.Sprintf(`{"name":%q,"type":%s}`, name, rapid.SampledFrom(of.readers).Draw(t, "reader"))
	}
	return f
}

func TestReadersSchemasAreAppliedAsTheLibraryDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var writer, reader []string
		value := map[string]any{}
		for i := range rapid.IntRange(1, 5).Draw(t, "fields") {
			name := fmt.Sprintf("f%d", i)
			f := drawField(t, name)
			writer, value[name] = append(writer, f.writer), f.value
			if f.reader != "" {
				reader = append(reader, f.reader)
			}
		}
		if rapid.Bool().Draw(t, "added") {
			reader = append(reader, `{"name":"added","type":["null","string"],"default":null}`)
		}
		reader = rapid.Permutation(reader).Draw(t, "order")
		wText, rText := record(strings.Join(writer, ",")), record(strings.Join(reader, ","))
		wLib, rLib := ref.MustParse(wText), ref.MustParse(rText)
		data, err := wLib.Encode(value)
		if err != nil {
			t.Fatal(err)
		}
		both, err := ref.Resolve(wLib, rLib)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if _, err := both.Decode(data, &v); err != nil {
			t.Fatal(err)
		}
		again, err := rLib.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		w, err := avro.Parse(wText)
		if err != nil {
			t.Fatal(err)
		}
		r, err := avro.Parse(rText)
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.As(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.AppendJSON(nil, data)
		if err != nil {
			t.Fatal(err)
		}
		want, err := r.AppendJSON(nil, again)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(parsed(t, got), parsed(t, want)) {
			t.Fatalf("%s\nas %s:\ngot  %s\nwant %s", wText, rText, got, want)
		}
	})
}

func parsed(t *rapid.T, text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func TestSingleObjectsAreReadOrNamed(t *testing.T) {
	t.Parallel()
	const text, other = `{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}`, `{"type":"record","name":"O","fields":[{"name":"s","type":"string"}]}`
	s, err := avro.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	single, err := ref.MustParse(text).AppendSingleObject(nil, map[string]any{"id": int64(7)})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.AppendJSON(nil, single); err != nil || string(got) != `{"id":7}` {
		t.Errorf("%s %v", got, err)
	}
	if got, err := s.AppendJSON(nil, []byte{0xc3, 1}); err != nil || string(got) != `{"id":-98}` { // a value that begins so
		t.Errorf("%s %v", got, err)
	}
	foreign, err := ref.MustParse(other).AppendSingleObject(nil, map[string]any{"s": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.AppendJSON(nil, foreign); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("single-object encoding by another schema, of fingerprint %x", foreign[2:10])) {
		t.Errorf("%s %v", got, err)
	}
}
