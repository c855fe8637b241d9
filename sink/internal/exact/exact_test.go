package exact_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/semelhq/semel/sink/internal/exact"
)

func TestDecimalsHaveTheDigitsOfTheirNumber(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "bytes")
		scale := rapid.IntRange(-20, 60).Draw(t, "scale")
		got, err := exact.Decimal(nil, b, scale)
		if err != nil {
			t.Fatal(err)
		}
		n := new(big.Int).SetBytes(b)
		if b[0] >= 0x80 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		want := new(big.Rat).SetInt(n)
		ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil)
		if scale >= 0 {
			want.Quo(want, new(big.Rat).SetInt(ten))
		} else {
			want.Mul(want, new(big.Rat).SetInt(ten))
		}
		have, ok := new(big.Rat).SetString(string(got))
		if !ok || have.Cmp(want) != 0 {
			t.Fatalf("%x with scale %d is %s, got %s", b, scale, want, got)
		}
		if i := bytes.IndexByte(got, '.'); scale > 0 && len(got)-i-1 != scale {
			t.Fatalf("%s has not %d digits after the point", got, scale)
		}
		if !json.Valid(got) {
			t.Fatalf("%s is no JSON", got)
		}
	})
}

func TestTimesAreThoseOfTheCalendar(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(-62135596800_000_000, 253402300799_999_999).Draw(t, "micros")
		at := time.UnixMicro(n).UTC()
		if got, want := string(exact.Instant(nil, n, 1e6, true)), at.Format(`"2006-01-02T15:04:05.999999999Z"`); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		if got, want := string(exact.Date(nil, int64(math.Floor(float64(at.Unix())/86400)))), at.Format(`"2006-01-02"`); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func TestTimesAtTheirBordersKeepEachDigit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{string(exact.Instant(nil, -1, 1000, true)), `"1969-12-31T23:59:59.999Z"`},
		{string(exact.Instant(nil, -1, 1e9, false)), `"1969-12-31T23:59:59.999999999"`},
		{string(exact.Instant(nil, math.MinInt64, 1e9, true)), `"1677-09-21T00:12:43.145224192Z"`},
		{string(exact.Instant(nil, math.MaxInt64, 1e6, true)), `"294247-01-10T04:00:54.775807Z"`},
		{string(exact.Date(nil, -719162)), `"0001-01-01"`},
		{string(exact.Date(nil, -719163)), `"0000-12-31"`},
		{string(exact.Date(nil, 2932897)), `"10000-01-01"`},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	if got, err := exact.Clock(nil, 86400, 1); string(got) != `"24:00:00"` || err != nil {
		t.Error(string(got), err)
	}
	if _, err := exact.Clock(nil, 86401, 1); err == nil {
		t.Error("a day of more than 24 hours")
	}
}

func TestFloatsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		got := exact.Float(nil, f, 64)
		var back float64
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return
		}
		if err := json.Unmarshal(got, &back); err != nil || back != f {
			t.Fatalf("%v became %s", f, got)
		}
	})
	if got := fmt.Sprintf("%s %s %s", exact.Float(nil, math.NaN(), 64), exact.Float(nil, math.Inf(-1), 64), exact.Float(nil, float64(float32(0.1)), 32)); got != `"NaN" "-Infinity" 0.1` {
		t.Error(got)
	}
}

func TestTextsAreJSONStrings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		got, err := exact.String(nil, []byte(s))
		var back string
		if err != nil || json.Unmarshal(got, &back) != nil || back != s {
			t.Fatalf("%q became %s", s, got)
		}
	})
	if _, err := exact.String(nil, []byte{0xff}); err == nil {
		t.Error("invalid UTF-8 was taken")
	}
}
