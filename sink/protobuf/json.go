package protobuf

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/semelhq/semel/sink/internal/exact"
)

// Reasons why bytes are no message.
var (
	errWire  = errors.New("not Protobuf's binary form, or cut short")
	errNanos = errors.New("a Timestamp or Duration with nanoseconds that don't go with its seconds")
)

// A reader notes what stands where in a message, and then writes its fields in
// the order of the schema: in the data they may come in any order, a list in
// pieces, and a field twice, where the last one counts.
type reader struct {
	slots   []slot // a stretch for each message that is open
	entries []entry
	most    int // that entries have been
	limit   int // of the text
	depth   int
}

// slot is what there is of a field: a chain of entries.
type slot struct{ first, last int32 }

var unset = slot{-1, -1}

// entry is one occurrence of a field.
type entry struct {
	n      uint64 // of a number
	b      []byte // of anything else
	packed bool
	next   int32
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// keep bounds the memory that stays for the next message.
const keep = 1 << 12

// AppendJSON appends the message that data is. What it has appended when there is
// an error is worth nothing; the error is about the data.
func (m *Message) AppendJSON(dst, data []byte) ([]byte, error) {
	r := readers.Get().(*reader)
	r.limit, r.depth = len(dst)+exact.Limit(len(data)), 0
	dst, err := r.message(dst, m.of, data)
	r.done()
	return dst, err
}

// done gives the reader back.
func (r *reader) done() {
	clear(r.entries[:r.most]) // hold none of the data
	r.slots, r.entries, r.most = r.slots[:0], r.entries[:0], 0
	if cap(r.slots)+cap(r.entries) <= keep {
		readers.Put(r)
	}
}

// AppendFields appends the values of the message's fields, and says where those of
// the names stand; other is how many more there are, below 0 if the message stands for
// something else than its fields.
func (m *Message) AppendFields(dst, data []byte, names []string, spans [][2]int) (out []byte, other int, err error) {
	p := m.plan(names)
	if p == nil {
		out, err = m.AppendJSON(dst, data)
		return out, -1, err
	}
	r := readers.Get().(*reader)
	r.limit, r.depth = len(dst)+exact.Limit(len(data)), 1
	if err = r.scan(m.of, data); err == nil {
		dst, other, err = r.located(dst, m.of, p, spans)
	}
	r.done()
	return dst, other, err
}

// plan is, for names that somebody asks for, which of them each field is; -1: none.
type plan struct {
	names *string // the first of them, as the caller has it
	of    []int
}

func (m *Message) plan(names []string) *plan {
	if m.of.special != none || len(names) == 0 {
		return nil
	}
	if p := m.last.Load(); p != nil && p.names == &names[0] {
		return p
	}
	p := &plan{names: &names[0], of: make([]int, len(m.of.fields))}
	for i := range m.of.fields {
		p.of[i] = slices.Index(names, m.of.fields[i].name)
	}
	m.last.Store(p)
	return p
}

// located writes what object does, without names.
func (r *reader) located(dst []byte, m *message, p *plan, spans [][2]int) (_ []byte, other int, err error) {
	for i := range m.fields {
		f, s := &m.fields[i], r.slots[i]
		if s.first < 0 && f.zero == nil {
			continue
		}
		from := len(dst)
		if dst, err = r.field(dst, f, s); err != nil {
			return dst, other, err
		}
		if len(dst) > r.limit {
			return dst, other, exact.ErrLarge
		}
		if at := p.of[i]; at >= 0 {
			spans[at] = [2]int{from, len(dst)}
		} else {
			other++
			dst = dst[:from]
		}
	}
	return dst, other, nil
}

// message writes one message.
func (r *reader) message(dst []byte, m *message, data []byte) ([]byte, error) {
	if r.depth++; r.depth > exact.MaxDepth {
		return dst, exact.ErrDepth
	}
	base, mark := len(r.slots), len(r.entries)
	if err := r.scan(m, data); err != nil {
		return dst, err
	}
	dst, err := r.write(dst, m, base)
	r.slots, r.entries = r.slots[:base], r.entries[:mark]
	r.depth--
	if err == nil && len(dst) > r.limit {
		err = exact.ErrLarge
	}
	return dst, err
}

// scan notes the fields of a message, in slots of its own.
func (r *reader) scan(m *message, data []byte) error {
	base := len(r.slots)
	for range m.fields {
		r.slots = append(r.slots, unset)
	}
	for len(data) > 0 {
		number, typ, n := protowire.ConsumeTag(data)
		if n < 0 || number > protowire.MaxValidNumber {
			return errWire
		}
		data = data[n:]
		i := m.find(number)
		if i < 0 || !m.fields[i].reads(typ) { // a field of another version
			if n = protowire.ConsumeFieldValue(number, typ, data); n < 0 {
				return errWire
			}
			data = data[n:]
			continue
		}
		f := &m.fields[i]
		var e entry
		switch typ {
		case protowire.VarintType:
			e.n, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(data)
			e.n = uint64(v)
		case protowire.Fixed64Type:
			e.n, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			e.b, n = protowire.ConsumeBytes(data)
			e.packed = wire(f.kind) != protowire.BytesType
		case protowire.StartGroupType:
			e.b, n = protowire.ConsumeGroup(number, data)
		}
		if n < 0 {
			return errWire
		}
		data = data[n:]
		r.note(m, base, i, e)
	}
	return nil
}

// note adds an entry to a field's.
func (r *reader) note(m *message, base, i int, e entry) {
	f, s := &m.fields[i], &r.slots[base+i]
	e.next = -1
	if f.oneof >= 0 { // setting one takes the others back
		for k := range m.fields {
			if k != i && m.fields[k].oneof == f.oneof {
				r.slots[base+k] = unset
			}
		}
	}
	if s.first >= 0 && !f.repeated && f.of == nil {
		r.entries[s.last] = e
		return
	}
	at := int32(len(r.entries))
	r.entries = append(r.entries, e)
	r.most = max(r.most, len(r.entries))
	if s.first < 0 {
		s.first = at
	} else {
		r.entries[s.last].next = at
	}
	s.last = at
}

// wire is the form in which values of a kind stand in the data.
func wire(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

// reads says whether a field is written so. Lists of numbers are written packed
// or one by one, whatever the schema says.
func (f *field) reads(typ protowire.Type) bool {
	w := wire(f.kind)
	return typ == w || typ == protowire.BytesType && f.repeated && w != protowire.StartGroupType
}

func (r *reader) write(dst []byte, m *message, base int) ([]byte, error) {
	if m.special != none {
		return r.special(dst, m, base)
	}
	return r.object(dst, m, base)
}

func (r *reader) object(dst []byte, m *message, base int) (_ []byte, err error) {
	dst = append(dst, '{')
	start := len(dst)
	for i := range m.fields {
		f, s := &m.fields[i], r.slots[base+i]
		if s.first < 0 && f.zero == nil {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(dst, f.text...)
		if dst, err = r.field(dst, f, s); err != nil {
			return dst, err
		}
		if len(dst) > r.limit {
			return dst, exact.ErrLarge
		}
	}
	return append(dst, '}'), nil
}

// field writes what a field is, or its zero.
func (r *reader) field(dst []byte, f *field, s slot) (_ []byte, err error) {
	switch {
	case s.first < 0:
		return append(dst, f.zero...), nil
	case f.entry != nil:
		dst = append(dst, '{')
		for at := s.first; at >= 0; at = r.entries[at].next {
			if at != s.first {
				dst = append(dst, ',')
			}
			if dst, err = r.pair(dst, f.entry, r.entries[at].b); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case f.repeated:
		dst = append(dst, '[')
		start := len(dst)
		for at := s.first; at >= 0; at = r.entries[at].next {
			e := r.entries[at]
			if e.packed {
				if dst, err = r.packed(dst, start, f, e.b); err != nil {
					return dst, err
				}
				continue
			}
			if len(dst) > start {
				dst = append(dst, ',')
			}
			if dst, err = r.value(dst, f, e); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	case s.first != s.last: // a message in pieces is their sum
		var whole []byte
		for at := s.first; at >= 0; at = r.entries[at].next {
			whole = append(whole, r.entries[at].b...)
		}
		return r.message(dst, f.of, whole)
	}
	return r.value(dst, f, r.entries[s.first])
}

// packed writes the numbers of a list that stand in one piece.
func (r *reader) packed(dst []byte, start int, f *field, b []byte) (_ []byte, err error) {
	for len(b) > 0 {
		var e entry
		n := 0
		switch wire(f.kind) {
		case protowire.VarintType:
			e.n, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			e.n = uint64(v)
		default:
			e.n, n = protowire.ConsumeFixed64(b)
		}
		if n < 0 {
			return dst, errWire
		}
		b = b[n:]
		if len(dst) > start {
			dst = append(dst, ',')
		}
		if dst, err = r.value(dst, f, e); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// value writes one occurrence.
func (r *reader) value(dst []byte, f *field, e entry) ([]byte, error) {
	switch f.kind {
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, e.n != 0), nil
	case protoreflect.EnumKind:
		return f.enum.text(dst, int32(e.n)), nil
	case protoreflect.Int32Kind, protoreflect.Sfixed32Kind:
		return strconv.AppendInt(dst, int64(int32(e.n)), 10), nil
	case protoreflect.Sint32Kind:
		return strconv.AppendInt(dst, int64(int32(protowire.DecodeZigZag(e.n&math.MaxUint32))), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return strconv.AppendUint(dst, uint64(uint32(e.n)), 10), nil
	case protoreflect.Int64Kind, protoreflect.Sfixed64Kind:
		return strconv.AppendInt(dst, int64(e.n), 10), nil
	case protoreflect.Sint64Kind:
		return strconv.AppendInt(dst, protowire.DecodeZigZag(e.n), 10), nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(dst, e.n, 10), nil
	case protoreflect.FloatKind:
		return exact.Float(dst, float64(math.Float32frombits(uint32(e.n))), 32), nil
	case protoreflect.DoubleKind:
		return exact.Float(dst, math.Float64frombits(e.n), 64), nil
	case protoreflect.StringKind:
		return exact.String(dst, e.b)
	case protoreflect.BytesKind:
		return exact.Bytes(dst, e.b), nil
	}
	return r.message(dst, f.of, e.b)
}

// text writes the name of a number, or a number that this schema has no name for.
func (e *enum) text(dst []byte, n int32) []byte {
	if e.null {
		return append(dst, "null"...)
	}
	if name := e.names[n]; name != nil {
		return append(dst, name...)
	}
	return strconv.AppendInt(dst, int64(n), 10)
}

// pair writes an entry of a map.
func (r *reader) pair(dst []byte, m *message, data []byte) (_ []byte, err error) {
	base, mark := len(r.slots), len(r.entries)
	if err := r.scan(m, data); err != nil {
		return dst, err
	}
	key, value := &m.fields[0], &m.fields[1]
	quoted := key.kind == protoreflect.StringKind
	if !quoted {
		dst = append(dst, '"')
	}
	if s := r.slots[base]; s.first < 0 {
		dst = append(dst, key.zeroOf()...)
	} else if dst, err = r.value(dst, key, r.entries[s.first]); err != nil {
		return dst, err
	}
	if !quoted {
		dst = append(dst, '"')
	}
	dst = append(dst, ':')
	switch s := r.slots[base+1]; {
	case s.first >= 0:
		dst, err = r.field(dst, value, s)
	case value.of != nil:
		dst, err = r.message(dst, value.of, nil)
	default:
		dst = append(dst, value.zeroOf()...)
	}
	r.slots, r.entries = r.slots[:base], r.entries[:mark]
	if err == nil && len(dst) > r.limit {
		err = exact.ErrLarge
	}
	return dst, err
}

// number is the whole number of a field, 0 if it isn't there.
func (r *reader) number(at int) int64 {
	if s := r.slots[at]; s.first >= 0 {
		return int64(r.entries[s.first].n)
	}
	return 0
}

// special writes a message that stands for something else than its fields.
func (r *reader) special(dst []byte, m *message, base int) ([]byte, error) {
	switch m.special {
	case timestamp:
		seconds, nanos := r.number(base), int64(int32(r.number(base+1)))
		if nanos < 0 || nanos > 999_999_999 {
			return dst, errNanos
		}
		return exact.Seconds(dst, seconds, nanos, true), nil
	case period:
		return span(dst, r.number(base), int64(int32(r.number(base+1))))
	case wrapper:
		f, s := &m.fields[0], r.slots[base]
		if s.first < 0 {
			return append(dst, f.zeroOf()...), nil
		}
		return r.field(dst, f, s)
	case structure, list:
		return r.field(dst, &m.fields[0], r.slots[base])
	case value:
		for i := range m.fields {
			if s := r.slots[base+i]; s.first >= 0 {
				return r.field(dst, &m.fields[i], s)
			}
		}
		return append(dst, "null"...), nil
	case decimal:
		var b []byte
		if s := r.slots[base]; s.first >= 0 {
			b = r.entries[s.first].b
		}
		return exact.Decimal(dst, b, int(int32(r.number(base+2))))
	case date:
		year, month, day := r.number(base), r.number(base+1), r.number(base+2)
		if year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 || day > 31 {
			return r.object(dst, m, base) // a year or an anniversary
		}
		dst = append(dst, '"')
		dst = strconv.AppendInt(dst, year+10000, 10)
		dst = append(dst[:len(dst)-5], dst[len(dst)-4:]...)
		dst = strconv.AppendInt(append(dst, '-'), month+100, 10)
		dst = append(dst[:len(dst)-3], dst[len(dst)-2:]...)
		dst = strconv.AppendInt(append(dst, '-'), day+100, 10)
		return append(append(dst[:len(dst)-3], dst[len(dst)-2:]...), '"'), nil
	}
	seconds := r.number(base)*3600 + r.number(base+1)*60 + r.number(base+2)
	nanos := int64(int32(r.number(base + 3)))
	if nanos < 0 || nanos > 999_999_999 || seconds < 0 || seconds > 86400 {
		return dst, exact.ErrClock
	}
	return exact.Clock(dst, seconds*1e9+nanos, 1e9)
}

// span writes a Duration as ISO 8601 has it.
func span(dst []byte, seconds, nanos int64) ([]byte, error) {
	if nanos < -999_999_999 || nanos > 999_999_999 || seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return dst, errNanos
	}
	dst = append(dst, `"PT`...)
	if seconds < 0 || nanos < 0 {
		dst = append(dst, '-')
		nanos = -nanos
	}
	s := uint64(seconds)
	if seconds < 0 {
		s = -s
	}
	dst = strconv.AppendUint(dst, s, 10)
	if nanos > 0 {
		digits := strconv.AppendInt(nil, nanos+1_000_000_000, 10)
		digits[0] = '.'
		n := len(digits)
		for digits[n-1] == '0' {
			n--
		}
		dst = append(dst, digits[:n]...)
	}
	return append(dst, `S"`...), nil
}
