package sink

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
)

// TypeKind is a kind of values of a schema, whatever its format, as they come out
// of the format's decoder.
type TypeKind uint8

const (
	TypeAny TypeKind = iota // any JSON value: the schema says no more
	TypeBool
	TypeInt16
	TypeInt32
	TypeInt64
	TypeFloat32
	TypeFloat64
	TypeDecimal // Precision digits, Scale of them after the point; Precision 0: of any size
	TypeText
	TypeBytes
	TypeUUID
	TypeBits // zeros and ones, at most Precision; 0: any number
	TypeDate
	TypeClock      // a time of day without a zone
	TypeZonedClock // and with one
	TypeLocal      // date and time without a zone
	TypeInstant
	TypeInterval
	TypeDocument // JSON text in a text
	TypeArray    // of Elem
	TypeMap      // of texts to Elem
	TypeRecord   // with Fields
)

var typeNames = [...]string{
	"any value", "boolean", "integer of 16 bits", "integer of 32 bits", "integer of 64 bits", "float", "double", "decimal", "text", "bytes", "UUID", "bits",
	"date", "time of day", "time of day with zone", "time without zone", "instant", "interval", "document", "array", "map", "record",
}

func (k TypeKind) String() string { return typeNames[k] }

// Type is what a schema says of a value. It doesn't change once it is made, may
// contain itself, and is compared by its pointer: a decoder answers the same one
// for the same schema.
type Type struct {
	Kind             TypeKind
	Precision, Scale int
	Elem             *Type
	Fields           []Field
}

// Field is a field of a record.
type Field struct {
	Name string
	Type *Type
}

// Field is the type of a record's field, nil if there is none.
func (t *Type) Field(name string) *Type {
	if t == nil || t.Kind != TypeRecord {
		return nil
	}
	for _, f := range t.Fields {
		if f.Name == name {
			return f.Type
		}
	}
	return nil
}

// String is the type in one word or two, for people.
func (t *Type) String() string {
	switch {
	case t == nil:
		return "unknown"
	case t.Kind == TypeDecimal && t.Precision > 0:
		return fmt.Sprintf("decimal(%d,%d)", t.Precision, t.Scale)
	case t.Kind == TypeArray && t.Elem != nil && t.Elem.Kind < TypeArray:
		return "array of " + t.Elem.String()
	}
	return t.Kind.String()
}

// Typed is a [Decoder] that knows by which schema data was written.
type Typed interface {
	// TypeOf is the type of what AppendJSON makes of data; nil: not known, or the
	// data can't be read.
	TypeOf(data []byte) *Type
}

// retyper is a step that takes the value from inside of what was sent.
type retyper interface {
	retype(t *Type) *Type
}

// ValueType is the type of what expressions see as value, after these steps;
// sent is that of the message as it was sent.
func ValueType(sent *Type, steps []Opener) *Type {
	for _, s := range steps {
		if r, ok := s.(retyper); ok && sent != nil {
			sent = r.retype(sent)
		}
	}
	return sent
}

// Types are what schemas say of the parts of messages; nil: nothing is known.
type Types struct {
	Value    *Type
	Key      *Type // read with KeyJSON
	Envelope *Type // what is around the value
}

var (
	typeText    = &Type{Kind: TypeText}
	typeBytes   = &Type{Kind: TypeBytes}
	typeInstant = &Type{Kind: TypeInstant}
	typeInt32   = &Type{Kind: TypeInt32}
	typeInt64   = &Type{Kind: TypeInt64}
	typeDecimal = &Type{Kind: TypeDecimal}
	typeBool    = &Type{Kind: TypeBool}
)

// Of is the type of what an expression answers. Its error says in a few words why
// that isn't known.
func (ts Types) Of(p Path, key KeyFormat) (*Type, error) {
	switch p.Root {
	case RootValue:
		return ts.Value.at(p)
	case RootEnvelope:
		if p.IsPosition() {
			return typeDecimal, nil
		}
		return ts.Envelope.at(p)
	case RootKey:
		switch {
		case key == KeyRaw:
			return typeBytes, nil
		case key == KeyText:
			return typeText, nil
		}
		return ts.Key.at(p)
	case RootHeaders, RootTopic:
		return typeText, nil
	case RootTimestamp:
		return typeInstant, nil
	case RootPartition:
		return typeInt32, nil
	case RootOffset:
		return typeInt64, nil
	}
	return p.computedType()
}

// at follows a selection. Below what is any value nothing is known.
func (t *Type) at(p Path) (*Type, error) {
	if t == nil {
		return nil, fmt.Errorf("no schema says what %s is", p.Root)
	}
	for i, name := range p.Names {
		place := Path{Root: p.Root, Names: p.Names[:i]}
		switch t.Kind {
		case TypeMap:
			t = t.Elem
		case TypeRecord:
			next := t.Field(name)
			if next == nil {
				return nil, fmt.Errorf("the schema has no field %q in %s", name, place)
			}
			t = next
		default:
			return nil, fmt.Errorf("by the schema %s is %s, and has no known fields", place, t)
		}
	}
	return t, nil
}

// computedType is the type of what is computed, where each answer has it exactly.
// Numbers have none: they may have gone through a double.
func (p Path) computedType() (*Type, error) {
	if p.computed == nil {
		return nil, fmt.Errorf("no expression")
	}
	for _, k := range []struct {
		is *cel.Type
		of *Type
	}{{cel.StringType, typeText}, {cel.BoolType, typeBool}, {cel.BytesType, typeBytes}, {cel.TimestampType, typeInstant}} {
		if p.computed.out.IsExactType(k.is) {
			return k.of, nil
		}
	}
	return nil, fmt.Errorf("%s computes %s, which is no one type of column", p, strings.ReplaceAll(p.computed.out.String(), "dyn", "a value of any type"))
}
