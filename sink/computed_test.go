package sink_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func expr(t testing.TB, text string) sink.Path {
	t.Helper()
	p, err := sink.ParseExpr(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const computedValue = `{"s":"draft","n":2,"f":0.5,"big":9007199254740993,"o":{"x":[1,"a",null],"e":1.10},"t":"2026-01-02T03:04:05Z","b":true,"z":null,"w é":"y","d":{"q":1,"q":2}}`

func computedMessage() semel.Message {
	return semel.Message{
		Topic: "shop.orders", Partition: 3, Offset: 9, Timestamp: time.Unix(1, 5000).UTC(), Key: []byte(`{"id":7}`), Value: []byte(computedValue),
		Headers: []semel.Header{{Name: "h", Value: []byte("old")}, {Name: "h", Value: []byte("new")}, {Name: "nil"}, {Name: "bad", Value: []byte{0xFF}}},
	}
}

func TestExpressionsCompute(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`value.s + "!"`:                                          "text draft!",
		`value.n * 2.0`:                                          "number 4",
		`value.n > 1 ? "many" : "one"`:                           "text many",
		`value.n == 2`:                                           "boolean true",
		`has(value.none) ? value.none : value.o`:                 `object {"x":[1,"a",null],"e":1.10}`, // as it was sent
		`has(value.none) ? value.none : value.o.x`:               `array [1,"a",null]`,
		`value.o.x[1]`:                                           "text a",
		`value.o.x[2] == null`:                                   "boolean true",
		`value["w é"].upperAscii()`:                              "text Y",
		`size(value.o.x)`:                                        "number 3",
		`value.o.x.filter(e, type(e) == string)[0]`:              "text a",
		`headers.h + headers["h"]`:                               "text newnew",
		`has(headers.none) ? headers.none : "-"`:                 "text -",
		`"nil" in headers`:                                       "boolean true",
		`key.id + 0.5`:                                           "number 7.5",
		`topic.split(".")[1]`:                                    "text orders",
		`string(partition) + "/" + string(offset)`:               "text 3/9",
		`timestamp + duration("1s")`:                             "text 1970-01-01T00:00:02.000005Z",
		`timestamp(value.t) < timestamp("2027-01-01T00:00:00Z")`: "boolean true",
		`duration("90s")`:                                        "text 90 seconds",
		`value.z == null ? dyn(null) : "x"`:                      "null ",
		`{"a": value.n, "l": [value.s, true, 1u], "o": value.o}`: `object {"a":2,"l":["draft",true,1],"o":{"x":[1,"a",null],"e":1.10}}`,
		`value.f / 0.0`:                                          "text +Inf",
		`1e21`:                                                   "number 1e+21",
		`b"\x01\x02"`:                                            "bytes \x01\x02",
		`value.map(k, k).size()`:                                 "number 10",
		`value.o == {"x": [1, "a", null], "e": 1.1}`:             "boolean true",
		`int(value.n) + 1`:                                       "number 3",
	} {
		m := newMapping(t, sink.MappingConfig{KeyFormat: sink.KeyJSON, Columns: []sink.Column{{Name: "c", From: expr(t, text)}, {Name: "s", From: path(t, "value.s")}}})
		msg := computedMessage()
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := row.Values[0].Kind.String() + " " + string(row.Values[0].Text(nil)); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
		if texts(&row) != string(row.Values[0].Text(nil))+"|draft" && !row.Values[0].IsNull() {
			t.Errorf("%s beside a selection: %s", text, texts(&row))
		}
		if row.UnknownFields != 9 { // to look is not to take
			t.Errorf("%s: %d unknown fields", text, row.UnknownFields)
		}
	}
}

func TestWhatCannotBeComputedIsTheMessagesFault(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		`value.none + "x"`:   "no such key",
		`value.s * 2.0`:      "no such overload",
		`value.big + 1.0`:    "9007199254740993 is more exact than a double",
		`value.d.q == 1`:     "twice",
		`headers.bad + "x"`:  "not valid UTF-8",
		`headers.none + "x"`: "no such key",
		`timestamp(value.s)`: "",
		`value.o.x[9] == 1`:  "index",
		`{1: value.s}`:       "no document",
	} {
		m := newMapping(t, sink.MappingConfig{Columns: []sink.Column{{Name: "c", From: expr(t, text)}}})
		t.Log(text)
		e := decodeError(t, m, computedMessage())
		if e.Class != sink.ClassValue || e.Field != text || !strings.Contains(e.Why, why) {
			t.Errorf("%s: %s %s: %v", text, e.Class, e.Field, e)
		}
	}
}

