package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

func tableSame([]byte) {}

// tableFolded are types of which only the server knows what is equal, and how
// equal values come to be equal texts.
var tableFolded = map[string]string{
	"citext": `lower(%s::text COLLATE "default")`, // as its equality does it
	"bpchar": "%s::text",                          // without the spaces at the end
	"inet":   "%s::text", "cidr": "%s::text", "macaddr": "%s::text", "macaddr8": "%s::text", "bit": "%s::text", "varbit": "%s::text", "name": "%s::text",
}

// out is a key column as it is returned.
func (k *tableKeyType) out(name string) string {
	if k.fold == "" {
		return name
	}
	return fmt.Sprintf(k.fold, name)
}

// same compares a column of t with one of u.
func (k *tableKeyType) same(name, with string) string {
	return fmt.Sprintf("t.%s%[3]s = u.%[2]s%[3]s", name, with, k.as)
}

// fold makes equal keys equal bytes where only the server knows which are.
func (w *tableWriter) fold(ctx context.Context, rows []*tableRow) error {
	if !slices.ContainsFunc(w.p.key, func(k tableKey) bool { return k.fold != "" }) {
		return nil
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r *tableRow) bool { return r.key == nil })
	if len(rows) == 0 {
		return nil
	}
	var casts, names, out []string
	for i, k := range w.p.key {
		casts = append(casts, fmt.Sprintf("$%d::%s", i+1, k.array))
		names = append(names, fmt.Sprintf("k%d", i))
		out = append(out, k.out(fmt.Sprintf("u.k%d", i)))
	}
	sql := fmt.Sprintf("SELECT %s FROM unnest(%s) WITH ORDINALITY AS u(%s, o) ORDER BY u.o", strings.Join(out, ", "), strings.Join(casts, ", "), strings.Join(names, ", "))
	n := 0
	err := w.query(ctx, sql, w.p.keyArrays(rows), func(fields [][]byte) {
		r := rows[n]
		r.key = w.p.appendKey(r.key[:0], fields)
		r.mark()
		n++
	})
	if err == nil && n != len(rows) {
		return fmt.Errorf("%d of %d keys came back", n, len(rows))
	}
	return err
}

// tableKeyTypeOf says how values of a key column are compared by their binary
// form; not ok for types with values that are equal in other bytes.
func tableKeyTypeOf(c *introspectColumn) (k tableKeyType, ok bool) {
	if c.typtype == "e" {
		k = tableKeyType{elem: pgtype.TextOID, array: "text[]::" + c.cast + "[]", canon: tableSame, one: true}
		if c.domain {
			k.as = "::" + c.base // equality of enums is not found for a domain over one
		}
		return k, true
	}
	if form, is := tableFolded[c.typname]; is && c.typtype == "b" && c.elem == 0 {
		return tableKeyType{elem: pgtype.TextOID, array: "text[]::" + c.cast + "[]", canon: tableSame, fold: form}, c.deterministic
	}
	k = tableKeyType{elem: c.oid, canon: tableSame, one: true}
	switch c.oid {
	case pgtype.Int2OID:
		k.array = "int2[]"
	case pgtype.Int4OID:
		k.array = "int4[]"
	case pgtype.Int8OID:
		k.array = "int8[]"
	case pgtype.UUIDOID:
		k.array, k.uuid = "uuid[]", true
	case pgtype.TextOID, pgtype.VarcharOID:
		if !c.deterministic {
			return k, false
		}
		k.elem, k.array = pgtype.TextOID, "text[]"
	case pgtype.BoolOID:
		k.array = "bool[]"
	case pgtype.ByteaOID:
		k.array = "bytea[]"
	case pgtype.DateOID:
		k.array = "date[]"
	case pgtype.TimeOID:
		k.array = "time[]"
	case pgtype.TimestampOID:
		k.array = "timestamp[]"
	case pgtype.TimestamptzOID:
		k.array = "timestamptz[]"
	case pgtype.NumericOID:
		k.array, k.one, k.canon = "numeric[]", false, tableCanonNumeric
	case pgtype.Float4OID:
		k.array, k.one, k.canon = "float4[]", false, tableCanonFloat
	case pgtype.Float8OID:
		k.array, k.one, k.canon = "float8[]", false, tableCanonFloat
	default:
		return k, false
	}
	return k, true
}

