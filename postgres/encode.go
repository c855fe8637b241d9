package postgres

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/sink"
)

// An encoder makes of a message's value what a column takes, exactly, or refuses
// it. It is never asked about null. What it has appended of a refused value is
// worth nothing.
type encoder interface {
	// binary appends the type's binary form, without its length.
	binary(dst []byte, v sink.Value) ([]byte, error)
	// text appends what the type's input function reads.
	text(dst []byte, v sink.Value) ([]byte, error)
}

// Reasons to refuse a value. They are values, so that the good path allocates
// nothing and the bad one little.
var (
	errEncodeBool      = errors.New("not true or false")
	errEncodeUUID      = errors.New("not a UUID")
	errEncodeNUL       = errors.New("text with U+0000, which PostgreSQL can't hold")
	errEncodeSurrogate = errors.New("half of a surrogate pair, which is no character")
	errEncodeUTF8      = errors.New("bytes that are not valid UTF-8")
	errEncodeSpaces    = errors.New("too long, and PostgreSQL would cut the spaces at its end silently")
	errEncodeName      = errors.New("longer than the 63 bytes of a name")
	errEncodeBytea     = errors.New(`not bytes: base64 with padding, or \x and hexadecimal digits`)
	errEncodeArray     = errors.New("not a JSON array")
	errEncodeHstore    = errors.New("not an object of texts: hstore holds nothing below them")
	errEncodeNoUnit    = errors.New("a number into an interval column: it names no unit")
	errEncodeShape     = errors.New("arrays of different lengths side by side")
	errEncodePlain     = errors.New("not in its plain form; two spellings of a key would be one row")
	errEncodeFloat     = errors.New("out of the range of the column's type")
	errEncodeRounded   = errors.New("more digits than the column keeps: it would be rounded")
	errEncodeDigits    = errors.New("more digits than the column's type has")
)

// encodeConfig is what a route says about values.
type encodeConfig struct {
	times encodeTimes
	strip bool // on_nul: strip
}

// newEncoder picks the encoder of a column; fast says that the binary form is
// known. If it is not, the whole table is written in text form, in which the
// server reads any type.
func newEncoder(c *introspectColumn, cfg encodeConfig) (enc encoder, fast bool) {
	if c.elem != 0 {
		elem := &introspectColumn{name: c.name, oid: c.elem, mod: c.mod, typtype: c.elemType, attributes: c.attributes, bounds: c.bounds}
		inner, ok := newEncoder(elem, cfg)
		// The array says its element's type by number: one that isn't the same in
		// every database would be wrong after a restore.
		return encodeArray{inner, c.elem}, ok && c.elemType == "b" && introspectBuiltin(c.elem)
	}
	if c.typtype == "e" {
		return encodeText{strip: cfg.strip}, true // enum_recv reads the label
	}
	if c.typtype == "c" {
		return newEncodeComposite(c.attributes, cfg), false
	}
	if enc := newEncodeServer(c, cfg); enc != nil {
		return enc, false
	}
	switch c.oid {
	case pgtype.Int2OID:
		return encodeInt{2}, true
	case pgtype.Int4OID:
		return encodeInt{4}, true
	case pgtype.Int8OID:
		return encodeInt{8}, true
	case pgtype.Float4OID:
		return encodeFloat{4}, true
	case pgtype.Float8OID:
		return encodeFloat{8}, true
	case pgtype.NumericOID:
		return newEncodeNumeric(c.mod), true
	case pgtype.BoolOID:
		return encodeBool{}, true
	case pgtype.UUIDOID:
		return encodeUUID{}, true
	case pgtype.TextOID:
		return encodeText{strip: cfg.strip}, true
	case pgtype.VarcharOID, pgtype.BPCharOID:
		e := encodeText{strip: cfg.strip}
		if c.mod >= 4 {
			e.runes = int(c.mod - 4)
		}
		return e, true
	case pgtype.NameOID:
		return encodeText{strip: cfg.strip, bytes: 63}, true
	case pgtype.JSONBOID:
		return encodeJSON{b: true, strip: cfg.strip}, true
	case pgtype.JSONOID:
		return encodeJSON{strip: cfg.strip}, true
	case pgtype.ByteaOID:
		return encodeBytea{}, true
	case pgtype.DateOID:
		return encodeDate{cfg.times.of(c)}, true
	case pgtype.TimeOID:
		return encodeClock{cfg.times.of(c)}, true
	case pgtype.TimestampOID:
		return encodeTimestamp{encodeTime: cfg.times.of(c)}, true
	case pgtype.TimestamptzOID:
		return encodeTimestamp{encodeTime: cfg.times.of(c), zoned: true}, true
	case pgtype.BitOID:
		return encodeBit{encodeAny{cfg.strip}}, false
	}
	switch c.typname {
	case "citext":
		return encodeText{strip: cfg.strip}, true // citextrecv is textrecv
	case "hstore":
		return encodeHstore{encodeAny{cfg.strip}}, false
	}
	return encodeAny{cfg.strip}, false
}