func TestAFilterSkips(t *testing.T) {
	t.Parallel()
	filter := func(text string) *sink.Mapping {
		f, err := sink.ParseFilter(text)
		if err != nil {
			t.Fatal(err)
		}
		return newMapping(t, sink.MappingConfig{Filter: f, KeyFormat: sink.KeyJSON, Columns: sink.ByName([]string{"n"})})
	}
	for text, passes := range map[string]bool{
		`value.s != "draft"`: false, `value.s == "draft"`: true, `value.b`: true, `!value.b`: false, `value.n > 1.5 && headers.h == "new"`: true, `true`: true,
	} {
		msg := computedMessage()
		var row sink.Row
		if err := filter(text).Decode(&msg, &row); err != nil || (row.Skip == "") != passes {
			t.Errorf("%s: %q, %v", text, row.Skip, err)
		}
	}
	for text, why := range map[string]string{`value.s`: "neither true nor false", `value.none == 1`: "no such key"} {
		if e := decodeError(t, filter(text), computedMessage()); e.Field != text || !strings.Contains(e.Why, why) {
			t.Errorf("%s: %v", text, e)
		}
	}
	// A deletion has nothing that could be asked; its key has.
	for text, passes := range map[string]bool{`value.s == "x"`: true, `key.id == 8`: false, `key.id == 7`: true} {
		msg := computedMessage()
		msg.Value = nil
		var row sink.Row
		if err := filter(text).Decode(&msg, &row); err != nil || (row.Skip == "") != passes || passes && !row.Tombstone {
			t.Errorf("%s of a tombstone: %q, %v", text, row.Skip, err)
		}
	}
}

func TestWrongExpressionsAreToldWithTheirPlace(t *testing.T) {
	t.Parallel()
	for text, column := range map[string]int{`value.a +`: 10, `valu.a + 1`: 1, `value.a == nope`: 12, `upper(value.a)`: 6, `"a" + 1`: 5} {
		_, err := sink.ParseExpr(text)
		var e *sink.ExprError
		if !errors.As(err, &e) || e.Column != column {
			t.Errorf("%s: %+v", text, err)
		}
	}
	for _, text := range []string{`"yes"`, `1 + 1`, `topic`} {
		if _, err := sink.ParseFilter(text); err == nil {
			t.Errorf("%s is a filter", text)
		}
	}
	if p := expr(t, "value.a"); p.IsComputed() || !p.Equal(path(t, "value.a")) {
		t.Error("a plain selection is computed")
	}
}

func TestARepeatThatStandsElsewhereIsTheSame(t *testing.T) {
	t.Parallel()
	m := newMapping(t, sink.MappingConfig{Columns: []sink.Column{{Name: "at", From: expr(t, `string(offset) + topic`)}, {Name: "s", From: expr(t, `value.s + "x"`)}}})
	digest := func(offset int64, value string) [16]byte {
		msg := computedMessage()
		msg.Offset, msg.Value = offset, []byte(value)
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatal(err)
		}
		return row.Digest()
	}
	if digest(1, `{"s":"a"}`) != digest(2, `{"s":"a"}`) || digest(1, `{"s":"a"}`) == digest(1, `{"s":"b"}`) {
		t.Error("digests follow the place, or don't follow the content")
	}
}

func BenchmarkFilter(b *testing.B) {
	f, err := sink.ParseFilter(`value.status != "draft"`)
	if err != nil {
		b.Fatal(err)
	}
	cfg := sink.MappingConfig{Filter: f}
	for _, e := range []string{"value.id", "value.account", "value.amount", "value.at", "value.payload"} {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: e, From: path(b, e)})
	}
	benchmarkDecode(b, newMapping(b, cfg), order)
}
