package sink

import "github.com/semelhq/semel"

// Opener is a step between a message as it was sent and what a mapping reads of
// it. A format (Avro, Protobuf) makes JSON text of bytes; an envelope (Debezium,
// CloudEvents) picks from that text what is meant by value and key. A mapping
// takes its steps one after the other, the format first.
//
// An Opener may be used from several goroutines.
type Opener interface {
	// Open rewrites o, which holds what the step before has made of m: at first
	// m's own value and key. It changes neither m nor bytes that it was given.
	//
	// What is wrong with the message is a *DecodeError. Any other error says
	// nothing about the message, and is handed on as it is.
	Open(m *semel.Message, o *Opened) error
}

// Opened is what steps have made of one message.
type Opened struct {
	// Value is a JSON text; nil: the message has no value, and means a deletion.
	Value []byte
	// Key is what KeyFormat reads; nil: the message has no key.
	Key []byte
	// Envelope is the JSON object around the value, read as envelope; nil: there
	// is none.
	Envelope []byte
	// Before is, of a deletion, the row that was there, as a JSON object; nil: it
	// isn't known.
	Before []byte
	// Skip says why the message is not meant to have an effect; "": it is.
	Skip string
	// Type is what the schema by which Value was written says of it; nil: there is
	// none, or nobody asks.
	Type *Type

	typed       bool     // somebody asks
	source      Value    // where a change comes from
	unavailable []string // fields of the value that the source didn't send

	// Where the fields stand that are taken of the value, see FieldDecoder.
	fields  []string // nil: more is taken
	spans   []Span
	other   int
	located bool // they are known; Value is no JSON text

	buffers [][]byte
	used    int
}

// positioner is an envelope that knows where in its source's log a change was
// made.
type positioner interface {
	position(o *Opened) (number []byte, change Change, err error)
}

// Append gives write an empty buffer to append to, and hands on what it made of
// it. The memory is used again for the next message, hence valid for this one
// alone; steps don't share it.
func (o *Opened) Append(write func(dst []byte) ([]byte, error)) ([]byte, error) {
	if o.used == len(o.buffers) {
		o.buffers = append(o.buffers, nil)
	}
	i := o.used
	o.used++
	dst := o.buffers[i]
	if dst == nil {
		dst = make([]byte, 0, 512) // nil would be a tombstone
	}
	out, err := write(dst[:0])
	o.buffers[i] = out
	return out, err
}

// open takes the steps; without any it costs nothing.
func (m *Mapping) open(msg *semel.Message, row *Row) (*semel.Message, error) {
	if len(m.openers) == 0 {
		row.opened = nil
		return msg, nil
	}
	if row.opened == nil {
		row.opened = new(opened)
	}
	o := row.opened
	if m.fields != nil && o.spans == nil {
		o.spans = make([]Span, len(m.fields))
	}
	o.Opened = Opened{Value: msg.Value, Key: msg.Key, typed: m.typed, buffers: o.buffers, unavailable: o.unavailable[:0], fields: m.fields, spans: o.spans}
	for _, step := range m.openers {
		if err := step.Open(msg, &o.Opened); err != nil {
			return nil, err
		}
		if o.Skip != "" {
			break
		}
	}
	row.Type = ValueType(o.Type, m.openers)
	o.msg = *msg
	o.msg.Value, o.msg.Key = o.Value, o.Key
	return &o.msg, nil
}

// opened is a row's own: its values point into it.
type opened struct {
	Opened
	msg semel.Message
}
