package exact_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel/sink/internal/exact"
)

func FuzzTextsAreWhatTheyWere(f *testing.F) {
	for _, text := range []string{"", "a\"\\\n\x00é\u2028", "\xff", "\U0001F600", "\x7f\x1f"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := exact.String(nil, text)
		if (err == nil) != utf8.Valid(text) {
			t.Fatalf("%q: %v", text, err)
		}
		var back string
		if err == nil && (json.Unmarshal(got, &back) != nil || back != string(text)) {
			t.Fatalf("%q became %s", text, got)
		}
	})
}

func FuzzDecimalsAreTheirNumber(f *testing.F) {
	f.Add([]byte{0}, 0)
	f.Add([]byte{0xff, 1, 2, 3, 4, 5, 6, 7, 8}, 5)
	f.Add([]byte{0x80}, -3)
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 18)
	f.Fuzz(func(t *testing.T, unscaled []byte, scale int) {
		if scale > 1000 || scale < -1000 {
			scale %= 1000
		}
		got, err := exact.Decimal(nil, unscaled, scale)
		if err != nil {
			if len(unscaled) > 0 && len(unscaled) <= 64<<10 {
				t.Fatal(err)
			}
			return
		}
		n := new(big.Int).SetBytes(unscaled)
		if unscaled[0] >= 0x80 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(unscaled))))
		}
		want := new(big.Rat).SetInt(n)
		ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil)
		if scale >= 0 {
			want.Quo(want, new(big.Rat).SetInt(ten))
		} else {
			want.Mul(want, new(big.Rat).SetInt(ten))
		}
		is, ok := new(big.Rat).SetString(string(got))
		if !ok || !json.Valid(got) || is.Cmp(want) != 0 {
			t.Fatalf("%x by %d is %s", unscaled, scale, got)
		}
	})
}

func FuzzFloatsAreTheSame(f *testing.F) {
	for _, n := range []float64{0, math.Copysign(0, -1), 0.1, 1e21, 1e-7, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(-1)} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n float64) {
		for _, size := range []int{32, 64} {
			if size == 32 {
				n = float64(float32(n))
			}
			got := exact.Float(nil, n, size)
			text := string(got)
			if text[0] == '"' {
				text = text[1 : len(text)-1]
			}
			back, err := strconv.ParseFloat(text, size)
			if err != nil || !json.Valid(got) || math.Float64bits(back) != math.Float64bits(n) && !(math.IsNaN(back) && math.IsNaN(n)) {
				t.Fatalf("%v became %s", n, got)
			}
		}
	})
}

func FuzzInstantsAreTheSame(f *testing.F) {
	for _, n := range []int64{0, -1, 1774749599123456, math.MinInt64, math.MaxInt64, -62135596800000000} {
		f.Add(n, uint8(1))
	}
	f.Fuzz(func(t *testing.T, n int64, unit uint8) {
		per := []int64{1e3, 1e6, 1e9}[unit%3]
		got := exact.Instant(nil, n, per, true)
		if !json.Valid(got) {
			t.Fatalf("%d is %s", n, got)
		}
		rest := (n%per + per) % per
		want := time.Unix((n-rest)/per, rest*(1e9/per)).UTC()
		if want.Year() < 1 || want.Year() > 9999 || n < math.MinInt64+per {
			return // more than this parser reads
		}
		is, err := time.Parse(`"2006-01-02T15:04:05.999999999Z"`, string(got))
		if err != nil || !is.Equal(want) {
			t.Fatalf("%d is %s, want %s", n, got, want)
		}
	})
}
