package protobuf

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/semelhq/semel/sink"
)

// Type is what the message type says of its values.
func (m *Message) Type() *sink.Type { return m.typ }

// TypeOf implements [sink.Typed]: all data is of this message type.
func (m *Message) TypeOf([]byte) *sink.Type { return m.typ }

var _ sink.Typed = (*Message)(nil)

// types gives each message one type, so that messages may contain themselves.
type types map[*message]*sink.Type

var kinds = map[protoreflect.Kind]sink.TypeKind{
	protoreflect.BoolKind:  sink.TypeBool,
	protoreflect.Int32Kind: sink.TypeInt32, protoreflect.Sint32Kind: sink.TypeInt32, protoreflect.Sfixed32Kind: sink.TypeInt32,
	protoreflect.Int64Kind: sink.TypeInt64, protoreflect.Sint64Kind: sink.TypeInt64, protoreflect.Sfixed64Kind: sink.TypeInt64,
	protoreflect.Uint32Kind: sink.TypeInt64, protoreflect.Fixed32Kind: sink.TypeInt64,
	protoreflect.FloatKind: sink.TypeFloat32, protoreflect.DoubleKind: sink.TypeFloat64,
	protoreflect.StringKind: sink.TypeText, protoreflect.BytesKind: sink.TypeBytes, protoreflect.EnumKind: sink.TypeText,
}

func (ts types) message(m *message) *sink.Type {
	if t := ts[m]; t != nil {
		return t
	}
	t := &sink.Type{}
	ts[m] = t
	switch m.special {
	case timestamp:
		t.Kind = sink.TypeInstant
	case period: // finer than intervals are
		t.Kind = sink.TypeText
	case decimal:
		t.Kind = sink.TypeDecimal
	case date:
		t.Kind = sink.TypeDate
	case clock:
		t.Kind = sink.TypeClock
	case wrapper:
		*t = *ts.value(&m.fields[0])
	case none:
		t.Kind = sink.TypeRecord
		for i := range m.fields {
			f := &m.fields[i]
			t.Fields = append(t.Fields, sink.Field{Name: f.name, Type: ts.field(f)})
		}
	}
	return t
}

func (ts types) field(f *field) *sink.Type {
	switch {
	case f.entry != nil:
		return &sink.Type{Kind: sink.TypeMap, Elem: ts.value(&f.entry.fields[1])}
	case f.repeated:
		return &sink.Type{Kind: sink.TypeArray, Elem: ts.value(f)}
	}
	return ts.value(f)
}

func (ts types) value(f *field) *sink.Type {
	switch {
	case f.of != nil:
		return ts.message(f.of)
	case f.enum != nil && f.enum.null:
		return &sink.Type{}
	case f.kind == protoreflect.Uint64Kind || f.kind == protoreflect.Fixed64Kind:
		return &sink.Type{Kind: sink.TypeDecimal, Precision: 20}
	}
	return &sink.Type{Kind: kinds[f.kind]}
}