// encodeInt takes whole numbers, also from digits in a string.
type encodeInt struct{ size int }

func (e encodeInt) value(v sink.Value) (int64, error) {
	n, err := v.Int64()
	if err != nil {
		return 0, err
	}
	if limit := int64(1) << (8*e.size - 1); e.size < 8 && (n < -limit || n >= limit) {
		return 0, sink.ErrRange
	}
	return n, nil
}

func (e encodeInt) binary(dst []byte, v sink.Value) ([]byte, error) {
	n, err := e.value(v)
	if err != nil {
		return dst, err
	}
	switch e.size {
	case 2:
		return binary.BigEndian.AppendUint16(dst, uint16(n)), nil
	case 4:
		return binary.BigEndian.AppendUint32(dst, uint32(n)), nil
	}
	return binary.BigEndian.AppendUint64(dst, uint64(n)), nil
}

func (e encodeInt) text(dst []byte, v sink.Value) ([]byte, error) {
	n, err := e.value(v)
	return strconv.AppendInt(dst, n, 10), err
}

// encodePlain guards a key that is the memory: "007" and 7 are two messages for
// their sender and one row for the table, so only the number's own spelling is
// taken from strings.
type encodePlain struct{ encodeInt }

func (e encodePlain) check(v sink.Value) error {
	if v.Kind != sink.String && v.Kind != sink.Text {
		return nil
	}
	n, err := e.value(v)
	if err != nil {
		return err
	}
	var buf [24]byte
	if string(strconv.AppendInt(buf[:0], n, 10)) != string(v.Text(nil)) {
		return errEncodePlain
	}
	return nil
}

func (e encodePlain) binary(dst []byte, v sink.Value) ([]byte, error) {
	if err := e.check(v); err != nil {
		return dst, err
	}
	return e.encodeInt.binary(dst, v)
}

func (e encodePlain) text(dst []byte, v sink.Value) ([]byte, error) {
	if err := e.check(v); err != nil {
		return dst, err
	}
	return e.encodeInt.text(dst, v)
}

// encodeFloat rounds to the nearest double, which is what the type means; what
// is too large or would become zero is refused.
type encodeFloat struct{ size int }

func (e encodeFloat) value(v sink.Value) (float64, error) {
	switch v.Kind {
	case sink.Number, sink.String, sink.Text, sink.Int:
	default:
		return 0, sink.ErrNotNumber
	}
	var buf [64]byte
	text := v.Text(buf[:])
	d, ok := sink.ParseDecimal(text)
	if !ok {
		if v.Kind == sink.Number {
			return 0, sink.ErrNotNumber
		}
		switch special, neg := encodeSpecial(text); special {
		case "nan":
			return math.NaN(), nil
		case "inf":
			if neg {
				return math.Inf(-1), nil
			}
			return math.Inf(1), nil
		}
		return 0, sink.ErrNotNumber
	}
	f, err := strconv.ParseFloat(string(text), 8*e.size)
	if err != nil {
		return 0, errEncodeFloat
	}
	if a, b, _ := d.Significant(); f == 0 && len(a)+len(b) > 0 {
		return 0, errEncodeFloat
	}
	return f, nil
}

func (e encodeFloat) binary(dst []byte, v sink.Value) ([]byte, error) {
	f, err := e.value(v)
	if err != nil {
		return dst, err
	}
	if e.size == 4 {
		return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(f))), nil
	}
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(f)), nil
}

