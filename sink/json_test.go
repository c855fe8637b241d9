package sink_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func TestDifficultLinesAreReadOrRefused(t *testing.T) {
	t.Parallel()
	m := newMapping(t, sink.MappingConfig{Columns: sink.ByName([]string{"n", "what", "big", "num", "txt", "at", "doc"})})
	refused := map[int]bool{35: true, 45: true, 46: true, 47: true, 48: true, 49: true, 50: true, 51: true, 52: true, 53: true}
	lines := hardLines(t)
	if len(lines) != 54 {
		t.Fatalf("%d lines", len(lines)-1)
	}
	for n, line := range lines {
		if n == 0 {
			continue
		}
		msg := semel.Message{Value: []byte(line)}
		if refused[n] {
			if d := decodeError(t, m, msg); d.Class != sink.ClassDecode {
				t.Errorf("line %d: class %s", n, d.Class)
			}
			continue
		}
		row := decode(t, m, line)
		if got := string(row.Values[0].Raw); got != fmt.Sprint(n) {
			t.Errorf("line %d: n is %s", n, got)
		}
		nul := n == 21 || n == 22 || n == 23
		lone := n == 24
		for i, v := range row.Values {
			if i >= 4 && !v.IsNull() && (v.HasNUL() != nul || v.HasLoneSurrogate() != lone) {
				t.Errorf("line %d: NUL %v, lone surrogate %v", n, v.HasNUL(), v.HasLoneSurrogate())
			}
		}
		if want := map[int]int{20: 2}[n]; row.UnknownFields != want {
			t.Errorf("line %d: %d unknown fields", n, row.UnknownFields)
		}
	}
}

func TestValuesKeepTheirForm(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "value.b.c", `value["odd name"]`, "value")
	for _, c := range []struct{ in, a, bc, odd string }{
		{`{}`, "absent", "absent", "absent"},
		{`{"a":null,"b":null}`, "null null", "absent", "absent"},
		{`{"b":{"x":1},"a":true}`, "boolean true", "absent", "absent"},
		{`{"b":{"c":1.10},"a":-0.0}`, "number -0.0", "number 1.10", "absent"},
		{` { "a" : 1E+400 , "odd name" : [ 1 , 2 ] } `, "number 1E+400", "absent", "array [ 1 , 2 ]"},
		{`{"a":"","b":[{"c":1}]}`, `string ""`, "absent", "absent"},
		{`{"\u0061":"\u00e9","odd\u0020name":{"a":1,"a":2}}`, `string "\u00e9"`, "absent", `object {"a":1,"a":2}`},
		{`{"b":{"c":{"d":{}},"d":[[[]]]},"a":"x\"y"}`, `string "x\"y"`, `object {"d":{}}`, "absent"},
		{`{"b":{"x":1,"x":2,"c":3},"unknown":{"a":1},"A":0}`, "absent", "number 3", "absent"},
	} {
		row := decode(t, m, c.in)
		for i, want := range []string{c.a, c.bc, c.odd, "object " + strings.TrimSpace(c.in)} {
			v := row.Values[i]
			if got := strings.TrimSpace(v.Kind.String() + " " + string(v.Raw)); got != want {
				t.Errorf("%s: value %d is %s, want %s", c.in, i, got, want)
			}
		}
	}
}

func TestNamesTwiceAreRefusedWhereTheyGiveTwoAnswers(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "value.b.c")
	for _, in := range []string{
		`{"a":1,"a":1}`,
		`{"a":1,"\u0061":2}`,
		`{"x":1,"x":2}`,
		`{"x":1,"\u0078":2}`,
		`{"b":{},"b":{"c":1}}`,
		`{"b":{"c":1,"c":2}}`,
		`{"b":{"c":1,"\u0063":2}}`,
	} {
		if d := decodeError(t, m, semel.Message{Value: []byte(in)}); !strings.Contains(d.Why, "twice") {
			t.Errorf("%s: %v", in, d)
		}
	}
	for _, in := range []string{`{"b":{"x":1,"x":2}}`, `{"a":{"c":1,"c":2}}`, `{"x":{"a":1,"a":2}}`} {
		decode(t, m, in)
	}
}

