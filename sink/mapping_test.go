package sink_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func TestRowsTakeAllPartsOfAMessage(t *testing.T) {
	t.Parallel()
	m := mapping(t, "key", `headers["a-b"]`, "headers.none", "headers.empty", "timestamp", "topic", "partition", "offset", "value.x")
	at := time.Date(2026, 3, 29, 0, 30, 0, 123_000_000, time.UTC)
	var row sink.Row
	err := m.Decode(&semel.Message{
		Topic: "orders", Partition: 3, Offset: 42, Timestamp: at,
		Key: []byte(""), Value: []byte(`{"x":1,"y":2}`),
		Headers: []semel.Header{{Name: "a-b", Value: []byte("first")}, {Name: "a-b", Value: []byte("last")}, {Name: "empty"}},
	}, &row)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"text ", "text last", "absent ", "null ", "time 2026-03-29T00:30:00.123Z", "text orders", "integer 3", "integer 42", "number 1",
	} {
		v := row.Values[i]
		if got := v.Kind.String() + " " + string(v.Text(nil)); got != want {
			t.Errorf("value %d is %s, want %s", i, got, want)
		}
	}
	if !row.Values[4].Time().Equal(at) || row.UnknownFields != 1 {
		t.Errorf("%v, %d unknown fields", row.Values[4].Time(), row.UnknownFields)
	}
}

func TestTheWholeValueLeavesNoFieldUnknown(t *testing.T) {
	t.Parallel()
	if row := decode(t, mapping(t, "value", "value.a"), `{"a":1,"b":2}`); row.UnknownFields != 0 {
		t.Errorf("%d unknown fields", row.UnknownFields)
	}
}

func TestOneFieldMayFillSeveralColumns(t *testing.T) {
	t.Parallel()
	a := path(t, "value.a")
	m := newMapping(t, sink.MappingConfig{
		Columns: []sink.Column{{Name: "x", From: a}, {Name: "y", From: path(t, "value")}, {Name: "z", From: a}},
		ID:      []sink.Path{a},
	})
	row := decode(t, m, `{"a":7}`)
	if string(row.Values[0].Raw) != "7" || string(row.Values[2].Raw) != "7" || len(row.Values) != 3 {
		t.Errorf("%v", row.Values)
	}
	if m.ColumnOf(a) != 0 || m.ColumnOf(path(t, "value")) != 1 || m.ColumnOf(path(t, "value.b")) != -1 {
		t.Error("a column is not found by its path")
	}
}

func TestKeysAreReadInTheirFormat(t *testing.T) {
	t.Parallel()
	build := func(f sink.KeyFormat, exprs ...string) *sink.Mapping {
		cfg := sink.MappingConfig{KeyFormat: f}
		for _, e := range exprs {
			cfg.Columns = append(cfg.Columns, sink.Column{Name: e, From: path(t, e)})
		}
		return newMapping(t, cfg)
	}
	text, raw := build(sink.KeyText, "key"), build(sink.KeyRaw, "key")
	json, field := build(sink.KeyJSON, "key"), build(sink.KeyJSON, "key.id", "key.x.y")
	for _, c := range []struct {
		m    *sink.Mapping
		key  string
		want string
	}{
		{text, "a b", "text a b"},
		{raw, "\xff\x00", "bytes \xff\x00"},
		{json, `"k\u0031"`, "string k1"},
		{json, "12", "number 12"},
		{json, "null", "null "},
		{field, `{"id":7}`, "number 7"},
		{field, `{"x":7}`, "absent "},
		{field, `7`, "absent "},
	} {
		var row sink.Row
		if err := c.m.Decode(&semel.Message{Key: []byte(c.key), Value: []byte("{}")}, &row); err != nil {
			t.Errorf("%s: %v", c.key, err)
			continue
		}
		if got := row.Values[0].Kind.String() + " " + string(row.Values[0].Text(nil)); got != c.want {
			t.Errorf("key %s: %s, want %s", c.key, got, c.want)
		}
	}
	for _, m := range []*sink.Mapping{text, raw, json} {
		var row sink.Row
		if err := m.Decode(&semel.Message{Value: []byte("{}")}, &row); err != nil || row.Values[0].Kind != sink.Null {
			t.Errorf("no key: %v, %v", row.Values[0].Kind, err)
		}
	}
	if d := decodeError(t, text, semel.Message{Key: []byte("\xff"), Value: []byte("{}")}); d.Class != sink.ClassValue || d.Field != "key" {
		t.Error(d)
	}
	for _, key := range []string{"", "a", `{"id":1,"id":2}`} {
		if d := decodeError(t, field, semel.Message{Key: []byte(key), Value: []byte("{}")}); d.Class != sink.ClassDecode || d.Field != "key" {
			t.Error(d)
		}
	}
}

