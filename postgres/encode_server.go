package postgres

import (
	"bytes"
	"errors"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/sink"
)

// The server reads some types alone, and some of their values as others, without a
// word: a time without a zone by the session's, a fraction rounded, -1 as 4294967295.
// What stands here refuses such values and hands on the others.

var (
	errEncodeChar     = errors.New(`more than the one byte that "char" holds`)
	errEncodeUnsigned = errors.New("negative, and the column's type has no such numbers")
)

// newEncodeServer is nil for other types.
func newEncodeServer(c *introspectColumn, cfg encodeConfig) encoder {
	other := encodeAny{cfg.strip}
	if c.typtype == "r" || c.typtype == "m" {
		times := cfg.times.of(&introspectColumn{name: c.name, mod: -1})
		switch c.bounds {
		case pgtype.DateOID:
			return encodeRange{other, encodeDate{times}}
		case pgtype.TimestampOID:
			return encodeRange{other, encodeTimestamp{encodeTime: times}}
		case pgtype.TimestamptzOID:
			return encodeRange{other, encodeTimestamp{encodeTime: times, zoned: true}}
		}
		return nil
	}
	switch c.oid {
	case pgtype.TimetzOID:
		return encodeClockZone{cfg.times.of(c)}
	case pgtype.IntervalOID:
		e := encodeInterval{other, 6}
		if p := int(c.mod & 0xffff); c.mod >= 0 && p < 6 {
			e.digits = p
		}
		return e
	case encodeMoneyOID:
		return encodeMoney{other}
	case pgtype.QCharOID:
		return encodeChar{other}
	case pgtype.OIDOID, pgtype.XIDOID, pgtype.CIDOID, pgtype.XID8OID:
		return encodeUnsigned{other}
	}
	return nil
}

const encodeMoneyOID = 790

// encodeClockZone takes a time of day with its zone.
type encodeClockZone struct{ encodeTime }

func (e encodeClockZone) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeClockZone) text(dst []byte, v sink.Value) ([]byte, error) {
	switch v.Kind {
	case sink.String, sink.Text:
	case sink.Number, sink.Int:
		return dst, errEncodeEpoch
	default:
		return dst, errEncodeTime
	}
	var buf [64]byte
	text := v.Text(buf[:])
	micros, rest, err := encodeParseClock(text)
	switch {
	case err != nil:
		if _, isDay := encodeParse(text); isDay == nil {
			return dst, errEncodeHasDay
		}
		return dst, err
	case micros%e.step != 0:
		return dst, errEncodeRounded
	case len(rest) > 0:
		_, err = encodeOffset(rest)
		return append(dst, text...), err
	case e.zone == nil || e.zone.String() != "UTC": // that of others depends on the day
		return dst, errEncodeZone
	}
	return append(append(dst, text...), 'Z'), nil
}

// encodeInterval refuses bare numbers, which the server would take for seconds, and
// fractions that it would round.
type encodeInterval struct {
	encodeAny
	digits int // after the point
}

func (e encodeInterval) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeInterval) text(dst []byte, v sink.Value) ([]byte, error) {
	from := len(dst)
	dst, err := e.encodeAny.text(dst, v)
	if err != nil {
		return dst, err
	}
	if _, bare := sink.ParseDecimal(bytes.TrimSpace(dst[from:])); bare {
		return dst, errEncodeNoUnit
	}
	after := -1 // digits since the point
	for _, c := range dst[from:] {
		switch {
		case c == '.' || c == ',':
			after = 0
		case after < 0:
		case c < '0' || c > '9':
			after = -1
		default:
			if after++; after > e.digits && c != '0' {
				return dst, errEncodeRounded
			}
		}
	}
	return dst, nil
}

// encodeMoney refuses fractions of a cent.
type encodeMoney struct{ encodeAny }

func (e encodeMoney) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeMoney) text(dst []byte, v sink.Value) ([]byte, error) {
	from := len(dst)
	dst, err := e.encodeAny.text(dst, v)
	if err != nil {
		return dst, err
	}
	if d, is := sink.ParseDecimal(dst[from:]); is {
		return dst, encodeNumeric{limited: true, precision: encodeNumericWhole, scale: 2}.fits(d)
	}
	return dst, nil
}

// encodeChar is of the type "char", of one byte.
type encodeChar struct{ encodeAny }

func (e encodeChar) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeChar) text(dst []byte, v sink.Value) ([]byte, error) {
	from := len(dst)
	dst, err := e.encodeAny.text(dst, v)
	if err == nil && len(dst)-from > 1 {
		return dst, errEncodeChar
	}
	return dst, err
}

// encodeUnsigned refuses what the server would wrap around.
type encodeUnsigned struct{ encodeAny }

func (e encodeUnsigned) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeUnsigned) text(dst []byte, v sink.Value) ([]byte, error) {
	from := len(dst)
	dst, err := e.encodeAny.text(dst, v)
	if err == nil && bytes.IndexByte(dst[from:], '-') >= 0 {
		return dst, errEncodeUnsigned
	}
	return dst, err
}

// encodeRange reads the bounds of a range of times, or of several, as columns of their
// type would.
type encodeRange struct {
	encodeAny
	bound encoder
}

func (e encodeRange) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeRange) text(dst []byte, v sink.Value) ([]byte, error) {
	if v.Kind != sink.String && v.Kind != sink.Text {
		return e.encodeAny.text(dst, v)
	}
	text := v.Text(nil)
	if encodeFold(bytes.TrimSpace(text), "empty") {
		return append(dst, "empty"...), nil
	}
	for len(text) > 0 {
		if bytes.IndexByte([]byte("[](){}, \t\r\n"), text[0]) >= 0 {
			dst = append(dst, text[0])
			text = text[1:]
			continue
		}
		var bound []byte
		bound, text = encodeBound(text)
		var err error
		dst = append(dst, '"')
		if dst, err = e.bound.text(dst, sink.TextValue(bytes.TrimSpace(bound))); err != nil {
			return dst, err
		}
		dst = append(dst, '"')
	}
	return dst, nil
}

// encodeBound reads one bound, which may be quoted, or a part of it.
func encodeBound(text []byte) (bound, rest []byte) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			bound = append(bound, text[i])
		case c == '"' && quoted && i+1 < len(text) && text[i+1] == '"':
			i++
			bound = append(bound, c)
		case c == '"':
			quoted = !quoted
		case !quoted && bytes.IndexByte([]byte("[](){},"), c) >= 0:
			return bound, text[i:]
		default:
			bound = append(bound, c)
		}
	}
	return bound, nil
}
