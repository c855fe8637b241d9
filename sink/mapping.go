package sink

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// KeyFormat says how a message's key is read.
type KeyFormat uint8

const (
	// KeyText: the key is text, and must be valid UTF-8 where it is used.
	KeyText KeyFormat = iota
	// KeyJSON: the key is a JSON text of any kind; key.a selects a field.
	KeyJSON
	// KeyRaw: the key is bytes.
	KeyRaw
)

// Column is a column of the target and what it takes.
type Column struct {
	Name string
	From Path
}

// ByName maps every column to the field of the same name.
func ByName(columns []string) []Column {
	cs := make([]Column, len(columns))
	for i, c := range columns {
		cs[i] = Column{Name: c, From: Path{Root: RootValue, Names: []string{c}}}
	}
	return cs
}

// MappingConfig says what a row is made of.
type MappingConfig struct {
	// Columns of the row, in order; see [ByName]. Several may take the same.
	Columns []Column
	// KeyFormat is how `key` is read.
	KeyFormat KeyFormat
	// Raw: the value is bytes. It has no fields, and is taken whole.
	Raw bool
	// ID are the fields that identify a message; none if something else does.
	ID []Path
	// TopicInID makes the topic a part of such IDs. Set it where a consumer
	// reads several topics: equal numbers of two topics are two messages.
	TopicInID bool
	// Open are the steps from a message as sent to what is read here: value, if
	// there is one, as a JSON text, and the key as KeyFormat says. None: the
	// message is JSON already.
	Open []Opener
	// Filter answers for each message whether it is meant to have an effect, see
	// [ParseFilter]; zero: each is.
	Filter Path
	// KeepUnsent leaves a field absent that the source of a change event didn't
	// send, because it is stored out of line and has not changed. Set it where an
	// absent field keeps what is stored; else a message is refused whose row would
	// lose such a field.
	KeepUnsent bool
	// Typed asks for [Row.Type].
	Typed bool
	// KeyColumns are the target's key. A message without a value has no fields:
	// its key columns come from the message's key. Each must be one of Columns;
	// none if tombstones don't matter.
	KeyColumns []string
}

// Mapping reads messages into rows. It is made once for a route, doesn't change,
// and may be used from several goroutines.
type Mapping struct {
	columns   []Column
	id        []int // slots of the fields of the ID
	idPaths   []Path
	topicInID bool
	keyFormat KeyFormat
	raw       bool
	openers   []Opener
	keep      bool
	typed     bool

	slots    int
	value    *tree // nil if no field of the value is taken
	key      *tree // with KeyJSON, nil if nothing is taken
	plain    []plainSource
	copies   [][2]int // slot, and the slot that it equals
	document bool     // the whole value is taken: no field is unknown
	tombKey  *tree    // of a tombstone
	tombCols []int

	envelope *tree // nil if nothing of it is taken
	position int   // slot of the source's position, or -1
	places   positioner
	before   *tree    // of a deletion: what identifies, and what is deleted
	late     [][2]int // copies of slots of before
	needsKey bool     // something of a tombstone comes from the message's key

	fields []string // at the top of the value, in the order of tops; nil: more is taken
	tops   []*node

	filter   Path
	computed []computation
	whole    wholes
	scanners sync.Pool
}

// plainSource is a slot that takes what is not JSON.
type plainSource struct {
	slot int
	from Path
}

