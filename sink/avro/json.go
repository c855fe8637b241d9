package avro

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/semelhq/semel/sink/internal/exact"
)

// Reasons why bytes are not what the schema says. They name no place: what is
// wrong in binary data shows after it.
var (
	errShort    = errors.New("the data ends inside a value")
	errMore     = errors.New("more data after the value")
	errVarint   = errors.New("a number of more bytes than its type has")
	errInt      = errors.New("an int that is out of range")
	errBoolean  = errors.New("a boolean that is neither 0 nor 1")
	errLength   = errors.New("a negative length, or one beyond the data")
	errBranch   = errors.New("a branch that the union doesn't have")
	errSymbol   = errors.New("a symbol that the enum doesn't have")
	errNoSchema = errors.New("a type that is not read")
)

// reader reads one value.
type reader struct {
	data  []byte
	at    int
	limit int // of the text
	depth int
}

// AppendJSON appends the value that data is, all of it. What it has appended when
// there is an error is worth nothing; the error is about the data.
//
// The header of Avro's single-object encoding is passed over if it names this
// schema.
func (s *Schema) AppendJSON(dst, data []byte) ([]byte, error) {
	body, theirs := s.single(data)
	out, err := s.appendJSON(dst, body)
	if err != nil && theirs {
		err = fmt.Errorf("%w; it may be in single-object encoding by another schema, of fingerprint %x", err, data[2:soeHeader])
	}
	return out, err
}

// soeHeader is a mark of two bytes and the fingerprint of the schema.
const soeHeader = 10

// single takes the header of single-object encoding off; theirs: there may be one,
// of another schema. A value on its own may begin as a header does, but hardly with
// the fingerprint.
func (s *Schema) single(data []byte) (body []byte, theirs bool) {
	if len(data) < soeHeader || data[0] != 0xC3 || data[1] != 1 {
		return data, false
	}
	if [soeHeader - 2]byte(data[2:]) != s.fingerprint {
		return data, true
	}
	return data[soeHeader:], false
}

// AppendFields appends the values of a record's fields, and says where those of the
// names stand; other is how many more there are, below 0 if the schema is no record's.
func (s *Schema) AppendFields(dst, data []byte, names []string, spans [][2]int) (out []byte, other int, err error) {
	p := s.plan(names)
	if p == nil {
		out, err = s.AppendJSON(dst, data)
		return out, -1, err
	}
	body, theirs := s.single(data)
	out, err = s.appendFields(dst, body, p, spans)
	if err != nil && theirs {
		err = fmt.Errorf("%w; it may be in single-object encoding by another schema, of fingerprint %x", err, data[2:soeHeader])
	}
	return out, p.other, err
}

// plan is, for names that somebody asks for, which of them each field of the record
// is; -1: none.
type plan struct {
	names *string // the first of them, as the caller has it
	of    []int
	other int
}

// plan is nil if the schema is no record's.
func (s *Schema) plan(names []string) *plan {
	if s.root.kind != kindRecord || s.root.meaning != plain || len(names) == 0 {
		return nil
	}
	if p := s.last.Load(); p != nil && p.names == &names[0] && len(p.of) == len(s.root.fields) {
		return p
	}
	p := &plan{names: &names[0], of: make([]int, len(s.root.fields))}
	for i, f := range s.root.fields {
		if p.of[i] = slices.Index(names, f.name); f.dropped {
			p.of[i] = -1
		} else if p.of[i] < 0 {
			p.other++
		}
	}
	s.last.Store(p)
	return p
}

func (s *Schema) appendFields(dst, data []byte, p *plan, spans [][2]int) ([]byte, error) {
	r := reader{data: data, limit: len(dst) + exact.Limit(len(data)), depth: 1}
	for i := range s.root.fields {
		from := len(dst)
		var err error
		if dst, err = r.value(dst, s.root.fields[i].of); err != nil {
			return dst, err
		}
		if len(dst) > r.limit {
			return dst, exact.ErrLarge
		}
		if at := p.of[i]; at >= 0 {
			spans[at] = [2]int{from, len(dst)}
		} else {
			dst = dst[:from]
		}
	}
	if r.at != len(data) {
		return dst, errMore
	}
	return dst, nil
}

func (s *Schema) appendJSON(dst, data []byte) ([]byte, error) {
	r := reader{data: data, limit: len(dst) + exact.Limit(len(data))}
	dst, err := r.value(dst, s.root)
	switch {
	case err != nil:
		return dst, err
	case r.at != len(data):
		return dst, errMore
	}
	return dst, nil
}

