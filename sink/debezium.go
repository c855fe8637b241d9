package sink

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/semelhq/semel"
)

// Debezium is the step for change events of Debezium connectors: value is the
// row after the change, envelope is the event (envelope.op, envelope.source.lsn,
// envelope.position), key is the row's key. Event and key may come with their
// schema ({"schema": …, "payload": …}) or without.
//
// With the schema, decimals, times, bits and documents become what they were in
// the source, exactly (see connectType). Without it they are taken as they stand.
//
// A deletion has no value; the key, or where it has no such field the row
// before, says what is deleted. The tombstone that follows it, for compaction,
// and messages that a source wrote into its own log (op m) are skipped. A
// truncate (op t) is refused: it would delete rows that no message names.
type Debezium struct {
	schemas connectSchemas
	scratch sync.Pool // *debeziumScratch
}

// NewDebezium makes the step.
func NewDebezium() *Debezium {
	d := &Debezium{}
	d.scratch.New = func() any {
		return &debeziumScratch{
			event: newScanner(debeziumEvent.nodes), key: newScanner(debeziumKey.nodes), source: newScanner(debeziumSource.nodes),
		}
	}
	return d
}

// retype finds the row in the event.
func (d *Debezium) retype(t *Type) *Type {
	row := t.Field("after")
	if row == nil || row.Kind != TypeRecord {
		return nil
	}
	return row
}

type debeziumScratch struct {
	event, key, source *scanner
	slots              [dbzSlots]Value
	from               [srcSlots]Value
}

// Fields of an event: bare, and below payload.
const (
	dbzOp = iota
	dbzBefore
	dbzAfter
	dbzSource
	dbzPayloadOp // and so on, in the same order
	dbzSchema    = 8
	dbzPayload   = 9
	dbzSlots     = 10
)

var (
	debeziumEvent = func() *tree {
		t := newTree("value")
		for i, name := range []string{"op", "before", "after", "source"} {
			t.add(Path{Root: RootValue, Names: []string{name}}, i)
			t.add(Path{Root: RootValue, Names: []string{"payload", name}}, dbzPayloadOp+i)
		}
		t.add(Path{Root: RootValue, Names: []string{"schema"}}, dbzSchema)
		t.add(Path{Root: RootValue, Names: []string{"payload"}}, dbzPayload)
		return t
	}()
	debeziumKey = func() *tree {
		t := newTree("key")
		t.add(Path{Root: RootKey, Names: []string{"schema"}}, 0)
		t.add(Path{Root: RootKey, Names: []string{"payload"}}, 1)
		return t
	}()
)

// Open implements [Opener].
func (d *Debezium) Open(_ *semel.Message, o *Opened) error {
	s := d.scratch.Get().(*debeziumScratch)
	defer d.scratch.Put(s)
	if o.Value == nil {
		o.Skip = "the tombstone after a delete"
		return nil
	}
	clear(s.slots[:])
	defer clear(s.slots[:])
	if err := s.event.scan(o.Value, debeziumEvent, s.slots[:], true); err != nil {
		return err
	}
	event, of := o.Value, 0
	var schema *connectType
	if s.slots[dbzOp].Kind == Absent && s.slots[dbzPayload].Kind == Object {
		event, of = s.slots[dbzPayload].Raw, dbzPayloadOp
		if s.slots[dbzSchema].Kind == Object {
			var err error
			if schema, err = d.schemas.of(s.slots[dbzSchema].Raw); err != nil {
				return &DecodeError{Class: ClassDecode, Field: "value.schema", Why: err.Error()}
			}
			if o.typed && schema != nil {
				o.Type = schema.typ
			}
		}
	}
	op, before, after := s.slots[of+dbzOp], s.slots[of+dbzBefore], s.slots[of+dbzAfter]
	o.Envelope, o.source = event, s.slots[of+dbzSource]
	if err := d.key(s, o); err != nil {
		return err
	}
	if op.Kind != String {
		return &DecodeError{Class: ClassDecode, Field: "value", Why: "no change event of Debezium: op is " + op.Kind.String()}
	}
	var err error
	switch text := string(op.Text(nil)); text {
	case "c", "u", "r":
		if after.Kind != Object {
			return &DecodeError{Class: ClassDecode, Field: "value", Why: fmt.Sprintf("after is %s in an event of op %s", after.Kind, text)}
		}
		o.Value, err = d.row(o, after, schema.field("after"))
		return err
	case "d":
		o.Value, o.Before = nil, nil
		if before.Kind == Object {
			o.Before, err = d.row(o, before, schema.field("before"))
			o.unavailable = nil // nobody writes it
		}
		return err
	case "m":
		o.Skip = "a message in the source's log"
		return nil
	case "t":
		return &DecodeError{
			Class: ClassDecode, Field: "value",
			Why: "a truncate (op t): rows are deleted only by messages that name them; empty the table by hand, or leave the connector's skipped.operations at t",
		}
	default:
		return &DecodeError{Class: ClassDecode, Field: "value", Why: "no change event of Debezium: op is " + quote([]byte(text))}
	}
}

