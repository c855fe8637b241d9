package sink

import (
	"bytes"
	"strings"
	"sync"

	"github.com/semelhq/semel"
)

// The ID of a message by its fields is made of texts, not of types: the content
// of a string after unescaping, the literal of a number. So 42 and "42" are one
// ID, and 1 and 1.0 are two: a number is kept as its sender wrote it, but for the
// exponent (1E+03 is 1e3). Who sends a message again sends the same literal; who
// means two messages must not find them to be one.
//
// One field whose content is a UUID is that UUID. Several fields are hashed each
// with its length, so ("a", "bc") and ("ab", "c") differ.

// ID gives the message ID by the mapping's fields, from a row that Decode filled
// from this message. A field that is absent, null, or a document, or a single one
// that is empty: a *DecodeError of class missing-id that wraps semel.ErrMissingID.
//
// A message without a value has no fields: it is identified by topic and key,
// apart from all that have a value. A deletion in an envelope has those of the row
// that was there.
func (m *Mapping) ID(msg *semel.Message, row *Row) (semel.ID, error) {
	if row.bare() {
		key := row.key(msg)
		if key == nil {
			return semel.ID{}, missingID("key", "neither key nor value")
		}
		return semel.IDOf([]byte("tombstone"), []byte(msg.Topic), key), nil
	}
	if err := m.Identified(row); err != nil {
		return semel.ID{}, err
	}
	var array [8][]byte
	parts := array[:0]
	if m.topicInID {
		parts = append(parts, []byte(msg.Topic))
	}
	for _, slot := range m.id {
		parts = append(parts, idText(row.all[slot]))
	}
	return semel.IDOf(parts...), nil
}

// bare says that the message has neither a value nor an event around one.
func (row *Row) bare() bool {
	return row.Tombstone && (row.opened == nil || row.opened.Envelope == nil)
}

// key is the message's, as the mapping's steps left it.
func (row *Row) key(msg *semel.Message) []byte {
	if row.opened != nil {
		return row.opened.Key
	}
	return msg.Key
}

// Identified says whether a row that is no tombstone has all fields of the ID;
// its errors are those of ID.
func (m *Mapping) Identified(row *Row) error {
	for i, slot := range m.id {
		v := row.all[slot]
		field := m.idPaths[i].String
		switch {
		case v.Kind == Absent:
			return missingID(field(), "absent")
		case v.Kind == Null:
			return missingID(field(), "null")
		case v.IsDocument():
			return missingID(field(), v.Kind.article()+" is no message ID")
		case len(m.id) == 1 && v.Kind == String && len(v.Raw) == 2:
			return missingID(field(), "empty")
		case len(m.id) == 1 && v.Kind != String && len(idText(v)) == 0:
			return missingID(field(), "empty")
		}
	}
	if len(m.id) == 0 {
		return missingID("", "the mapping names no field")
	}
	return nil
}

// Sent is the ID as its sender wrote it: the fields' texts, with a bar between
// them; for a tombstone the key. For people: two IDs may look alike.
func (m *Mapping) Sent(msg *semel.Message, row *Row) string {
	if row.bare() {
		return string(bytes.ToValidUTF8(row.key(msg), []byte("\uFFFD")))
	}
	var b strings.Builder
	for i, slot := range m.id {
		if i > 0 {
			b.WriteByte('|')
		}
		b.Write(row.all[slot].Text(nil))
	}
	return b.String()
}

func missingID(field, why string) error {
	return &DecodeError{Class: ClassMissingID, Field: field, Why: why, Err: semel.ErrMissingID}
}

func idText(v Value) []byte {
	text := v.Text(nil)
	if v.Kind != Number {
		return text
	}
	e := bytes.IndexAny(text, "eE")
	if e < 0 {
		return text
	}
	out := append(append(make([]byte, 0, len(text)), text[:e]...), 'e')
	exp := text[e+1:]
	if exp[0] == '+' || exp[0] == '-' {
		if exp[0] == '-' {
			out = append(out, '-')
		}
		exp = exp[1:]
	}
	for len(exp) > 1 && exp[0] == '0' {
		exp = exp[1:]
	}
	return append(out, exp...)
}

// FieldsID is the rule by fields for a consumer that has no mapping. It reads
// each message by itself; with a mapping, ask [Mapping.ID].
func FieldsID(fields []Path, keys KeyFormat, topicInID bool) (semel.IDRule, error) {
	m, err := NewMapping(MappingConfig{ID: fields, KeyFormat: keys, TopicInID: topicInID})
	if err != nil {
		return semel.IDRule{}, err
	}
	rows := sync.Pool{New: func() any { return new(Row) }}
	return semel.IDRule{
		Name: m.IDName(),
		Of: func(msg *semel.Message) (semel.ID, error) {
			row := rows.Get().(*Row)
			defer rows.Put(row)
			if err := m.Decode(msg, row); err != nil {
				return semel.ID{}, err
			}
			return m.ID(msg, row)
		},
		Sent: func(msg *semel.Message) string {
			row := rows.Get().(*Row)
			defer rows.Put(row)
			if err := m.Decode(msg, row); err != nil {
				return ""
			}
			return m.Sent(msg, row)
		},
	}, nil
}

// IDName is the rule's recorded name: a changed rule has another one.
func (m *Mapping) IDName() string {
	name := "fields"
	for i, p := range m.idPaths {
		if i > 0 {
			name += ","
		}
		name += " " + p.String()
	}
	if m.topicInID {
		name += " with topic"
	}
	return name
}