func (r *reader) value(dst []byte, n *node) ([]byte, error) {
	switch n.kind {
	case kindNull:
		return append(dst, "null"...), nil
	case kindBoolean:
		b, err := r.take(1)
		switch {
		case err != nil:
			return dst, err
		case b[0] > 1:
			return dst, errBoolean
		case b[0] == 1:
			return append(dst, "true"...), nil
		}
		return append(dst, "false"...), nil
	case kindInt:
		v, err := r.int()
		if err != nil {
			return dst, err
		}
		return n.whole(dst, v)
	case kindLong:
		v, err := r.long()
		if err != nil {
			return dst, err
		}
		return n.whole(dst, v)
	case kindFloat:
		b, err := r.take(4)
		if err != nil {
			return dst, err
		}
		return exact.Float(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32), nil
	case kindDouble:
		b, err := r.take(8)
		if err != nil {
			return dst, err
		}
		return exact.Float(dst, math.Float64frombits(binary.LittleEndian.Uint64(b)), 64), nil
	case kindString:
		b, err := r.bytes()
		if err != nil {
			return dst, err
		}
		if n.meaning == document && utf8.Valid(b) && json.Valid(b) {
			return append(dst, bytes.Trim(b, " \t\r\n")...), nil
		}
		return exact.String(dst, b)
	case kindBytes:
		b, err := r.bytes()
		switch {
		case err != nil:
			return dst, err
		case n.meaning == decimal:
			return exact.Decimal(dst, b, n.scale)
		case n.meaning == bits:
			return ones(dst, b, n.size), nil
		}
		return exact.Bytes(dst, b), nil
	case kindFixed:
		b, err := r.take(n.size)
		if err != nil {
			return dst, err
		}
		switch n.meaning {
		case decimal:
			return exact.Decimal(dst, b, n.scale)
		case uuid:
			return exact.UUID(dst, b), nil
		case duration:
			return period(dst, b), nil
		}
		return exact.Bytes(dst, b), nil
	case kindEnum:
		i, err := r.int()
		switch {
		case err != nil:
			return dst, err
		case i < 0 || i >= int64(len(n.symbols)):
			return dst, errSymbol
		}
		return append(dst, n.symbols[i]...), nil
	case kindPreset:
		return append(dst, n.symbols[0]...), nil
	case kindUnion:
		i, err := r.long()
		switch {
		case err != nil:
			return dst, err
		case i < 0 || i >= int64(len(n.of)):
			return dst, errBranch
		}
		return r.value(dst, n.of[i])
	}
	if r.depth++; r.depth > exact.MaxDepth {
		return dst, exact.ErrDepth
	}
	var err error
	switch n.kind {
	case kindRecord:
		dst, err = r.record(dst, n)
	case kindArray:
		dst, err = r.blocks(append(dst, '['), n, ']')
	case kindMap:
		dst, err = r.blocks(append(dst, '{'), n, '}')
	default:
		err = errNoSchema
	}
	r.depth--
	return dst, err
}

func (r *reader) record(dst []byte, n *node) ([]byte, error) {
	switch n.meaning {
	case scaled:
		return r.scaled(dst)
	case point:
		return r.point(dst, n)
	}
	dst = append(dst, '{')
	for i := range n.fields {
		f := &n.fields[i]
		at := len(dst)
		dst = append(dst, f.text...)
		var err error
		if dst, err = r.value(dst, f.of); err != nil {
			return dst, err
		}
		if f.dropped {
			dst = dst[:at]
		}
	}
	if len(dst) > r.limit {
		return dst, exact.ErrLarge
	}
	return append(dst, '}'), nil
}

// scaled reads a decimal that brings its scale.
func (r *reader) scaled(dst []byte) ([]byte, error) {
	scale, err := r.long()
	if err != nil {
		return dst, err
	}
	if int64(int32(scale)) != scale {
		return dst, errInt
	}
	b, err := r.bytes()
	if err != nil {
		return dst, err
	}
	return exact.Decimal(dst, b, int(scale))
}

// point reads coordinates, as PostgreSQL writes them.
func (r *reader) point(dst []byte, n *node) ([]byte, error) {
	dst = append(dst, `"(`...)
	for i := range n.fields {
		at := len(dst)
		var err error
		if dst, err = r.value(dst, n.fields[i].of); err != nil {
			return dst, err
		}
		number := bytes.Trim(dst[at:], `"`) // NaN and infinities are texts
		switch dst = dst[:at]; i {
		case 0:
			dst = append(append(dst, number...), ',')
		case 1:
			dst = append(dst, number...)
		}
	}
	return append(dst, `)"`...), nil
}