func (e encodeFloat) text(dst []byte, v sink.Value) ([]byte, error) {
	f, err := e.value(v)
	switch {
	case err != nil:
		return dst, err
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...), nil
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...), nil
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 8*e.size), nil
}

// encodeSpecial reads NaN and infinities as PostgreSQL spells them, in any case.
func encodeSpecial(text []byte) (what string, negative bool) {
	signed := len(text) > 0 && (text[0] == '-' || text[0] == '+')
	if signed {
		negative, text = text[0] == '-', text[1:]
	}
	switch {
	case encodeFold(text, "infinity"), encodeFold(text, "inf"):
		return "inf", negative
	case !signed && string(text) == "POSITIVE_INFINITY": // Debezium's
		return "inf", false
	case !signed && string(text) == "NEGATIVE_INFINITY":
		return "inf", true
	case !signed && encodeFold(text, "nan"):
		return "nan", false
	}
	return "", false
}

// encodeFold compares with a word in lower case.
func encodeFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if c|0x20 != word[i] {
			return false
		}
	}
	return true
}

// encodeBool takes true and false, also as words: a header has nothing else.
type encodeBool struct{}

func (encodeBool) value(v sink.Value) (bool, error) {
	switch v.Kind {
	case sink.Bool:
		return v.Bool(), nil
	case sink.String, sink.Text:
		var buf [8]byte
		switch string(v.Text(buf[:])) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, errEncodeBool
}

func (e encodeBool) binary(dst []byte, v sink.Value) ([]byte, error) {
	b, err := e.value(v)
	if b {
		return append(dst, 1), err
	}
	return append(dst, 0), err
}

func (e encodeBool) text(dst []byte, v sink.Value) ([]byte, error) {
	b, err := e.value(v)
	return strconv.AppendBool(dst, b), err
}

// encodeUUID takes the 32 digits with or without hyphens, in braces or not.
type encodeUUID struct{}

func (encodeUUID) value(v sink.Value) (id [16]byte, err error) {
	if v.Kind != sink.String && v.Kind != sink.Text {
		return id, errEncodeUUID
	}
	var buf [64]byte
	b := v.Text(buf[:])
	if len(b) > 2 && b[0] == '{' && b[len(b)-1] == '}' {
		b = b[1 : len(b)-1]
	}
	for i := range id {
		if len(b) < 2 {
			return id, errEncodeUUID
		}
		hi, lo := encodeHex(b[0]), encodeHex(b[1])
		if hi > 15 || lo > 15 {
			return id, errEncodeUUID
		}
		id[i] = hi<<4 | lo
		b = b[2:]
		if i%2 == 1 && i < 15 && len(b) > 0 && b[0] == '-' {
			b = b[1:]
		}
	}
	if len(b) > 0 {
		return id, errEncodeUUID
	}
	return id, nil
}

func (e encodeUUID) binary(dst []byte, v sink.Value) ([]byte, error) {
	id, err := e.value(v)
	return append(dst, id[:]...), err
}

func (e encodeUUID) text(dst []byte, v sink.Value) ([]byte, error) {
	id, err := e.value(v)
	return fmt.Appendf(dst, "%x", id), err
}

// encodeHex is above 15 for what is no digit.
func encodeHex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 255
}

// encodeText takes everything: the content of a string, the literal of a number,
// the JSON text of a document.
type encodeText struct {
	strip bool
	runes int // of a varchar(n) or char(n); 0 without end
	bytes int // of a name
}

func (e encodeText) text(dst []byte, v sink.Value) ([]byte, error) { return e.binary(dst, v) }

func (e encodeText) binary(dst []byte, v sink.Value) ([]byte, error) {
	from := len(dst)
	switch v.Kind {
	case sink.String, sink.Text:
		if v.HasNUL() || v.HasLoneSurrogate() {
			if !e.strip {
				return dst, encodeNoText(v)
			}
			v = v.Stripped()
		}
	case sink.Bytes:
		if !utf8.Valid(v.Raw) {
			return dst, errEncodeUTF8
		}
		for _, c := range v.Raw {
			if c == 0 && e.strip {
				continue
			}
			if c == 0 {
				return dst, errEncodeNUL
			}
			dst = append(dst, c)
		}
		return dst, e.fits(dst[from:])
	}
	dst = v.AppendText(dst)
	return dst, e.fits(dst[from:])
}

