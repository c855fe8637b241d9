package postgres

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/sink"
)

// holds says whether a column may hold each value of a type as it is. Of types
// that only the server can read it is taken for granted: the server will say.
func (c *introspectColumn) holds(t *sink.Type, cfg TableConfig) bool {
	if t == nil || c.typtype != "b" {
		return true
	}
	if c.elem != 0 {
		if t.Kind != sink.TypeArray || t.Elem == nil {
			return t.Kind == sink.TypeAny || t.Kind == sink.TypeText
		}
		elem := introspectColumn{name: c.name, oid: c.elem, mod: c.mod, typtype: c.elemType}
		return t.Elem.Kind == sink.TypeArray || elem.holds(t.Elem, cfg) // arrays of arrays are of one type
	}
	if t.Kind == sink.TypeAny {
		return true // who knows
	}
	whole := map[sink.TypeKind]int{sink.TypeInt16: 5, sink.TypeInt32: 10, sink.TypeInt64: 19}[t.Kind]
	epoch := cfg.Epoch[c.name] != "" && whole > 0
	switch c.oid {
	case pgtype.Int2OID:
		return t.Kind == sink.TypeInt16
	case pgtype.Int4OID:
		return t.Kind == sink.TypeInt16 || t.Kind == sink.TypeInt32
	case pgtype.Int8OID:
		return whole > 0 || t.Kind == sink.TypeDecimal && t.Scale == 0 && t.Precision > 0 && t.Precision <= 18
	case pgtype.NumericOID:
		return c.holdsDecimal(t, whole)
	case pgtype.Float4OID:
		return t.Kind == sink.TypeFloat32 || t.Kind == sink.TypeInt16
	case pgtype.Float8OID:
		return t.Kind == sink.TypeFloat32 || t.Kind == sink.TypeFloat64 || t.Kind == sink.TypeInt16 || t.Kind == sink.TypeInt32
	case pgtype.BoolOID:
		return t.Kind == sink.TypeBool
	case pgtype.UUIDOID:
		return t.Kind == sink.TypeUUID
	case pgtype.ByteaOID:
		return t.Kind == sink.TypeBytes
	case pgtype.DateOID:
		return t.Kind == sink.TypeDate || epoch
	case pgtype.TimeOID:
		return t.Kind == sink.TypeClock
	case pgtype.TimestampOID:
		return t.Kind == sink.TypeLocal || t.Kind == sink.TypeInstant && cfg.Zone != nil || epoch
	case pgtype.TimestamptzOID:
		return t.Kind == sink.TypeInstant || t.Kind == sink.TypeLocal && cfg.Zone != nil || epoch
	}
	return true
}

// holdsDecimal compares digits before and after the point.
func (c *introspectColumn) holdsDecimal(t *sink.Type, whole int) bool {
	switch t.Kind {
	case sink.TypeInt16, sink.TypeInt32, sink.TypeInt64, sink.TypeDecimal:
	case sink.TypeFloat32, sink.TypeFloat64:
		return c.mod < 0
	default:
		return false
	}
	if c.mod < 0 {
		return true
	}
	precision, scale := int((c.mod-4)>>16&0xffff), int((c.mod-4)&0x7ff)
	if scale >= 1024 { // it is signed
		scale -= 2048
	}
	if t.Kind == sink.TypeDecimal {
		return t.Precision > 0 && t.Scale <= scale && t.Precision-t.Scale <= precision-scale
	}
	return scale >= 0 && whole <= precision-scale
}