// NewMapping checks the configuration. Its errors are the caller's mistake, not
// a message's.
func NewMapping(cfg MappingConfig) (*Mapping, error) {
	m := &Mapping{
		columns: cfg.Columns, idPaths: cfg.ID, topicInID: cfg.TopicInID,
		keyFormat: cfg.KeyFormat, raw: cfg.Raw, openers: cfg.Open, keep: cfg.KeepUnsent, typed: cfg.Typed,
		value: newTree("value"), before: newTree("envelope.before"), position: -1,
		filter: cfg.Filter, whole: wholes{-1, -1, -1},
	}
	names := map[string]int{}
	for i, c := range cfg.Columns {
		if _, twice := names[c.Name]; twice {
			return nil, fmt.Errorf("column %q twice", c.Name)
		}
		names[c.Name] = i
		if err := m.take(c.From); err != nil {
			return nil, fmt.Errorf("column %q: %w", c.Name, err)
		}
	}
	for _, p := range cfg.ID {
		m.id = append(m.id, m.slots)
		if err := m.take(p); err != nil {
			return nil, fmt.Errorf("message ID: %w", err)
		}
	}
	for _, c := range append(m.computed, computation{expr: cfg.Filter}) {
		if err := m.look(c.expr); err != nil {
			return nil, err
		}
	}
	for _, k := range cfg.KeyColumns {
		i, ok := names[k]
		if !ok {
			return nil, fmt.Errorf("key column %q takes nothing from the message", k)
		}
		switch cfg.Columns[i].From.Root {
		case RootValue: // which a tombstone hasn't
			m.tombCols = append(m.tombCols, i)
			fallthrough
		case RootKey:
			m.needsKey = true
		}
	}
	if cfg.KeyFormat == KeyJSON {
		m.tombKey = newTree("key")
		for _, i := range m.tombCols {
			m.tombKey.add(Path{Root: RootKey, Names: []string{cfg.Columns[i].Name}}, i)
		}
	}
	for i, slot := range m.id {
		m.takeBefore(cfg.ID[i], slot)
	}
	for _, i := range m.tombCols {
		m.takeBefore(cfg.Columns[i].From, i)
	}
	m.located()
	nodes := max(m.value.nodes, m.before.nodes)
	if m.envelope != nil {
		nodes = max(nodes, m.envelope.nodes)
	}
	if m.key != nil {
		nodes = max(nodes, m.key.nodes)
	}
	if m.tombKey != nil {
		nodes = max(nodes, m.tombKey.nodes)
	}
	m.scanners.New = func() any {
		s := &scanners{value: newScanner(nodes)}
		if len(cfg.Open) > 0 {
			s.envelope, s.before = newScanner(nodes), newScanner(nodes)
		}
		if cfg.KeyFormat == KeyJSON {
			s.key, s.tombKey = newScanner(nodes), newScanner(nodes)
		}
		return s
	}
	return m, nil
}

// located finds out whether fields at the top of the value are all that is read of
// it. Then a format may say where they stand.
func (m *Mapping) located() {
	if len(m.openers) != 1 || m.raw || m.value.root.slot >= 0 || len(m.value.root.kids) == 0 {
		return
	}
	if _, ok := m.openers[0].(formats); !ok {
		return
	}
	for name := range m.value.root.kids {
		m.fields = append(m.fields, name)
	}
	slices.Sort(m.fields)
	for _, name := range m.fields {
		m.tops = append(m.tops, m.value.root.kids[name])
	}
}

// scanners learn the order of names in one kind of text each.
type scanners struct {
	value, key, tombKey, envelope, before *scanner
	vars                                  variables
}

// take gives the next slot to a path.
func (m *Mapping) take(p Path) error {
	slot := m.slots
	m.slots++
	switch p.Root {
	case 0:
		return errors.New("no expression")
	case RootValue:
		if m.raw {
			if len(p.Names) > 0 {
				return fmt.Errorf("%s selects a field of a value that is bytes", p)
			}
			m.plain = append(m.plain, plainSource{slot, p})
			break
		}
		if len(p.Names) == 0 {
			m.document = true
		}
		m.same(slot, m.value.add(p, slot))
	case RootKey:
		switch {
		case m.keyFormat == KeyJSON:
			if m.key == nil {
				m.key = newTree("key")
			}
			m.same(slot, m.key.add(p, slot))
		case len(p.Names) > 0:
			return fmt.Errorf("%s selects a field of the key, which needs key_format json", p)
		default:
			m.plain = append(m.plain, plainSource{slot, p})
		}
	case RootEnvelope:
		return m.takeEnvelope(p, slot)
	case rootComputed:
		m.computed = append(m.computed, computation{slot, p})
	default:
		m.plain = append(m.plain, plainSource{slot, p})
	}
	return nil
}

func (m *Mapping) takeEnvelope(p Path, slot int) error {
	if len(m.openers) == 0 {
		return fmt.Errorf("%s: messages are in no envelope", p)
	}
	if p.IsPosition() {
		for _, o := range m.openers {
			if places, ok := o.(positioner); ok {
				m.places = places
			}
		}
		if m.places == nil {
			return fmt.Errorf("%s: only change events have one", p)
		}
		if m.position >= 0 {
			m.same(slot, m.position)
			return nil
		}
		m.position = slot
		return nil
	}
	if m.envelope == nil {
		m.envelope = newTree("envelope")
	}
	m.same(slot, m.envelope.add(p, slot))
	return nil
}

