// Package exact writes values as JSON text that says exactly what they are: what
// a float, a decimal, an instant or bytes become there, and back in a column, is
// the same value or none.
package exact

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"math/big"
	"strconv"
	"time"
	"unicode/utf8"
)

// Reasons why a value can't be written.
var (
	ErrUTF8    = errors.New("text that is not valid UTF-8")
	ErrDecimal = errors.New("a decimal without bytes, or of more than 64 KiB")
	ErrClock   = errors.New("a time of day that no day has")
	ErrLarge   = errors.New("far more JSON text than bytes: not written for us")
	ErrDepth   = errors.New("nested too deeply")
)

// MaxDepth bounds how deep values nest, as readers of the text do.
const MaxDepth = 1000

// Limit bounds the text of a value of n bytes: names and separators of very small
// values, but not what a few bytes can claim to hold.
func Limit(n int) int { return 64<<10 + 256*n }

// String appends text as a JSON string.
func String(dst, text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return dst, ErrUTF8
	}
	if isPlain(text) {
		return append(append(append(dst, '"'), text...), '"'), nil
	}
	return Quote(dst, text), nil
}

// isPlain says that nothing in a text has to be escaped: eight bytes a step, see
// "has less" and "has zero" in Sean Eron Anderson's Bit Twiddling Hacks.
func isPlain(text []byte) bool {
	const ones = 0x0101010101010101
	const high = 0x8080808080808080
	for len(text) >= 8 {
		w := binary.LittleEndian.Uint64(text)
		quote, slash := w^ones*'"', w^ones*'\\'
		if ((w-ones*' ')&^w|(quote-ones)&^quote|(slash-ones)&^slash)&high != 0 {
			return false
		}
		text = text[8:]
	}
	for _, c := range text {
		if c < ' ' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

const digits = "0123456789abcdef"

// Quote appends valid text as a JSON string.
func Quote[T ~[]byte | ~string](dst []byte, text T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		if from = i + 1; c >= ' ' {
			dst = append(dst, '\\', c)
		} else {
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}

// Bytes appends bytes as a string of \x and hexadecimal digits: what PostgreSQL
// writes of bytea, and what nothing else could be meant by.
func Bytes(dst, b []byte) []byte {
	dst = append(dst, `"\\x`...)
	dst = hex.AppendEncode(dst, b)
	return append(dst, '"')
}

// UUID appends 16 bytes in the usual form.
func UUID(dst []byte, id []byte) []byte {
	dst = append(dst, '"')
	for i, at := range [...]int{4, 6, 8, 10, 16} {
		from := [...]int{0, 4, 6, 8, 10}[i]
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[from:at])
	}
	return append(dst, '"')
}

// Float appends the shortest number that is the same float of that many bits;
// what is no number as a string.
func Float(dst []byte, f float64, size int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, size)
}

// maxDecimal is more than the digits of any numeric take.
const maxDecimal = 64 << 10

// Decimal appends the number that the big-endian two's complement is, with so
// many digits after the point, trailing zeros included. A scale below zero is a
// power of ten.
func Decimal(dst, unscaled []byte, scale int) ([]byte, error) {
	if len(unscaled) == 0 || len(unscaled) > maxDecimal || scale > maxDecimal || scale < -maxDecimal {
		return dst, ErrDecimal
	}
	if len(unscaled) <= 8 {
		n := int64(int8(unscaled[0]))
		for _, b := range unscaled[1:] {
			n = n<<8 | int64(b)
		}
		var buf [20]byte
		if n < 0 {
			dst = append(dst, '-')
			return point(dst, strconv.AppendUint(buf[:0], -uint64(n), 10), scale), nil
		}
		return point(dst, strconv.AppendInt(buf[:0], n, 10), scale), nil
	}
	n := new(big.Int).SetBytes(unscaled)
	if unscaled[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(unscaled))))
		dst = append(dst, '-')
		n.Neg(n)
	}
	return point(dst, n.Append(nil, 10), scale), nil
}

// point puts the point into digits.
func point(dst, digits []byte, scale int) []byte {
	switch whole := len(digits) - scale; {
	case scale < 0 && len(digits) == 1 && digits[0] == '0':
		return append(dst, '0')
	case scale < 0:
		dst = append(dst, digits...)
		return strconv.AppendInt(append(dst, 'e'), int64(-scale), 10)
	case scale == 0:
		return append(dst, digits...)
	case whole > 0:
		dst = append(dst, digits[:whole]...)
		return append(append(dst, '.'), digits[whole:]...)
	default:
		dst = append(dst, '0', '.')
		for range -whole {
			dst = append(dst, '0')
		}
		return append(dst, digits...)
	}
}

// Instant appends a time, with Z, or without a zone for one that is only a
// reading of a clock. n counts from 1970; per is how many of it are in a second.
func Instant(dst []byte, n, per int64, zoned bool) []byte {
	seconds := n / per
	rest := n % per
	if rest < 0 {
		rest += per
		seconds--
	}
	return Seconds(dst, seconds, rest*(int64(time.Second)/per), zoned)
}

// Seconds is Instant of seconds and nanoseconds.
func Seconds(dst []byte, seconds, nanos int64, zoned bool) []byte {
	days := seconds / 86400
	of := seconds % 86400
	if of < 0 {
		of += 86400
		days--
	}
	dst = day(append(dst, '"'), days)
	dst = clock(append(dst, 'T'), of, nanos)
	if zoned {
		dst = append(dst, 'Z')
	}
	return append(dst, '"')
}

// Date appends a day, counted from 1970-01-01.
func Date(dst []byte, days int64) []byte {
	return append(day(append(dst, '"'), days), '"')
}

// Clock appends a time of day; 24:00 is one.
func Clock(dst []byte, n, per int64) ([]byte, error) {
	if n < 0 || n > 86400*per {
		return dst, ErrClock
	}
	dst = clock(append(dst, '"'), n/per, n%per*(int64(time.Second)/per))
	return append(dst, '"'), nil
}

// day writes year, month and day of the Gregorian calendar.
func day(dst []byte, days int64) []byte {
	// Whole eras of 400 years are taken out, so that no year is too large for the
	// arithmetic; see Howard Hinnant's civil_from_days.
	z := days + 719468
	era := z / 146097
	if z%146097 < 0 {
		era--
	}
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	year := yoe + era*400
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d := doy - (153*mp+2)/5 + 1
	month := mp + 3
	if month > 12 {
		month -= 12
		year++
	}
	if year < 0 {
		dst = append(dst, '-')
		year = -year
	}
	for limit := int64(1000); limit > max(year, 1) && limit > 1; limit /= 10 {
		dst = append(dst, '0')
	}
	dst = strconv.AppendInt(dst, year, 10)
	dst = two(append(dst, '-'), month)
	return two(append(dst, '-'), d)
}

func two(dst []byte, n int64) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }

// clock writes seconds of a day, and nanoseconds as far as there are any.
func clock(dst []byte, seconds, nanos int64) []byte {
	dst = two(dst, seconds/3600)
	dst = two(append(dst, ':'), seconds/60%60)
	dst = two(append(dst, ':'), seconds%60)
	if nanos == 0 {
		return dst
	}
	var frac [10]byte
	frac[0] = '.'
	for i := 9; i > 0; i-- {
		frac[i] = byte('0' + nanos%10)
		nanos /= 10
	}
	n := 10
	for frac[n-1] == '0' {
		n--
	}
	return append(dst, frac[:n]...)
}