func TestManyNamesTwiceAreFound(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a")
	for _, n := range []int{15, 16, 17, 18, 100, 3000} {
		var b strings.Builder
		b.WriteString(`{"a":1`)
		for i := range n {
			fmt.Fprintf(&b, `,"f%d":%d`, i, i)
		}
		row := decode(t, m, b.String()+"}")
		if row.UnknownFields != n {
			t.Errorf("%d unknown fields of %d", row.UnknownFields, n)
		}
		for _, again := range []int{0, n / 2, n - 1} {
			decodeError(t, m, semel.Message{Value: []byte(b.String() + fmt.Sprintf(`,"f%d":0}`, again))})
		}
	}
}

func TestDepthIsBounded(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a")
	nested := func(n int) string {
		return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	decode(t, m, nested(10_000))
	if d := decodeError(t, m, semel.Message{Value: []byte(nested(10_001))}); !strings.Contains(d.Why, "deep") {
		t.Error(d)
	}
	decodeError(t, m, semel.Message{Value: []byte(strings.Repeat(`{"a":`, 1_000_000))})
}

func TestErrorsNameTheByte(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a")
	for in, want := range map[string]string{
		`{"a":1} x`:        "value: more after the JSON text (byte 9)",
		`{"a":tru}`:        "value: unexpected '}' in the word true (byte 9)",
		`{"a":NaN}`:        "value: unexpected 'N' where a value should be (byte 6)",
		`{"a":01}`:         "value: unexpected '1' after a field (byte 7)",
		`{"a":1,}`:         "value: unexpected '}' where a name should be (byte 8)",
		`{"a":`:            "value: ends too early (byte 6)",
		"{\"a\":\"x\ty\"}": "value: the control character 0x09 inside a string (byte 8)",
		"{\"a\":\"\xff\"}": "value: not valid UTF-8 (byte 7)",
		"\ufeff{}":         "value: a byte order mark in front of the JSON text (byte 1)",
		``:                 "value: no JSON text: empty or only white space (byte 1)",
		`[1,2]`:            "value: not an object but an array (byte 1)",
		` null`:            "value: not an object but null (byte 2)",
		`{"a":"\x"}`:       `value: unexpected 'x' after a backslash (byte 8)`,
		`{"a":"\u12"}`:     `value: an escape without four hexadecimal digits (byte 7)`,
		`{"a":1 "b":2}`:    `value: unexpected '"' after a field (byte 8)`,
		`{"a" 1}`:          `value: unexpected '1' where a colon should be (byte 6)`,
		`{"a":[1,]}`:       `value: unexpected ']' where a value should be (byte 9)`,
		`{"a":1.}`:         `value: unexpected '}' in a number (byte 8)`,
	} {
		if d := decodeError(t, m, semel.Message{Value: []byte(in)}); d.Error() != want {
			t.Errorf("%q: %v\n want %s", in, d, want)
		}
	}
}

// A reused row and a scanner that learnt another order give what fresh ones give.
func TestOrderOfFieldsIsNoMatter(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "value.b", "value.c.d")
	row := m.NewRows(1)
	for range 3 {
		for _, in := range []string{
			`{"a":1,"b":2,"c":{"d":3}}`, `{"c":{"x":0,"d":3},"b":2,"a":1}`, `{"b":2,"x":0,"a":1,"c":{"d":3}}`,
		} {
			if err := m.Decode(&semel.Message{Value: []byte(in)}, &row[0]); err != nil {
				t.Fatal(err)
			}
			for i, v := range row[0].Values {
				if string(v.Raw) != fmt.Sprint(i+1) {
					t.Errorf("%s: value %d is %s", in, i, v.Raw)
				}
			}
		}
		if err := m.Decode(&semel.Message{Value: []byte(`{"b":0}`)}, &row[0]); err != nil {
			t.Fatal(err)
		}
		if row[0].Values[0].Kind != sink.Absent || row[0].Values[2].Kind != sink.Absent {
			t.Error("a used row kept a value")
		}
	}
}

// duplicated says whether an object at the top has a name twice. Such texts are
// refused here and not by encoding/json.
func duplicated(data []byte) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		return false
	}
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return false
		}
		name, ok := tok.(string)
		if !ok {
			return false
		}
		if seen[name] {
			return true
		}
		seen[name] = true
		var skip json.RawMessage
		if err := d.Decode(&skip); err != nil {
			return false
		}
	}
	return false
}

