package avro

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/twmb/avro"

	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/internal/exact"
)

// Schema is a writer's schema. It doesn't change, and may be used from several
// goroutines.
type Schema struct {
	root   *node
	parsed *avro.Schema // the writer's
	fields []field      // of the reader's root, if it is another one's
	typ    *sink.Type   // the reader's, if it is another one's

	last atomic.Pointer[plan] // of the names that were asked for last

	fingerprint [8]byte // of the writer's, as single-object encoding has it
}

func newSchema(root *node, parsed *avro.Schema, fields []field, typ *sink.Type) *Schema {
	s := &Schema{root: root, parsed: parsed, fields: fields, typ: typ}
	h := avro.NewRabin()
	h.Write(parsed.Canonical())
	binary.LittleEndian.PutUint64(s.fingerprint[:], h.Sum64())
	return s
}

// Parse reads a schema, and before it those that it refers to by name, each after
// what it refers to itself.
func Parse(schema string, references ...string) (*Schema, error) {
	var cache avro.SchemaCache
	for _, r := range references {
		if _, err := cache.Parse(r, avro.WithLaxNames(nil)); err != nil {
			return nil, err
		}
	}
	s, err := cache.Parse(schema, avro.WithLaxNames(nil))
	if err != nil {
		return nil, err
	}
	c := compiler{named: map[string]*node{}}
	root, err := c.compile(s.Root(), "")
	if err != nil {
		return nil, err
	}
	return newSchema(root, s, root.fields, types{}.of(root)), nil
}

// Fields are the names of a record's fields; ok is false if the schema is no
// record's.
func (s *Schema) Fields() (names []string, ok bool) {
	if s.root.kind != kindRecord {
		return nil, false
	}
	for _, f := range s.fields {
		names = append(names, f.name)
	}
	return names, true
}

type kind uint8

const (
	kindNull kind = iota
	kindBoolean
	kindInt
	kindLong
	kindFloat
	kindDouble
	kindString
	kindBytes
	kindFixed
	kindEnum
	kindArray
	kindMap
	kindUnion
	kindRecord
	kindPreset // a default, of which nothing is in the data
)

// meaning is what a value stands for beside its kind.
type meaning uint8

const (
	plain    meaning = iota
	decimal          // bytes or fixed
	uuid             // fixed of 16
	duration         // fixed of 12
	date             // int or long: days
	clock            // int or long
	instant          // long
	local            // long
	scaled           // a record of scale and value: a decimal that brings its scale
	point            // a record that begins with x and y: PostgreSQL's point
	document         // string: JSON text
	bits             // bytes, the lowest first
	span             // long: a time that passes
	textUUID         // string, as are those below: read as it is
	textInstant
	textClock
)

// node is a schema ready for reading values.
type node struct {
	kind      kind
	meaning   meaning
	scale     int
	precision int      // of a decimal, for its type alone
	per       int64    // of a time: how many are in a second
	size      int      // of a fixed; of bits their number, -1: all
	fields    []field  // of a record
	items     *node    // of an array, a map
	symbols   [][]byte // of an enum, quoted
	of        []*node  // of a union

	full string           // of a named type
	src  *avro.SchemaNode // what it was made of
}

type field struct {
	name    string
	text    []byte // quoted, with the colon and, but for the first, a comma
	of      *node
	dropped bool // it is in the data, and nobody wants it
	src     *avro.SchemaField
}

// label makes the texts in front of a record's values.
func (n *node) label() {
	first := true
	for i := range n.fields {
		f := &n.fields[i]
		if f.dropped {
			continue
		}
		if f.text = exact.Quote(nil, f.name); !first {
			f.text = append([]byte{','}, f.text...)
		}
		f.text = append(f.text, ':')
		first = false
	}
}

var primitives = map[string]kind{
	"null": kindNull, "boolean": kindBoolean, "int": kindInt, "long": kindLong,
	"float": kindFloat, "double": kindDouble, "string": kindString, "bytes": kindBytes,
}

type compiler struct{ named map[string]*node }

