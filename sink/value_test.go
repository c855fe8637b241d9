package sink_test

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/semelhq/semel/sink"
)

func value(t testing.TB, json string) sink.Value {
	t.Helper()
	row := decode(t, mapping(t, "value.a"), `{"a":`+json+`}`)
	return row.Values[0]
}

func TestIntegersAreExactOrRefused(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]any{
		"0": int64(0), "-0": int64(0), "-0.0": int64(0), "0e99999999999999999999": int64(0),
		"9007199254740993":     int64(9007199254740993),
		"9223372036854775807":  int64(9223372036854775807),
		"-9223372036854775808": int64(-9223372036854775808),
		"9223372036854775808":  sink.ErrRange,
		"-9223372036854775809": sink.ErrRange,
		"10000000000000000000": sink.ErrRange,
		"1e3":                  int64(1000), "12.0": int64(12), "12.50e1": int64(125), "1200e-2": int64(12), "0.12E+2": int64(12),
		"1.5": sink.ErrFraction, "1e-1": sink.ErrFraction, "12.0001": sink.ErrFraction,
		"1e400": sink.ErrRange, "1e99999999999999999999": sink.ErrRange, "1e-99999999999999999999": sink.ErrFraction,
		`"42"`: int64(42), `"-42"`: int64(-42), `"007"`: int64(7), `"\u0034\u0032"`: int64(42),
		`"4 2"`: sink.ErrNotNumber, `""`: sink.ErrNotNumber, `" 42"`: sink.ErrNotNumber, `"-"`: sink.ErrNotNumber,
		"true": sink.ErrNotNumber, "[1]": sink.ErrNotNumber, "null": sink.ErrNotNumber, `"1."`: sink.ErrNotNumber, `"1e"`: sink.ErrNotNumber,
	} {
		n, err := value(t, in).Int64()
		switch want := want.(type) {
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%s: %d, %v, want %v", in, n, err, want)
			}
		case int64:
			if err != nil || n != want {
				t.Errorf("%s: %d, %v, want %d", in, n, err, want)
			}
		}
	}
}

func FuzzIntegersAgreeWithBigRationals(f *testing.F) {
	for _, s := range []string{"1e3", "-12.0", "1.5", "00012.500e1", "9223372036854775808", "0.0e5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if strings.ContainsAny(in, "_xXbBoOpP/") {
			return
		}
		d, ok := sink.ParseDecimal([]byte(in))
		if !ok || d.Exponent > 1000 || d.Exponent < -1000 || len(in) > 1000 {
			return
		}
		r, ok := new(big.Rat).SetString(in)
		if !ok {
			t.Fatalf("%q is no number", in)
		}
		n, err := d.Int64()
		switch {
		case !r.IsInt():
			if !errors.Is(err, sink.ErrFraction) {
				t.Fatalf("%q: %d, %v", in, n, err)
			}
		case !r.Num().IsInt64():
			if !errors.Is(err, sink.ErrRange) {
				t.Fatalf("%q: %d, %v", in, n, err)
			}
		case err != nil || r.Num().Int64() != n:
			t.Fatalf("%q: %d, %v", in, n, err)
		}
	})
}

func TestTextIsTheContent(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"plain"`: "plain", `""`: "", `"null"`: "null", "null": "", "123": "123", "1.10": "1.10", "true": "true",
		`{"a": 1}`:               `{"a": 1}`,
		`"\ud83d\ude00 \u00e9"`:  "😀 é",
		`"\\u0000"`:              `\u0000`,
		`"\"\\\/\b\f\n\r\t"`:     "\"\\/\b\f\n\r\t",
		`"\ud83d\u0041\udc00 x"`: "\uFFFDA\uFFFD x",
		`"\u0000"`:               "\x00",
		`"Здравствуй, \u043c\u0438\u0440"`: "Здравствуй, мир",
	} {
		v := value(t, in)
		if got := string(v.Text(nil)); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
		if got := string(v.AppendText([]byte("x"))); got != "x"+want {
			t.Errorf("%s: appended %q", in, got)
		}
	}
}

func TestNULIsFoundAndStripped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in        string
		nul, lone bool
		stripped  string
	}{
		{`"A\u0000da"`, true, false, `"Ada"`},
		{`"\\u0000"`, false, false, `"\\u0000"`},
		{`"\\\u0000"`, true, false, `"\\"`},
		{`{"a\u0000":["x\u0000y",1]}`, true, false, `{"a":["xy",1]}`},
		{`"\ud83d"`, false, true, `""`},
		{`"\ud83d\ud83d\ude00"`, false, true, `"\ud83d\ude00"`},
		{`"\udc00\u0000x"`, true, true, `"x"`},
		{`[{"k":"\udbff\\u0000"}]`, false, true, `[{"k":"\\u0000"}]`},
		{`"\ud83d\u00"`, false, false, ""},
	} {
		if c.stripped == "" {
			continue // not JSON
		}
		v := value(t, c.in)
		if v.HasNUL() != c.nul || v.HasLoneSurrogate() != c.lone {
			t.Errorf("%s: NUL %v, lone surrogate %v", c.in, v.HasNUL(), v.HasLoneSurrogate())
		}
		s := v.Stripped()
		if string(s.Raw) != c.stripped || s.HasNUL() || s.HasLoneSurrogate() {
			t.Errorf("%s: stripped to %s", c.in, s.Raw)
		}
	}
	if s := sink.TextValue([]byte("a\x00b")).Stripped(); string(s.Raw) != "ab" {
		t.Errorf("text stripped to %q", s.Raw)
	}
}
