package sink

import (
	"errors"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// Kind is what a value is in the message, not what a column makes of it.
type Kind uint8

const (
	// Absent: the message has no such field, header or key.
	Absent Kind = iota
	// Null: the field is there and null; a header or key without a value.
	Null
	// Bool, Number, String, Object and Array are JSON, as it was sent.
	Bool
	Number
	String
	Object
	Array
	// Int is a partition or an offset.
	Int
	// Time is a timestamp, an instant.
	Time
	// Text is a topic, a header, a key with key_format text: valid UTF-8.
	Text
	// Bytes is a key or a value that is bytes.
	Bytes
)

var kinds = []string{"absent", "null", "boolean", "number", "string", "object", "array", "integer", "time", "text", "bytes"}

func (k Kind) String() string { return kinds[k] }

// article is the kind in a sentence.
func (k Kind) article() string {
	switch k {
	case Null:
		return "null"
	case Object, Array, Int:
		return "an " + k.String()
	}
	return "a " + k.String()
}

// Value is one value of a message, exactly as it was sent. Its bytes are those
// of the message: they are valid as long as the message is.
type Value struct {
	Kind  Kind
	flags flags
	// Raw is the JSON token (of a string with its quotes and escapes), or the
	// bytes of a Text or Bytes; nil for other kinds.
	Raw []byte
	n   int64 // Int; of a Time the microseconds since 1970
}

// TextValue and the functions below make values that are no JSON.
func TextValue(text []byte) Value {
	v := Value{Kind: Text, Raw: text}
	for _, c := range text {
		if c == 0 {
			v.flags |= hasNUL
			break
		}
	}
	return v
}

func BytesValue(b []byte) Value   { return Value{Kind: Bytes, Raw: b} }
func IntValue(n int64) Value      { return Value{Kind: Int, n: n} }
func TimeValue(t time.Time) Value { return Value{Kind: Time, n: t.UnixMicro()} }

// IsNull says whether there is no value: absent or null.
func (v Value) IsNull() bool { return v.Kind <= Null }

// IsDocument says whether the value is an object or an array.
func (v Value) IsDocument() bool { return v.Kind == Object || v.Kind == Array }

// HasNUL says whether a string or text holds U+0000, or a document holds it in
// any string or name. PostgreSQL has no place for it in text and jsonb.
func (v Value) HasNUL() bool { return v.flags&hasNUL != 0 }

// HasLoneSurrogate says the same about half of a surrogate pair, which is no
// character.
func (v Value) HasLoneSurrogate() bool { return v.flags&hasLone != 0 }

// HasEscape says whether a string (or any inside a document) is written with
// escapes, so that its content is not simply the bytes between its quotes.
func (v Value) HasEscape() bool { return v.flags&hasEscape != 0 }

// Text is the value as text: the content of a string, the literal of a number,
// the JSON text of a document; empty for null. It is a part of the message where
// that is possible, else it is written to buf[:0]; in both cases the caller must
// not change it. A lone surrogate becomes U+FFFD: ask HasLoneSurrogate first.
func (v Value) Text(buf []byte) []byte {
	switch v.Kind {
	case Absent, Null:
		return nil
	case String:
		if body := v.Raw[1 : len(v.Raw)-1]; v.flags&hasEscape == 0 {
			return body
		}
	case Int, Time:
	default:
		return v.Raw
	}
	return v.AppendText(buf[:0])
}

// AppendText appends what Text gives.
func (v Value) AppendText(dst []byte) []byte {
	switch v.Kind {
	case Absent, Null:
		return dst
	case String:
		body := v.Raw[1 : len(v.Raw)-1]
		if v.flags&hasEscape == 0 {
			return append(dst, body...)
		}
		return appendUnescaped(dst, body)
	case Int:
		return strconv.AppendInt(dst, v.n, 10)
	case Time:
		return v.Time().AppendFormat(dst, time.RFC3339Nano)
	}
	return append(dst, v.Raw...)
}

// Stripped is the value without U+0000 and lone surrogates, as a new value of
// the same kind; the value itself if there are none.
func (v Value) Stripped() Value {
	if v.flags&(hasNUL|hasLone) == 0 {
		return v
	}
	raw := make([]byte, 0, len(v.Raw))
	if v.Kind == Text {
		for _, c := range v.Raw {
			if c != 0 {
				raw = append(raw, c)
			}
		}
	} else {
		raw = stripEscapes(raw, v.Raw)
	}
	v.Raw = raw
	v.flags &^= hasNUL | hasLone
	return v
}

// Bool is the value of a Bool.
func (v Value) Bool() bool { return v.Kind == Bool && v.Raw[0] == 't' }

// Time is the instant of a Time, in UTC.
func (v Value) Time() time.Time { return time.UnixMicro(v.n).UTC() }

// The reasons why a value is no integer.
var (
	ErrNotNumber = errors.New("not a number")
	ErrFraction  = errors.New("has a fraction where a whole number is needed")
	ErrRange     = errors.New("out of range")
)

// Int64 is the value as a whole number, exact or refused: 1e3 and 12.0 are
// whole, 1.5 is not. Digits in a string count; white space and the empty string
// do not.
func (v Value) Int64() (int64, error) {
	switch v.Kind {
	case Int:
		return v.n, nil
	case Number, String, Text:
	default:
		return 0, ErrNotNumber
	}
	var buf [64]byte
	text := v.Text(buf[:])
	if n, ok := plainInt(text); ok {
		return n, nil
	}
	d, ok := ParseDecimal(text)
	if !ok {
		return 0, ErrNotNumber
	}
	return d.Int64()
}

// plainInt is the short way for what nearly all integers look like.
func plainInt(b []byte) (n int64, ok bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}

// Decimal is a number as it was written: its digits and where the point is.
type Decimal struct {
	Negative bool
	// Whole and Fraction are the digits before and after the point, as written,
	// with leading and trailing zeros.
	Whole, Fraction []byte
	// Exponent is the power of ten that was written after e; it is cut at ±2⁵³,
	// far beyond what any column can hold.
	Exponent int64
}

// ParseDecimal reads [+-]digits[.digits][e[+-]digits]: every JSON number, and
// numbers in strings that have leading zeros or a plus. It knows no infinity.
func ParseDecimal(b []byte) (d Decimal, ok bool) {
	i := 0
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		d.Negative = b[i] == '-'
		i++
	}
	from := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	d.Whole = b[from:i]
	if i < len(b) && b[i] == '.' {
		i++
		from = i
		for i < len(b) && isDigit(b[i]) {
			i++
		}
		if d.Fraction = b[from:i]; i == from {
			return d, false
		}
	}
	if len(d.Whole) == 0 {
		return d, false
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		neg := false
		if i < len(b) && (b[i] == '-' || b[i] == '+') {
			neg = b[i] == '-'
			i++
		}
		from = i
		for i < len(b) && isDigit(b[i]) {
			if d.Exponent < 1<<53 {
				d.Exponent = d.Exponent*10 + int64(b[i]-'0')
			}
			i++
		}
		if i == from {
			return d, false
		}
		d.Exponent = min(d.Exponent, 1<<53)
		if neg {
			d.Exponent = -d.Exponent
		}
	}
	return d, i == len(b)
}