// tableCanonNumeric: 1.0 and 1.00 are equal; the digits after the point that are
// to be shown become those that there are, in groups of four.
func tableCanonNumeric(b []byte) {
	digits, weight := int(binary.BigEndian.Uint16(b)), int(int16(binary.BigEndian.Uint16(b[2:])))
	scale := max(0, 4*(digits-1-weight))
	if digits == 0 {
		scale = 0
	}
	binary.BigEndian.PutUint16(b[6:], uint16(scale))
}

// tableCanonFloat: minus zero is zero, and there is one NaN.
func tableCanonFloat(b []byte) {
	if len(b) == 4 {
		f := math.Float32frombits(binary.BigEndian.Uint32(b))
		switch {
		case f != f:
			f = float32(math.NaN())
		case f == 0:
			f = 0
		}
		binary.BigEndian.PutUint32(b, math.Float32bits(f))
		return
	}
	f := math.Float64frombits(binary.BigEndian.Uint64(b))
	switch {
	case f != f:
		f = math.NaN()
	case f == 0:
		f = 0
	}
	binary.BigEndian.PutUint64(b, math.Float64bits(f))
}

// tableNewer says whether a version is greater than another, from their binary
// forms; nil for types that the client can't order as the server does.
func tableNewer(oid uint32) func(a, b []byte) bool {
	switch oid {
	case pgtype.Int2OID:
		return func(a, b []byte) bool { return int16(binary.BigEndian.Uint16(a)) > int16(binary.BigEndian.Uint16(b)) }
	case pgtype.Int4OID, pgtype.DateOID:
		return func(a, b []byte) bool { return int32(binary.BigEndian.Uint32(a)) > int32(binary.BigEndian.Uint32(b)) }
	case pgtype.Int8OID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		return func(a, b []byte) bool { return int64(binary.BigEndian.Uint64(a)) > int64(binary.BigEndian.Uint64(b)) }
	case pgtype.UUIDOID:
		return func(a, b []byte) bool { return bytes.Compare(a, b) > 0 }
	case pgtype.NumericOID:
		return func(a, b []byte) bool { return tableCompareNumeric(a, b) > 0 }
	}
	return nil
}

// tableCompareNumeric orders as PostgreSQL does: NaN above infinity.
func tableCompareNumeric(a, b []byte) int {
	rank := func(b []byte) int {
		switch binary.BigEndian.Uint16(b[4:]) {
		case 0xC000:
			return 4
		case 0xD000:
			return 3
		case 0xF000:
			return -3
		case 0x4000:
			return -1
		}
		if binary.BigEndian.Uint16(b) == 0 {
			return 0
		}
		return 1
	}
	ra, rb := rank(a), rank(b)
	if ra != rb || ra != 1 && ra != -1 {
		return cmp.Compare(ra, rb)
	}
	wa, wb := int16(binary.BigEndian.Uint16(a[2:])), int16(binary.BigEndian.Uint16(b[2:]))
	// The digits have no zero group at the front, so the weight comes first; and
	// being unsigned and big-endian they compare as bytes.
	c := cmp.Compare(wa, wb)
	if c == 0 {
		c = bytes.Compare(a[8:], b[8:])
	}
	return c * ra
}

// tableArray makes an array parameter of one key column, in binary form.
func tableArray(rows []*tableRow, column int, elem uint32) []byte {
	b := make([]byte, 20, 20+24*len(rows))
	binary.BigEndian.PutUint32(b, 1) // dimensions
	binary.BigEndian.PutUint32(b[8:], elem)
	binary.BigEndian.PutUint32(b[12:], uint32(len(rows)))
	binary.BigEndian.PutUint32(b[16:], 1) // the first index
	for _, r := range rows {
		key := r.key
		for range column {
			key = key[4+binary.BigEndian.Uint32(key):]
		}
		b = append(b, key[:4+binary.BigEndian.Uint32(key)]...)
	}
	return b
}

// appendKey makes a key of what the server returned.
func (p *tablePlan) appendKey(dst []byte, fields [][]byte) []byte {
	for i, k := range p.key {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(fields[i])))
		at := len(dst)
		dst = append(dst, fields[i]...)
		k.canon(dst[at:])
	}
	return dst
}