// blocks reads the items of an array or the pairs of a map. A count says nothing
// of how many bytes follow: items may take none, so the text is what is bounded.
func (r *reader) blocks(dst []byte, n *node, end byte) ([]byte, error) {
	for first := true; ; {
		count, err := r.long()
		switch {
		case err != nil:
			return dst, err
		case count == 0:
			return append(dst, end), nil
		case count == math.MinInt64:
			return dst, errLength
		case count < 0:
			count = -count
			size, err := r.long() // what a reader could skip
			if err != nil {
				return dst, err
			}
			if size < 0 || size > int64(len(r.data)-r.at) {
				return dst, errLength
			}
		}
		for ; count > 0; count-- {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			if n.kind == kindMap {
				key, err := r.bytes()
				if err != nil {
					return dst, err
				}
				if dst, err = exact.String(dst, key); err != nil {
					return dst, err
				}
				dst = append(dst, ':')
			}
			if dst, err = r.value(dst, n.items); err != nil {
				return dst, err
			}
			if len(dst) > r.limit {
				return dst, exact.ErrLarge
			}
		}
	}
}

// whole writes an int or a long as what it means.
func (n *node) whole(dst []byte, v int64) ([]byte, error) {
	switch n.meaning {
	case date:
		return exact.Date(dst, v), nil
	case clock:
		return exact.Clock(dst, v, n.per)
	case span:
		return seconds(dst, v, n.per), nil
	case local:
		switch {
		case v == infinity, v == infinityMillis && n.per == 1e3:
			return append(dst, `"infinity"`...), nil
		case v == negInfinity, v == negInfinityMillis && n.per == 1e3:
			return append(dst, `"-infinity"`...), nil
		}
		return exact.Instant(dst, v, n.per, false), nil
	case instant:
		return exact.Instant(dst, v, n.per, true), nil
	}
	return strconv.AppendInt(dst, v, 10), nil
}

// What PostgreSQL's driver, and so Debezium, gives for infinity, in microseconds and
// in milliseconds. No other time of a source is near them.
const (
	infinity          = 9223372036825200000
	negInfinity       = -9223372036832400000
	infinityMillis    = infinity / 1000
	negInfinityMillis = negInfinity / 1000
)

// ones writes zeros and ones, the highest first.
func ones(dst, b []byte, length int) []byte {
	if length < 0 {
		length = 8 * len(b)
	}
	dst = append(dst, '"')
	for i := length - 1; i >= 0; i-- {
		bit := byte(0)
		if i < 8*len(b) { // the highest are left out if they are zero
			bit = b[i/8] >> (i % 8) & 1
		}
		dst = append(dst, '0'+bit)
	}
	return append(dst, '"')
}

// seconds writes a time that passes, as intervals are read.
func seconds(dst []byte, v, per int64) []byte {
	dst = append(dst, '"')
	n := uint64(v)
	if v < 0 {
		dst, n = append(dst, '-'), -n
	}
	dst = strconv.AppendUint(dst, n/uint64(per), 10)
	if rest := n % uint64(per); rest > 0 {
		digits := strconv.AppendUint(nil, rest+uint64(per), 10)
		digits[0] = '.'
		dst = append(dst, digits...)
	}
	return append(dst, ` seconds"`...)
}

// period writes months, days and milliseconds as ISO 8601 has them.
func period(dst, b []byte) []byte {
	dst = append(dst, `"P`...)
	dst = strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint32(b)), 10)
	dst = append(dst, 'M')
	dst = strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint32(b[4:])), 10)
	dst = append(dst, "DT"...)
	ms := uint64(binary.LittleEndian.Uint32(b[8:]))
	dst = strconv.AppendUint(dst, ms/1000, 10)
	ms %= 1000
	dst = append(dst, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	return append(dst, `S"`...)
}

func (r *reader) take(n int) ([]byte, error) {
	if n > len(r.data)-r.at {
		return nil, errShort
	}
	b := r.data[r.at : r.at+n]
	r.at += n
	return b, nil
}

func (r *reader) bytes() ([]byte, error) {
	n, err := r.long()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > int64(len(r.data)-r.at) {
		return nil, errLength
	}
	return r.take(int(n))
}

// int reads one of 32 bits, which takes five bytes at most.
func (r *reader) int() (int64, error) {
	from := r.at
	v, err := r.long()
	switch {
	case err != nil:
		return 0, err
	case int64(int32(v)) != v:
		return 0, errInt
	case r.at-from > 5:
		return 0, errVarint
	}
	return v, nil
}

// long reads a number in zigzag form.
func (r *reader) long() (int64, error) {
	if r.at < len(r.data) && r.data[r.at] < 0x80 { // nearly all lengths and branches
		b := r.data[r.at]
		r.at++
		return int64(b>>1) ^ -int64(b&1), nil
	}
	v, n := binary.Uvarint(r.data[r.at:])
	switch {
	case n == 0:
		return 0, errShort
	case n < 0:
		return 0, errVarint
	}
	r.at += n
	return int64(v>>1) ^ -int64(v&1), nil
}