// key takes a key out of its schema.
func (d *Debezium) key(s *debeziumScratch, o *Opened) error {
	if !bytes.Contains(o.Key, []byte(`"payload"`)) {
		return nil
	}
	var parts [2]Value
	if s.key.scan(o.Key, debeziumKey, parts[:], true) != nil || s.key.unknown > 0 || parts[0].Kind != Object || parts[1].Kind == Absent {
		return nil // it has other fields, or is no JSON; whoever reads it will say so
	}
	schema, err := d.schemas.of(parts[0].Raw)
	if err != nil {
		return &DecodeError{Class: ClassDecode, Field: "key.schema", Why: err.Error()}
	}
	if parts[1].Kind == Null {
		o.Key = nil
		return nil
	}
	if !schema.converts() {
		o.Key = parts[1].Raw
		return nil
	}
	o.Key, err = o.Append(func(dst []byte) ([]byte, error) { return schema.append(dst, parts[1].Raw, "key") })
	return err
}

// What stands for a value that the source didn't send, since it is stored out of
// line and did not change; once more as base64, for bytes, and in arrays of numbers as
// the numbers of its bytes. In an array of UUIDs it is the UUID of that name.
var (
	unavailableText   = []byte("__debezium_unavailable_value")
	unavailableBytes  = []byte("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
	unavailableInts   = unavailableNumbers("")
	unavailableFloats = unavailableNumbers(".0")
	unavailableUUIDs  = unavailableUUID()
	unavailable       = [][]byte{unavailableText, unavailableBytes, unavailableInts, unavailableFloats, unavailableUUIDs}
)

func unavailableNumbers(fraction string) []byte {
	array := []byte{'['}
	for i, b := range unavailableText {
		if i > 0 {
			array = append(array, ',')
		}
		array = append(strconv.AppendUint(array, uint64(b), 10), fraction...)
	}
	return append(array, ']')
}

// unavailableUUID is an array of one: version 3 without a name space.
func unavailableUUID() []byte {
	u := md5.Sum(unavailableText)
	u[6], u[8] = u[6]&0x0f|0x30, u[8]&0x3f|0x80
	return fmt.Appendf(nil, `["%x-%x-%x-%x-%x"]`, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// unavailableIn says whether the stand-in is anywhere in a row: most have none.
func unavailableIn(row []byte) bool {
	return slices.ContainsFunc(unavailable, func(form []byte) bool { return bytes.Contains(row, form) })
}

// row is a row as the source had it: the bytes of the event, unless something in
// them has to be converted.
func (d *Debezium) row(o *Opened, row Value, schema *connectType) ([]byte, error) {
	missing := unavailableIn(row.Raw)
	if !missing && !schema.converts() {
		return row.Raw, nil
	}
	return o.Append(func(dst []byte) ([]byte, error) {
		dst = append(dst, '{')
		err := members(row.Raw, func(name, value []byte) (err error) {
			if missing && isUnavailable(value) {
				o.unavailable = append(o.unavailable, string(unquoted(name)))
				return nil
			}
			if len(dst) > 1 {
				dst = append(dst, ',')
			}
			dst = append(append(dst, name...), ':')
			field := string(unquoted(name))
			dst, err = schema.field(field).append(dst, value, "value."+field)
			return err
		})
		return append(dst, '}'), err
	})
}

// isUnavailable knows the stand-in as a text, as bytes, and as the only element
// of an array or map.
func isUnavailable(value []byte) bool {
	if len(value) > len(unavailableFloats) {
		return false
	}
	switch kindOf(value[0]) {
	case String:
		body := value[1 : len(value)-1]
		return bytes.Equal(body, unavailableText) || bytes.Equal(body, unavailableBytes)
	case Array:
		if bytes.Equal(value, unavailableInts) || bytes.Equal(value, unavailableFloats) || bytes.Equal(value, unavailableUUIDs) {
			return true
		}
		n, all := 0, true
		for e := range (Value{Kind: Array, Raw: value}).Elements() {
			n++
			all = all && e.Kind == String && isUnavailable(e.Raw)
		}
		return n > 0 && all
	case Object:
		n, all := 0, true
		_ = members(value, func(name, v []byte) error {
			n++
			all = all && isUnavailable(name) && kindOf(v[0]) == String && isUnavailable(v)
			return nil
		})
		return n > 0 && all
	}
	return false
}

// members visits the fields of an object that was checked; names have their
// quotes.
func members(object []byte, visit func(name, value []byte) error) error {
	s := scanner{data: object}
	for i := s.space(1); object[i] != '}'; {
		end := s.string(i)
		name := object[i:end]
		i = s.space(s.space(end) + 1) // the colon
		if end = s.value(i, nil); end < 0 {
			return &DecodeError{Class: ClassDecode, Why: s.why}
		}
		if err := visit(name, object[i:end:end]); err != nil {
			return err
		}
		if i = s.space(end); object[i] == ',' {
			i = s.space(i + 1)
		}
	}
	return nil
}

// Fields of an event's source.
const (
	srcConnector = iota
	srcSnapshot
	srcMillis
	srcServer
	srcLSN
	srcSequence
	srcFile
	srcPos
	srcRow
	srcCommitLSN
	srcChangeLSN
	srcSerial
	srcSCN
	srcCommitSCN
	srcRSID
	srcSSN
	srcSlots
)

var debeziumSource = func() *tree {
	t := newTree("envelope.source")
	for i, name := range []string{
		"connector", "snapshot", "ts_ms", "server_id", "lsn", "sequence", "file", "pos", "row",
		"commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn", "rs_id", "ssn",
	} {
		t.add(Path{Root: RootEnvelope, Names: []string{name}}, i)
	}
	return t
}()

// Change is where in its source's log a change was committed. Those of one
// source rise in the order of its messages.
type Change struct {
	// Order compares changes of one source; the higher the later.
	Order [2]uint64
	// Server tells servers behind one name apart; 0: unknown.
	Server int64
	// Millis is the source's clock at the change, since 1970.
	Millis int64
	// Snapshot: it is no change but a row of a snapshot, and the place is where
	// that began. Changes that come after it may have an earlier one.
	Snapshot bool

	connector string
}

// change is how a Change is kept.
type change struct {
	Connector string    `json:"connector"`
	Order     [2]uint64 `json:"order"`
	Server    int64     `json:"server,omitzero"`
	Millis    int64     `json:"millis"`
	Snapshot  bool      `json:"snapshot,omitzero"`
}

// MarshalJSON keeps it for another process.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal(change{c.connector, c.Order, c.Server, c.Millis, c.Snapshot})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Change) UnmarshalJSON(data []byte) error {
	var k change
	if err := json.Unmarshal(data, &k); err != nil {
		return err
	}
	*c = Change{k.Order, k.Server, k.Millis, k.Snapshot, k.Connector}
	return nil
}

// IsZero says that the place is not known.
func (c Change) IsZero() bool { return c.connector == "" }

// After says that c was committed after d.
func (c Change) After(d Change) bool {
	return c.Order[0] > d.Order[0] || c.Order[0] == d.Order[0] && c.Order[1] > d.Order[1]
}

// String names the place as the source's people do.
func (c Change) String() string {
	switch c.connector {
	case "":
		return "unknown"
	case "postgresql":
		return fmt.Sprintf("LSN %X/%X", c.Order[0]>>32, uint32(c.Order[0]))
	case "sqlserver":
		return fmt.Sprintf("commit LSN %08x:%08x:%04x", c.Order[0]>>32, uint32(c.Order[0]), c.Order[1])
	case "oracle":
		return fmt.Sprintf("commit SCN %d", c.Order[0])
	}
	return fmt.Sprintf("file %d, position %d of server %d", c.Order[0], c.Order[1], c.Server)
}

// position implements envelope.position: a whole number that rises with each
// change of a row.
func (d *Debezium) position(o *Opened) (number []byte, change Change, err error) {
	refuse := func(field, why string) ([]byte, Change, error) {
		return nil, Change{}, &DecodeError{Class: ClassValue, Field: field, Why: why}
	}
	if o.source.Kind != Object {
		return refuse("envelope.source", "no object but "+o.source.Kind.String())
	}
	s := d.scratch.Get().(*debeziumScratch)
	defer d.scratch.Put(s)
	clear(s.from[:])
	defer clear(s.from[:])
	if err := s.source.scan(o.source.Raw, debeziumSource, s.from[:], true); err != nil {
		return nil, Change{}, err
	}
	f := &s.from
	text := func(slot int) string { return string(f[slot].Text(nil)) }
	// Rows of a snapshot stand at the place where it began; those of an incremental
	// one at that of any change before, which says nothing.
	snapshot := f[srcSnapshot].Kind == String && text(srcSnapshot) != "false" || f[srcSnapshot].Bool()
	if snapshot && text(srcSnapshot) == "incremental" {
		defer func() { change = Change{} }()
	}
	change.Snapshot = snapshot
	change.Millis, _ = f[srcMillis].Int64()
	connector := text(srcConnector)
	switch connector {
	case "postgresql":
		lsn, err := strconv.ParseUint(text(srcLSN), 10, 64)
		if err != nil {
			return refuse("envelope.source.lsn", "no position")
		}
		// Changes of transactions that run side by side have LSNs in any order; the
		// last commit before them rises.
		if snapshot {
			change.connector, change.Order[0] = connector, lsn
		} else if last, ok := lastCommit(f[srcSequence]); ok {
			change.connector, change.Order[0] = connector, last
		}
		return strconv.AppendUint(nil, lsn, 10), change, nil
	case "mysql", "mariadb":
		file := text(srcFile)
		n, err := strconv.ParseUint(file[strings.LastIndexByte(file, '.')+1:], 10, 32)
		if err != nil {
			return refuse("envelope.source.file", "no position")
		}
		pos, err := strconv.ParseUint(text(srcPos), 10, 64)
		if err != nil {
			return refuse("envelope.source.pos", "no position")
		}
		row, _ := strconv.ParseUint(text(srcRow), 10, 32)
		change.connector, change.Order = connector, [2]uint64{n, pos}
		change.Server, _ = f[srcServer].Int64()
		return bigOf(piece{n, 32}, piece{pos, 48}, piece{row, 32}), change, nil
	case "sqlserver":
		commit, ok := lsn10(text(srcCommitLSN))
		if !ok {
			return refuse("envelope.source.commit_lsn", "no position")
		}
		within, _ := lsn10(text(srcChangeLSN))
		serial, _ := strconv.ParseUint(text(srcSerial), 10, 32)
		change.connector, change.Order = connector, commit
		return bigOf(piece{commit[0], 64}, piece{commit[1], 16}, piece{within[0], 64}, piece{within[1], 16}, piece{serial, 32}), change, nil
	case "oracle":
		scn, err := strconv.ParseUint(text(srcSCN), 10, 64)
		if err != nil {
			return refuse("envelope.source.scn", "no position")
		}
		if snapshot {
			change.connector, change.Order[0] = connector, scn
		} else if commit, err := strconv.ParseUint(text(srcCommitSCN), 10, 64); err == nil {
			change.connector, change.Order[0] = connector, commit
		}
		// Several changes may have one SCN: the place in the redo log goes on.
		redo, _ := lsn10(strings.NewReplacer(" ", "", "0x", "", ".", ":").Replace(text(srcRSID)))
		ssn, _ := strconv.ParseUint(text(srcSSN), 10, 32)
		return bigOf(piece{scn, 64}, piece{redo[0], 64}, piece{redo[1], 16}, piece{ssn, 32}), change, nil
	}
	return refuse("envelope.position", "no position is known of the connector "+quote([]byte(connector))+"; name a field that rises, such as envelope.source.ts_ms")
}

// lastCommit is the first of the pair that PostgreSQL's connector gives as
// sequence: the end of the transaction before.
func lastCommit(sequence Value) (lsn uint64, ok bool) {
	text := sequence.Text(nil)
	if len(text) < 2 || text[0] != '[' {
		return 0, false
	}
	first, _, _ := bytes.Cut(text[1:], []byte(","))
	first = bytes.Trim(first, ` "]`)
	lsn, err := strconv.ParseUint(string(first), 10, 64)
	return lsn, err == nil
}

// lsn10 reads ten bytes written as 00000027:00000ac0:0002.
func lsn10(text string) (n [2]uint64, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return n, false
	}
	var v [3]uint64
	for i, p := range parts {
		bits := 32
		if i == 2 {
			bits = 16
		}
		var err error
		if v[i], err = strconv.ParseUint(p, 16, bits); err != nil {
			return n, false
		}
	}
	return [2]uint64{v[0]<<32 | v[1], v[2]}, true
}

type piece struct {
	n    uint64
	bits uint
}

// bigOf is the number whose bits are those of the pieces, one after the other.
func bigOf(ps ...piece) []byte {
	var n, p big.Int
	for _, x := range ps {
		n.Lsh(&n, x.bits)
		n.Or(&n, p.SetUint64(x.n))
	}
	return n.Append(nil, 10)
}