// fits refuses what would be cut silently. What the server refuses by itself is
// left to it: its error has a code.
func (e encodeText) fits(b []byte) error {
	if e.bytes > 0 && len(b) > e.bytes {
		return errEncodeName
	}
	if e.runes == 0 || len(b) <= e.runes || b[len(b)-1] != ' ' {
		return nil
	}
	if utf8.RuneCount(b) > e.runes {
		return errEncodeSpaces
	}
	return nil
}

func encodeNoText(v sink.Value) error {
	if v.HasNUL() {
		return errEncodeNUL
	}
	return errEncodeSurrogate
}

// encodeAny leaves the reading to the type's own input function: enums of other
// kinds, ranges, networks, composites, and whatever an extension brings.
type encodeAny struct{ strip bool }

func (e encodeAny) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeAny) text(dst []byte, v sink.Value) ([]byte, error) {
	return encodeText{strip: e.strip}.binary(dst, v)
}

// encodeBit takes a bit that was sent as true or false.
type encodeBit struct{ encodeAny }

func (e encodeBit) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeBit) text(dst []byte, v sink.Value) ([]byte, error) {
	switch {
	case v.Kind != sink.Bool:
		return e.encodeAny.text(dst, v)
	case v.Bool():
		return append(dst, '1'), nil
	}
	return append(dst, '0'), nil
}

// encodeHstore takes an object of texts, numbers and nulls, also one that was
// sent as a text; and hstore's own form.
type encodeHstore struct{ encodeAny }

func (e encodeHstore) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

func (e encodeHstore) text(dst []byte, v sink.Value) ([]byte, error) {
	if v.Kind == sink.String || v.Kind == sink.Text {
		if text := v.Text(nil); len(text) > 0 && text[0] == '{' && json.Valid(text) {
			v = sink.Value{Kind: sink.Object, Raw: text}
		}
	}
	if v.Kind != sink.Object {
		return e.encodeAny.text(dst, v)
	}
	quoted := func(v sink.Value) (err error) {
		from := len(dst)
		if dst, err = e.encodeAny.text(dst, v); err != nil {
			return err
		}
		text := slices.Clone(dst[from:])
		dst = append(dst[:from], '"')
		for _, c := range text {
			if c == '"' || c == '\\' {
				dst = append(dst, '\\')
			}
			dst = append(dst, c)
		}
		dst = append(dst, '"')
		return nil
	}
	last, n := map[string]int{}, 0 // of a name that comes twice hstore takes the first, all else takes the last
	for name := range v.Members() {
		last[string(name.Text(nil))] = n
		n++
	}
	n, first := 0, true
	for name, value := range v.Members() {
		if n++; last[string(name.Text(nil))] != n-1 {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if err := quoted(name); err != nil {
			return dst, err
		}
		dst = append(dst, "=>"...)
		switch value.Kind {
		case sink.Null:
			dst = append(dst, "NULL"...)
		case sink.Object, sink.Array:
			return dst, errEncodeHstore
		default:
			if err := quoted(value); err != nil {
				return dst, err
			}
		}
	}
	return dst, nil
}

// encodeJSON keeps a document as it was sent; a text that isn't JSON becomes a
// JSON string.
type encodeJSON struct {
	b     bool // jsonb, which can't hold U+0000 and lone surrogates; json is text
	strip bool
}

func (e encodeJSON) binary(dst []byte, v sink.Value) ([]byte, error) {
	if e.b {
		dst = append(dst, 1) // the version of jsonb's binary form
	}
	return e.text(dst, v)
}

func (e encodeJSON) text(dst []byte, v sink.Value) ([]byte, error) {
	if (e.b || v.Kind == sink.Text) && (v.HasNUL() || v.HasLoneSurrogate()) {
		if !e.strip {
			return dst, encodeNoText(v)
		}
		v = v.Stripped()
	}
	switch v.Kind {
	case sink.Text, sink.Time:
		var buf [64]byte
		return encodeQuote(dst, v.Text(buf[:])), nil
	case sink.Int:
		return v.AppendText(dst), nil
	case sink.Bytes:
		return dst, errEncodeUTF8
	}
	return append(dst, v.Raw...), nil
}

// encodeQuote appends valid text as a JSON string.
func encodeQuote(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