// compile follows the tree of a schema that the library has found right. Names
// without a dot are those of the space around them, or of none.
func (c *compiler) compile(s *avro.SchemaNode, space string) (*node, error) {
	n := &node{src: s}
	if k, ok := primitives[s.Type]; ok {
		n.kind = k
		n.mean(s)
		return n, nil
	}
	var err error
	switch s.Type {
	case "array", "map":
		n.kind, n.items = kindArray, nil
		of := s.Items
		if s.Type == "map" {
			n.kind, of = kindMap, s.Values
		}
		n.items, err = c.compile(of, space)
		return n, err
	case "union":
		n.kind = kindUnion
		for i := range s.Branches {
			b, err := c.compile(&s.Branches[i], space)
			if err != nil {
				return nil, err
			}
			n.of = append(n.of, b)
		}
		return n, nil
	case "fixed":
		n.kind, n.size = kindFixed, s.Size
		c.name(s, n)
		n.mean(s)
		return n, nil
	case "enum":
		n.kind = kindEnum
		c.name(s, n)
		for _, symbol := range s.Symbols {
			n.symbols = append(n.symbols, exact.Quote(nil, symbol))
		}
		return n, nil
	case "record", "error":
		n.kind = kindRecord
		inner := c.name(s, n)
		for i := range s.Fields {
			f := &s.Fields[i]
			of, err := c.compile(&f.Type, inner)
			if err != nil {
				return nil, err
			}
			n.fields = append(n.fields, field{name: f.Name, of: of, src: f})
		}
		n.label()
		n.mean(s)
		return n, nil
	}
	for _, name := range []string{space + "." + s.Type, s.Type} {
		if n := c.named[strings.TrimPrefix(name, ".")]; n != nil && (name == s.Type || !strings.Contains(s.Type, ".")) {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownName, s.Type)
}

// ErrUnknownName says that a schema refers to what is neither in it nor in its
// references.
var ErrUnknownName = errors.New("a name that the schema and its references don't define")

// name makes a named type known, and returns the space of what is inside it.
func (c *compiler) name(s *avro.SchemaNode, n *node) string {
	full, space := s.Name, s.Namespace
	if i := strings.LastIndexByte(s.Name, '.'); i >= 0 {
		space = s.Name[:i]
	} else if space != "" {
		full = space + "." + s.Name
	}
	c.named[full], n.full = n, full
	return space
}

// maxBits is beyond what a value may be filled up to; a bit varying without a limit
// is said to have more.
const maxBits = 1 << 15

// mean takes what the schema says of a value beside its type: Avro's logical
// types, and what Debezium means by names where Avro has none.
func (n *node) mean(s *avro.SchemaNode) {
	whole := n.kind == kindInt || n.kind == kindLong
	set := func(m meaning, per int64) { n.meaning, n.per = m, per }
	switch l := s.LogicalType; {
	case l == "decimal" && (n.kind == kindBytes || n.kind == kindFixed):
		n.meaning, n.scale, n.precision = decimal, s.Scale, s.Precision
	case l == "uuid" && n.kind == kindFixed && n.size == 16:
		n.meaning = uuid
	case l == "uuid" && n.kind == kindString:
		n.meaning = textUUID
	case l == "duration" && n.kind == kindFixed && n.size == 12:
		n.meaning = duration
	case l == "date" && n.kind == kindInt:
		n.meaning = date
	case l == "time-millis" && n.kind == kindInt:
		set(clock, 1e3)
	case l == "time-micros" && n.kind == kindLong:
		set(clock, 1e6)
	case n.kind == kindLong && l == "timestamp-millis":
		set(instant, 1e3)
	case n.kind == kindLong && l == "timestamp-micros":
		set(instant, 1e6)
	case n.kind == kindLong && l == "timestamp-nanos":
		set(instant, 1e9)
	case n.kind == kindLong && l == "local-timestamp-millis":
		set(local, 1e3)
	case n.kind == kindLong && l == "local-timestamp-micros":
		set(local, 1e6)
	case n.kind == kindLong && l == "local-timestamp-nanos":
		set(local, 1e9)
	}
	if n.meaning != plain {
		return
	}
	switch name, _ := s.Props["connect.name"].(string); {
	case name == "io.debezium.data.VariableScaleDecimal" && n.kind == kindRecord && len(n.fields) == 2 &&
		n.fields[0].name == "scale" && n.fields[0].of.kind == kindInt && n.fields[1].name == "value" && n.fields[1].of.kind == kindBytes:
		n.meaning = scaled
	case name == "io.debezium.data.geometry.Point" && n.kind == kindRecord && len(n.fields) >= 2 &&
		n.fields[0].name == "x" && n.fields[0].of.kind == kindDouble && n.fields[1].name == "y" && n.fields[1].of.kind == kindDouble:
		n.meaning = point
	case name == "io.debezium.data.Json" && n.kind == kindString:
		n.meaning = document
	case name == "io.debezium.data.Uuid" && n.kind == kindString:
		n.meaning = textUUID
	case name == "io.debezium.time.ZonedTimestamp" && n.kind == kindString:
		n.meaning = textInstant
	case name == "io.debezium.time.ZonedTime" && n.kind == kindString:
		n.meaning = textClock
	case name == "io.debezium.data.Bits" && n.kind == kindBytes:
		n.meaning, n.size = bits, -1
		if of, _ := s.Props["connect.parameters"].(map[string]any); of != nil {
			text, _ := of["length"].(string)
			if length, err := strconv.Atoi(text); err == nil && length <= maxBits {
				n.size = length
			}
		}
	case !whole:
	case name == "io.debezium.time.Date":
		n.meaning = date
	case name == "io.debezium.time.Time":
		set(clock, 1e3)
	case name == "io.debezium.time.MicroTime":
		set(clock, 1e6)
	case name == "io.debezium.time.NanoTime":
		set(clock, 1e9)
	case name == "io.debezium.time.Timestamp":
		set(local, 1e3)
	case name == "io.debezium.time.MicroTimestamp":
		set(local, 1e6)
	case name == "io.debezium.time.NanoTimestamp":
		set(local, 1e9)
	case name == "io.debezium.time.MicroDuration":
		set(span, 1e6)
	case name == "io.debezium.time.NanoDuration":
		set(span, 1e9)
	}
}
