package sink

import (
	"strconv"

	"github.com/semelhq/semel"
)

// connectKinds are the kinds of values whose name says more than their form, as they
// are once they were converted.
var connectKinds = map[connectKind]TypeKind{
	connectDecimal: TypeDecimal, connectVariable: TypeDecimal, connectDays: TypeDate, connectStamp: TypeLocal, connectClock: TypeClock,
	connectDuration: TypeInterval, connectBits: TypeBits, connectJSON: TypeDocument, connectPoint: TypeText,
}

// connectTexts are the names of texts that are written as they are.
var connectTexts = map[string]TypeKind{
	"io.debezium.time.ZonedTimestamp": TypeInstant, "io.debezium.time.ZonedTime": TypeZonedClock, "io.debezium.time.Interval": TypeInterval,
	"io.debezium.time.IsoDate": TypeDate, "io.debezium.time.IsoTime": TypeClock, "io.debezium.time.IsoTimestamp": TypeLocal,
	"io.debezium.data.Uuid": TypeUUID,
}

var connectForms = map[string]TypeKind{
	"boolean": TypeBool, "int8": TypeInt16, "int16": TypeInt16, "int32": TypeInt32, "int64": TypeInt64,
	"float": TypeFloat32, "double": TypeFloat64, "string": TypeText, "bytes": TypeBytes,
}

// typ is what the schema says of values as expressions see them. Of a map whose keys
// are no texts, which is sent as an array of pairs, it says nothing.
func (s *connectSchema) typ() *Type {
	t := &Type{Kind: connectForms[s.Type]}
	parameter := func(name string) int {
		n, _ := strconv.Atoi(s.Parameters[name])
		return n
	}
	known, ok := connectNames[s.Name]
	switch {
	case s.Type == "string" && connectTexts[s.Name] != TypeAny:
		t.Kind = connectTexts[s.Name]
	case ok && connectKinds[known.kind] != TypeAny:
		switch t.Kind = connectKinds[known.kind]; known.kind {
		case connectDecimal:
			t.Precision, t.Scale = parameter("connect.decimal.precision"), parameter("scale")
		case connectBits:
			t.Precision = parameter("length")
		}
	case s.Type == "struct":
		t.Kind = TypeRecord
		for i := range s.Fields {
			t.Fields = append(t.Fields, Field{Name: s.Fields[i].Field, Type: s.Fields[i].typ()})
		}
	case s.Type == "array" && s.Items != nil:
		t.Kind, t.Elem = TypeArray, s.Items.typ()
	case s.Type == "map" && s.Values != nil && s.Keys != nil && s.Keys.Type == "string":
		t.Kind, t.Elem = TypeMap, s.Values.typ()
	}
	return t
}

// Types are what the schemas say that a change event and its key bring with them; ok
// is false where the event brings none.
func (d *Debezium) Types(m *semel.Message) (t Types, ok bool) {
	s := d.scratch.Get().(*debeziumScratch)
	defer d.scratch.Put(s)
	clear(s.slots[:])
	defer clear(s.slots[:])
	if m.Value == nil || s.event.scan(m.Value, debeziumEvent, s.slots[:], true) != nil || s.slots[dbzSchema].Kind != Object {
		return t, false
	}
	event, err := d.schemas.of(s.slots[dbzSchema].Raw)
	if err != nil || event == nil {
		return t, false
	}
	t.Envelope, t.Value = event.typ, d.retype(event.typ)
	var parts [2]Value
	if m.Key != nil && s.key.scan(m.Key, debeziumKey, parts[:], true) == nil && parts[0].Kind == Object {
		if key, err := d.schemas.of(parts[0].Raw); err == nil && key != nil {
			t.Key = key.typ
		}
	}
	return t, t.Value != nil
}