// Significant gives the digits without leading and trailing zeros, and the power
// of ten of a point in front of them: 0.0120 is ("12", "", -1). The two stretches
// belong together. Zero has no digits.
func (d Decimal) Significant() (a, b []byte, point int64) {
	a, b = d.Whole, d.Fraction
	point = int64(len(a)) + d.Exponent
	for len(a) > 0 && a[0] == '0' {
		a = a[1:]
		point--
	}
	if len(a) == 0 {
		for len(b) > 0 && b[0] == '0' {
			b = b[1:]
			point--
		}
	}
	for len(b) > 0 && b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	if len(b) == 0 {
		for len(a) > 0 && a[len(a)-1] == '0' {
			a = a[:len(a)-1]
		}
	}
	if len(a)+len(b) == 0 {
		point = 0
	}
	return a, b, point
}

// Int64 is the number if it is whole and fits.
func (d Decimal) Int64() (int64, error) {
	a, b, point := d.Significant()
	digits := len(a) + len(b)
	switch {
	case digits == 0:
		return 0, nil
	case point < int64(digits):
		return 0, ErrFraction
	case point > 19:
		return 0, ErrRange
	}
	var n uint64 // 19 digits fit
	for k := 0; k < int(point); k++ {
		n *= 10
		switch {
		case k < len(a):
			n += uint64(a[k] - '0')
		case k < digits:
			n += uint64(b[k-len(a)] - '0')
		}
	}
	switch {
	case d.Negative && n <= -math.MinInt64:
		return -int64(n), nil
	case !d.Negative && n <= math.MaxInt64:
		return int64(n), nil
	}
	return 0, ErrRange
}

// appendUnescaped appends the content of a JSON string that was checked, given
// without its quotes.
func appendUnescaped(dst, body []byte) []byte {
	for i := 0; i < len(body); {
		c := body[i]
		if c != '\\' {
			from := i
			for i < len(body) && body[i] != '\\' {
				i++
			}
			dst = append(dst, body[from:i]...)
			continue
		}
		switch c = body[i+1]; c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, size := escapedRune(body[i:])
			i += size
			dst = utf8.AppendRune(dst, r) // a lone one, -1, becomes U+FFFD
			continue
		}
		dst = append(dst, c)
		i += 2
	}
	return dst
}

// escapedRune reads the escape \uXXXX at the beginning of b, or a pair of them;
// a lone surrogate gives -1.
func escapedRune(b []byte) (r rune, size int) {
	r, _ = hex4(b, 2)
	switch {
	case r < 0xD800 || r > 0xDFFF:
		return r, 6
	case r < 0xDC00 && len(b) >= 12 && b[6] == '\\' && b[7] == 'u':
		if low, ok := hex4(b, 8); ok && low >= 0xDC00 && low <= 0xDFFF {
			return (r-0xD800)<<10 | (low - 0xDC00) + 0x10000, 12
		}
	}
	return -1, 6
}

// stripEscapes copies checked JSON text without the escapes of U+0000 and of
// lone surrogates.
func stripEscapes(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		if text[i] != '\\' { // backslashes stand only in strings
			dst = append(dst, text[i])
			i++
			continue
		}
		size := 2
		if text[i+1] == 'u' {
			r, n := escapedRune(text[i:])
			size = n
			if r <= 0 {
				i += size
				continue
			}
		}
		dst = append(dst, text[i:i+size]...)
		i += size
	}
	return dst
}
