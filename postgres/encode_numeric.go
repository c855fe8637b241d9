package postgres

import (
	"encoding/binary"

	"github.com/semelhq/semel/sink"
)

// Limits of numeric: digits before the point, digits after it.
const (
	encodeNumericWhole    = 131072
	encodeNumericFraction = 16383
)

// encodeNumeric keeps every digit, trailing zeros after the point included.
type encodeNumeric struct {
	limited          bool // numeric(precision, scale)
	precision, scale int
}

func newEncodeNumeric(mod int32) encodeNumeric {
	if mod < 4 {
		return encodeNumeric{}
	}
	mod -= 4
	// The scale is signed in 11 bits.
	return encodeNumeric{true, int(mod >> 16 & 0xffff), int(mod&0x7ff^1024) - 1024}
}

// decimal reads a number, or NaN and the infinities from a text.
func (e encodeNumeric) decimal(v sink.Value, buf []byte) (d sink.Decimal, special string, err error) {
	switch v.Kind {
	case sink.Number, sink.String, sink.Text, sink.Int:
	default:
		return d, "", sink.ErrNotNumber
	}
	text := v.Text(buf)
	d, ok := sink.ParseDecimal(text)
	if ok {
		return d, "", e.fits(d)
	}
	what, negative := encodeSpecial(text)
	switch {
	case what == "nan":
		return d, "NaN", nil
	case what == "inf" && e.limited:
		return d, "", sink.ErrRange
	case what == "inf" && negative:
		return d, "-Infinity", nil
	case what == "inf":
		return d, "Infinity", nil
	}
	return d, "", sink.ErrNotNumber
}

func (e encodeNumeric) fits(d sink.Decimal) error {
	a, b, point := d.Significant()
	digits := int64(len(a) + len(b))
	if point > encodeNumericWhole || encodeScale(d) > encodeNumericFraction {
		return errEncodeDigits
	}
	if !e.limited || digits == 0 {
		return nil
	}
	if digits-point > int64(e.scale) {
		return errEncodeRounded
	}
	if point > int64(e.precision-e.scale) {
		return sink.ErrRange
	}
	return nil
}

// encodeScale is the number of digits after the point, as written.
func encodeScale(d sink.Decimal) int64 { return max(0, int64(len(d.Fraction))-d.Exponent) }

func (e encodeNumeric) text(dst []byte, v sink.Value) ([]byte, error) {
	var buf [64]byte
	_, special, err := e.decimal(v, buf[:])
	switch {
	case err != nil:
		return dst, err
	case special != "":
		return append(dst, special...), nil
	}
	return v.AppendText(dst), nil
}

// binary: the number of digits of base 10000, the weight of the first, the sign,
// the digits after the point to show; then the digits.
func (e encodeNumeric) binary(dst []byte, v sink.Value) ([]byte, error) {
	var buf [64]byte
	d, special, err := e.decimal(v, buf[:])
	if err != nil {
		return dst, err
	}
	switch special {
	case "NaN":
		return append(dst, 0, 0, 0, 0, 0xC0, 0, 0, 0), nil
	case "Infinity":
		return append(dst, 0, 0, 0, 0, 0xD0, 0, 0, 0), nil
	case "-Infinity":
		return append(dst, 0, 0, 0, 0, 0xF0, 0, 0, 0), nil
	}
	a, b, point := d.Significant()
	if len(a)+len(b) == 0 {
		dst = append(dst, 0, 0, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint16(dst, uint16(encodeScale(d))), nil
	}
	weight := (point+3)>>2 - 1 // floor((point-1)/4)
	first := int(point - 4*weight)
	groups := 1 + (max(0, len(a)+len(b)-first)+3)/4
	sign := uint16(0)
	if d.Negative {
		sign = 0x4000
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(groups))
	dst = binary.BigEndian.AppendUint16(dst, uint16(weight))
	dst = binary.BigEndian.AppendUint16(dst, sign)
	dst = binary.BigEndian.AppendUint16(dst, uint16(encodeScale(d)))
	group, left := uint16(0), first
	put := func(c byte) {
		group = group*10 + uint16(c-'0')
		if left--; left == 0 {
			dst = binary.BigEndian.AppendUint16(dst, group)
			group, left = 0, 4
		}
	}
	for _, c := range a {
		put(c)
	}
	for _, c := range b {
		put(c)
	}
	for left != 4 { // fill up the last group
		put('0')
	}
	return dst, nil
}
