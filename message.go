// Package semel is the vocabulary of the project: messages, their identity,
// their place in a log, and the errors that mean something to the flow.
//
// A broker delivers at least once; only a memory in the same database
// transaction as the effect makes it once. The packages beside this one build
// on these words: [github.com/semelhq/semel/inbox] settles messages once,
// [github.com/semelhq/semel/kafka] reads and writes a Kafka-protocol broker,
// [github.com/semelhq/semel/postgres] keeps the memory in PostgreSQL, and
// [github.com/semelhq/semel/sink] turns messages into rows.
//
// This package imports only the standard library, starts no goroutine and does
// no I/O.
package semel

import (
	"cmp"
	"fmt"
	"time"
)

// Message is the unit that is moved: a value, owned by whoever holds it. Its
// byte slices may point into a buffer that the source reuses: they are valid
// until the handler that was given the message returns. Copy what must live
// longer.
type Message struct {
	Topic     string
	Partition int32
	Offset    int64

	// Timestamp is the time that the log keeps for the message: set by the
	// producer or by the broker, as the topic is configured.
	Timestamp time.Time

	// Key orders messages of one partition; it is never an identity by itself.
	// nil means that there is no key; an empty key is a key.
	Key []byte

	// Value is nil for a tombstone; an empty value is a value.
	Value []byte

	// Headers in the order in which they were sent; names may repeat.
	Headers []Header

	// ID is set before a handler sees the message. Zero if the consumer
	// identifies messages by their position.
	ID ID
}

// Header is a name and a value beside the message. A nil Value differs from an
// empty one.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the last header of that name, and whether there
// is one.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}

// Tombstone says whether the message has no value at all.
func (m *Message) Tombstone() bool { return m.Value == nil }

// Position is where the message lies in its log.
func (m *Message) Position() Position {
	return Position{Log: Partition{Topic: m.Topic, Number: m.Partition}, Offset: m.Offset}
}

// Partition names one log of a topic.
type Partition struct {
	Topic  string
	Number int32
}

// String gives topic/number, as logs and errors write it.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// Compare orders partitions by topic, then by number: -1, 0 or 1.
func (p Partition) Compare(q Partition) int {
	return cmp.Or(cmp.Compare(p.Topic, q.Topic), cmp.Compare(p.Number, q.Number))
}

// Position is a place in a log.
type Position struct {
	Log    Partition
	Offset int64
}

// String gives topic/number@offset, as logs and errors write it.
func (p Position) String() string { return fmt.Sprintf("%s@%d", p.Log, p.Offset) }

// TopicID is a broker's identity of one incarnation of a topic: a topic that is
// deleted and made again has another one. Zero where a broker has none.
type TopicID [16]byte

// String gives the ID as a UUID.
func (t TopicID) String() string { return ID(t).String() }