// takeBefore lets a deletion take a field of the row that was there.
func (m *Mapping) takeBefore(p Path, slot int) {
	if p.Root != RootValue {
		return
	}
	if first := m.before.add(p, slot); first != slot {
		m.late = append(m.late, [2]int{slot, first})
	}
}

func (m *Mapping) same(slot, first int) {
	if slot != first {
		m.copies = append(m.copies, [2]int{slot, first})
	}
}

// Columns are the columns of each row, in order. The caller doesn't change them.
func (m *Mapping) Columns() []Column { return m.columns }

// ColumnOf is the first column that takes exactly this path, or -1.
func (m *Mapping) ColumnOf(p Path) int {
	for i, c := range m.columns {
		if c.From.Equal(p) {
			return i
		}
	}
	return -1
}

// Row is what a message says about a row. Its values point into the message, or
// into what the mapping's steps made of it: then they are valid until the row is
// used again.
type Row struct {
	// Values has one for each column of the mapping, in order.
	Values []Value
	// UnknownFields counts the top-level fields of the value that nothing takes.
	UnknownFields int
	// Tombstone: the message has no value, hence no fields; only what comes from
	// elsewhere is set, and the key columns.
	Tombstone bool
	// Skip says why the message is not meant to have an effect, and then nothing
	// else is set; "": it is.
	Skip string
	// Change is where in its source's log the change was committed, if a column
	// or the ID takes envelope.position.
	Change Change
	// Type is what the schema by which the message was written says of its value,
	// also where Decode has an error; nil: no schema is known.
	Type *Type

	all    []Value // Values, and after them the fields of the ID
	opened *opened // if the mapping has steps
}

// NewRows makes rows for a batch, to be filled again and again, in one piece of
// memory.
func (m *Mapping) NewRows(n int) []Row {
	rows := make([]Row, n)
	values := make([]Value, n*m.slots)
	for i := range rows {
		rows[i].all = values[i*m.slots : (i+1)*m.slots : (i+1)*m.slots]
	}
	return rows
}

// Decode fills the row, which may be a used one or the zero Row. Its error is a
// *DecodeError; the row is worth nothing then.
func (m *Mapping) Decode(msg *semel.Message, row *Row) error {
	if len(row.all) != m.slots {
		row.all = make([]Value, m.slots)
	} else {
		clear(row.all)
	}
	n := len(m.columns)
	row.Values = row.all[:n:n]
	row.UnknownFields, row.Tombstone, row.Skip, row.Change, row.Type = 0, false, "", Change{}, nil
	msg, err := m.open(msg, row)
	if err != nil {
		return err
	}
	if row.opened != nil {
		if row.Skip = row.opened.Skip; row.Skip != "" {
			return nil
		}
	}
	row.Tombstone = msg.Value == nil

	s := m.scanners.Get().(*scanners)
	err = m.decode(msg, row, s)
	m.scanners.Put(s)
	return err
}

func (m *Mapping) decode(msg *semel.Message, row *Row, s *scanners) error {
	switch {
	case row.Tombstone, m.raw:
	case row.opened != nil && row.opened.located:
		if err := s.value.fields(msg.Value, m.tops, row.opened.spans, row.all); err != nil {
			return err
		}
		row.UnknownFields = row.opened.other
	default:
		if err := s.value.scan(msg.Value, m.value, row.all, true); err != nil {
			return err
		}
		if !m.document {
			row.UnknownFields = s.value.unknown
		}
	}
	if row.opened != nil {
		if err := m.decodeEnvelope(row, s); err != nil {
			return err
		}
	}
	if m.key != nil && msg.Key != nil {
		if err := s.key.scan(msg.Key, m.key, row.all, false); err != nil {
			return err
		}
	} else if m.key != nil && m.key.root.slot >= 0 {
		row.all[m.key.root.slot] = Value{Kind: Null}
	}
	for _, c := range m.copies {
		row.all[c[0]] = row.all[c[1]]
	}
	if !m.filter.IsZero() || m.computed != nil {
		s.vars = variables{m, msg, row}
		defer func() { s.vars = variables{} }()
		if yes, err := m.passes(&s.vars); err != nil || !yes {
			row.Skip = "the filter"
			return err
		}
		if err := m.calculate(&s.vars); err != nil {
			return err
		}
	}
	for _, p := range m.plain {
		v, err := m.plainValue(msg, p.from)
		if err != nil {
			return err
		}
		row.all[p.slot] = v
	}
	if !row.Tombstone {
		return nil
	}
	if row.opened != nil && row.opened.Before != nil {
		if err := s.before.scan(row.opened.Before, m.before, row.all, true); err != nil {
			return err
		}
		for _, c := range m.late {
			row.all[c[0]] = row.all[c[1]]
		}
	}
	return m.tombstone(msg, row, s)
}