// Accepts and rejects what encoding/json does, and gives the same bytes, but:
// invalid UTF-8 and names twice at the top are refused, and only objects are taken.
func FuzzScannerAgreesWithEncodingJSON(f *testing.F) {
	for _, line := range hardLines(f) {
		if len(line) < 1000 {
			f.Add([]byte(line))
		}
	}
	f.Add([]byte(`{"a":{"b":1,"c":"\ud83d\ude00"},"x":[1,{"a":[]}],"a b":null}`))
	f.Add([]byte(`{"a":"\ud83d\u0041","x":1e-7}`))
	m := mapping(f, "value.a", "value.x.a", `value["a b"]`, "value")
	f.Fuzz(func(t *testing.T, data []byte) {
		var row sink.Row
		err := m.Decode(&semel.Message{Value: bytes.Clone(data)}, &row)
		if data == nil {
			return
		}
		var fields map[string]json.RawMessage
		stdErr := json.Unmarshal(data, &fields)
		stdOK := stdErr == nil && fields != nil && utf8.Valid(data)
		if err != nil {
			if stdOK && !duplicated(data) && !strings.Contains(err.Error(), "twice") {
				t.Fatalf("refused: %v", err)
			}
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 600 {
				t.Fatalf("a text that can't be stored: %q", err.Error())
			}
			return
		}
		if !stdOK || duplicated(data) {
			t.Fatalf("accepted, encoding/json says %v", stdErr)
		}
		for i, name := range map[int]string{0: "a", 2: "a b"} {
			want, ok := fields[name]
			got := row.Values[i]
			if ok == (got.Kind == sink.Absent) || !bytes.Equal(got.Raw, want) {
				t.Fatalf("%s: got %s, want %s", name, got.Raw, want)
			}
			if got.Kind == sink.String {
				var s string
				if err := json.Unmarshal(want, &s); err != nil {
					t.Fatal(err)
				}
				if string(got.Text(nil)) != s {
					t.Fatalf("%s: content %q, want %q", name, got.Text(nil), s)
				}
				if got.HasNUL() != strings.Contains(s, "\x00") {
					t.Fatalf("%s: NUL %v in %q", name, got.HasNUL(), s)
				}
			}
		}
		whole := row.Values[3]
		if stripped := whole.Stripped(); !json.Valid(stripped.Raw) || hasNULEscape(t, stripped.Raw) {
			t.Fatalf("stripped: %q", stripped.Raw)
		} else if whole.HasNUL() != hasNULEscape(t, whole.Raw) {
			t.Fatalf("NUL %v in %q", whole.HasNUL(), whole.Raw)
		}
		row.Digest()
	})
}

func hasNULEscape(t *testing.T, data []byte) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := tok.(string); ok && strings.Contains(s, "\x00") {
			return true
		}
	}
}

const flight = `{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR","dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}`

var flightColumns = []string{
	"year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "carrier",
	"flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
}

const order = `{"id":"0193b1f0-7c55-7b5e-9a55-0a2f4c3b2a10","account":812345,"amount":19.90,"at":"2026-03-29T02:30:00+02:00","payload":{"lines":[{"sku":"A-1","n":2},{"sku":"B-2","n":1}],"note":"leave it at the door, thank you very much","ship":{"city":"Kraków","street":"Długa 1"}},"status":"paid","source":"web"}`

func BenchmarkDecodeOrder(b *testing.B) {
	m := mapping(b, "value.id", "value.account", "value.amount", "value.at", "value.payload")
	benchmarkDecode(b, m, order)
}

func BenchmarkDecodeFlight(b *testing.B) {
	benchmarkDecode(b, newMapping(b, sink.MappingConfig{Columns: sink.ByName(flightColumns)}), flight)
}

func benchmarkDecode(b *testing.B, m *sink.Mapping, value string) {
	row := &m.NewRows(1)[0]
	msg := &semel.Message{Value: []byte(value)}
	b.SetBytes(int64(len(value)))
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Decode(msg, row); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigestOrder(b *testing.B) {
	m := mapping(b, "value.id", "value.account", "value.amount", "value.at", "value.payload")
	row := decode(b, m, order)
	b.ReportAllocs()
	for b.Loop() {
		row.Digest()
	}
}

func BenchmarkEncodingJSONOrder(b *testing.B) {
	b.SetBytes(int64(len(order)))
	b.ReportAllocs()
	for b.Loop() {
		var v struct {
			ID      string          `json:"id"`
			Account json.Number     `json:"account"`
			Amount  json.Number     `json:"amount"`
			At      string          `json:"at"`
			Payload json.RawMessage `json:"payload"`
		}
		if err := json.Unmarshal([]byte(order), &v); err != nil {
			b.Fatal(err)
		}
	}
}