func TestHeadersThatAreNoTextAreRefused(t *testing.T) {
	t.Parallel()
	d := decodeError(t, mapping(t, "headers.h"), semel.Message{Value: []byte("{}"), Headers: []semel.Header{{Name: "h", Value: []byte("\xc3\x28")}}})
	if d.Class != sink.ClassValue || d.Field != "headers.h" {
		t.Error(d)
	}
}

func TestTombstonesTakeTheirKeyColumnsFromTheKey(t *testing.T) {
	t.Parallel()
	build := func(f sink.KeyFormat, key ...string) *sink.Mapping {
		return newMapping(t, sink.MappingConfig{Columns: sink.ByName([]string{"id", "kind", "x"}), KeyFormat: f, KeyColumns: key})
	}
	for _, c := range []struct {
		m        *sink.Mapping
		key      string
		id, kind string
	}{
		{build(sink.KeyText), "7", "absent ", "absent "},
		{build(sink.KeyText, "id"), "7", "text 7", "absent "},
		{build(sink.KeyText, "id"), "", "text ", "absent "},
		{build(sink.KeyJSON, "id"), "7", "number 7", "absent "},
		{build(sink.KeyJSON, "id"), `{"x":1,"id":8}`, "number 8", "absent "},
		{build(sink.KeyJSON, "id", "kind"), `{"kind":"b","id":8}`, "number 8", "string b"},
	} {
		var row sink.Row
		for range 2 {
			if err := c.m.Decode(&semel.Message{Key: []byte(c.key)}, &row); err != nil {
				t.Fatalf("%s: %v", c.key, err)
			}
		}
		if !row.Tombstone {
			t.Error("not a tombstone")
		}
		for i, want := range []string{c.id, c.kind, "absent "} {
			if got := row.Values[i].Kind.String() + " " + string(row.Values[i].Text(nil)); got != want {
				t.Errorf("key %s, column %d: %s, want %s", c.key, i, got, want)
			}
		}
	}
	if d := decodeError(t, build(sink.KeyText, "id"), semel.Message{}); d.Class != sink.ClassMissingID || !errors.Is(d, semel.ErrMissingID) {
		t.Error(d)
	}
	if d := decodeError(t, build(sink.KeyText, "id", "kind"), semel.Message{Key: []byte("7")}); d.Class != sink.ClassValue {
		t.Error(d)
	}
	if d := decodeError(t, build(sink.KeyJSON, "id", "kind"), semel.Message{Key: []byte("7")}); d.Class != sink.ClassValue {
		t.Error(d)
	}
}

func TestAnEmptyValueIsNoTombstone(t *testing.T) {
	t.Parallel()
	if d := decodeError(t, mapping(t, "value.a"), semel.Message{Value: []byte{}}); d.Class != sink.ClassDecode {
		t.Error(d)
	}
}

func TestAMappingThatCanNotBeIsRefused(t *testing.T) {
	t.Parallel()
	a := path(t, "value.a")
	for name, cfg := range map[string]sink.MappingConfig{
		"a column twice":         {Columns: []sink.Column{{Name: "a", From: a}, {Name: "a", From: a}}},
		"a column from nothing":  {Columns: []sink.Column{{Name: "a"}}},
		"a field of a text key":  {Columns: []sink.Column{{Name: "a", From: path(t, "key.a")}}},
		"a key column not there": {Columns: []sink.Column{{Name: "a", From: a}}, KeyColumns: []string{"b"}},
		"an ID from nothing":     {ID: []sink.Path{{}}},
	} {
		if _, err := sink.NewMapping(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestErrorTextsCanBeStored(t *testing.T) {
	t.Parallel()
	for _, why := range []string{
		strings.Repeat("ж", 1000), strings.Repeat("x", 499) + "ж", "\xff\xfe", "a\x00b", strings.Repeat("\xf0\x9f\x98", 400),
	} {
		s := (&sink.DecodeError{Field: "value.a", Why: why}).Error()
		if !utf8.ValidString(s) || len(s) > 510 || strings.Contains(s, "\x00") {
			t.Errorf("%q", s)
		}
	}
	if s := (&sink.DecodeError{Why: strings.Repeat("ж", 1000)}).Error(); s != strings.Repeat("ж", 250)+"…" {
		t.Errorf("cut to %q", s)
	}
}

func TestManyGoroutinesShareAMapping(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "value.b")
	done := make(chan string)
	for _, in := range []string{`{"a":1,"b":2}`, `{"b":2,"a":1}`} {
		go func() {
			var row sink.Row
			for range 1000 {
				if err := m.Decode(&semel.Message{Value: []byte(in)}, &row); err != nil || !bytes.Equal(row.Values[1].Raw, []byte("2")) {
					done <- "wrong row"
					return
				}
			}
			done <- ""
		}()
	}
	for range 2 {
		if s := <-done; s != "" {
			t.Error(s)
		}
	}
}
