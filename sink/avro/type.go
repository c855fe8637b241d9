package avro

import "github.com/semelhq/semel/sink"

// Type is what the schema says of the values that it stands for.
func (s *Schema) Type() *sink.Type { return s.typ }

// TypeOf implements [sink.Typed]: all data is by this schema.
func (s *Schema) TypeOf([]byte) *sink.Type { return s.typ }

var _ sink.Typed = (*Schema)(nil)

// types gives each node one type, so that schemas may contain themselves.
type types map[*node]*sink.Type

var kinds = map[kind]sink.TypeKind{
	kindBoolean: sink.TypeBool, kindInt: sink.TypeInt32, kindLong: sink.TypeInt64, kindFloat: sink.TypeFloat32, kindDouble: sink.TypeFloat64,
	kindString: sink.TypeText, kindBytes: sink.TypeBytes, kindFixed: sink.TypeBytes, kindEnum: sink.TypeText,
}

var meanings = map[meaning]sink.TypeKind{
	decimal: sink.TypeDecimal, uuid: sink.TypeUUID, duration: sink.TypeInterval, date: sink.TypeDate, clock: sink.TypeClock, instant: sink.TypeInstant,
	local: sink.TypeLocal, scaled: sink.TypeDecimal, document: sink.TypeDocument, bits: sink.TypeBits, span: sink.TypeInterval,
	point: sink.TypeText, textUUID: sink.TypeUUID, textInstant: sink.TypeInstant, textClock: sink.TypeZonedClock,
}

func (ts types) of(n *node) *sink.Type {
	if t := ts[n]; t != nil {
		return t
	}
	if n.kind == kindUnion {
		t := ts.union(n)
		ts[n] = t
		return t
	}
	t := &sink.Type{Kind: kinds[n.kind]}
	ts[n] = t
	switch {
	case n.meaning != plain:
		t.Kind = meanings[n.meaning]
		switch n.meaning {
		case decimal:
			t.Precision, t.Scale = n.precision, n.scale
		case bits:
			t.Precision = max(0, n.size)
		case span:
			if n.per > 1e6 { // finer than intervals are
				t.Kind = sink.TypeText
			}
		}
	case n.kind == kindArray:
		t.Kind, t.Elem = sink.TypeArray, ts.of(n.items)
	case n.kind == kindMap:
		t.Kind, t.Elem = sink.TypeMap, ts.of(n.items)
	case n.kind == kindRecord:
		t.Kind = sink.TypeRecord
		for _, f := range n.fields {
			t.Fields = append(t.Fields, sink.Field{Name: f.name, Type: ts.of(f.of)})
		}
	}
	return t
}

// union is the type of the only branch that isn't null; of several it is any value.
func (ts types) union(n *node) *sink.Type {
	var one *node
	for _, b := range n.of {
		switch {
		case b.kind == kindNull:
		case one != nil:
			return &sink.Type{}
		default:
			one = b
		}
	}
	if one == nil {
		return &sink.Type{}
	}
	return ts.of(one)
}