// decodeEnvelope reads what is around the value.
func (m *Mapping) decodeEnvelope(row *Row, s *scanners) error {
	o := &row.opened.Opened
	if m.envelope != nil && o.Envelope != nil {
		if err := s.envelope.scan(o.Envelope, m.envelope, row.all, true); err != nil {
			return err
		}
	}
	if m.position >= 0 {
		number, change, err := m.places.position(o)
		if err != nil {
			return err
		}
		row.all[m.position] = Value{Kind: Number, Raw: number}
		row.Change = change
	}
	if m.keep && !m.document {
		return nil
	}
	for _, name := range o.unavailable {
		if m.document || m.value.root.kids[name] != nil {
			return &DecodeError{
				Class: ClassValue, Field: Path{Root: RootValue, Names: []string{name}}.String(),
				Why: "the source did not send it, for it has not changed and is stored out of line; absent: keep keeps what is stored, REPLICA IDENTITY FULL sends it",
			}
		}
	}
	return nil
}

func (m *Mapping) plainValue(msg *semel.Message, p Path) (Value, error) {
	switch p.Root {
	case RootValue:
		if msg.Value == nil {
			return Value{}, nil
		}
		return BytesValue(msg.Value), nil
	case RootKey:
		return m.keyValue(msg)
	case RootHeaders:
		v, ok := msg.Header(p.Names[0])
		switch {
		case !ok:
			return Value{}, nil
		case v == nil:
			return Value{Kind: Null}, nil
		case !utf8.Valid(v):
			return Value{}, &DecodeError{Class: ClassValue, Field: p.String(), Why: "not valid UTF-8"}
		}
		return TextValue(v), nil
	case RootTimestamp:
		return TimeValue(msg.Timestamp), nil
	case RootTopic:
		return TextValue([]byte(msg.Topic)), nil
	case RootPartition:
		return IntValue(int64(msg.Partition)), nil
	}
	return IntValue(msg.Offset), nil
}

// keyValue is a key that is text or bytes.
func (m *Mapping) keyValue(msg *semel.Message) (Value, error) {
	switch {
	case msg.Key == nil:
		return Value{Kind: Null}, nil
	case m.keyFormat == KeyRaw:
		return BytesValue(msg.Key), nil
	case !utf8.Valid(msg.Key):
		return Value{}, &DecodeError{Class: ClassValue, Field: "key", Why: "not valid UTF-8"}
	}
	return TextValue(msg.Key), nil
}

// tombstone sets the key columns from the message's key: its fields by name, or
// the key itself if there is one column.
func (m *Mapping) tombstone(msg *semel.Message, row *Row, s *scanners) error {
	before := row.opened != nil && row.opened.Before != nil
	if msg.Key == nil && before {
		return nil // it has said all
	}
	if msg.Key == nil && m.needsKey {
		return &DecodeError{
			Class: ClassMissingID, Field: "key", Why: "neither key nor value",
			Err: semel.ErrMissingID,
		}
	}
	if len(m.tombCols) == 0 {
		return nil
	}
	if m.keyFormat != KeyJSON {
		if len(m.tombCols) > 1 {
			return &DecodeError{
				Class: ClassValue, Field: "key",
				Why: fmt.Sprintf("one key for %d key columns; key_format json has fields", len(m.tombCols)),
			}
		}
		v, err := m.keyValue(msg)
		row.Values[m.tombCols[0]] = v
		return err
	}
	if !before {
		for _, i := range m.tombCols {
			row.Values[i] = Value{}
		}
	}
	// The key as a whole is read, whatever it is.
	var whole [1]Value
	if err := s.tombKey.scan(msg.Key, wholeKey, whole[:], false); err != nil {
		return err
	}
	if whole[0].Kind == Object {
		return s.tombKey.scan(msg.Key, m.tombKey, row.all, true)
	}
	if len(m.tombCols) > 1 {
		return &DecodeError{Class: ClassValue, Field: "key", Why: "not an object but " + whole[0].Kind.article()}
	}
	row.Values[m.tombCols[0]] = whole[0]
	return nil
}

var wholeKey = func() *tree {
	t := newTree("key")
	t.add(Path{Root: RootKey}, 0)
	return t
}()
