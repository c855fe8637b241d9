package semel

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
)

// ID identifies a message through every retry of its sender. It is a UUID as it
// was sent, or the first half of a SHA-256 of whatever else identifies the
// message. Its scope is one consumer.
type ID [16]byte

// IsZero says whether there is no ID.
func (id ID) IsZero() bool { return id == ID{} }

// String gives the ID in the form of a UUID.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[:8], id[:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:], id[10:])
	return string(b[:])
}

// IDOf makes an ID of the parts that identify a message together. One part that
// is a UUID in its usual form of 36 characters is taken as it is; anything else
// is hashed with the length of each part before it, so that ("a", "bc") and
// ("ab", "c") differ.
func IDOf(parts ...[]byte) ID {
	if len(parts) == 1 {
		if id, ok := parseUUID(parts[0]); ok {
			return id
		}
	}
	h := sha256.New()
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write(p)
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return ID(sum[:16])
}

func parseUUID(b []byte) (ID, bool) {
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return ID{}, false
	}
	var id ID
	n := 0
	for i := 0; i < 36; {
		if b[i] == '-' {
			i++
			continue
		}
		hi, ok1 := nibble(b[i])
		lo, ok2 := nibble(b[i+1])
		if !ok1 || !ok2 {
			return ID{}, false
		}
		id[n] = hi<<4 | lo
		n++
		i += 2
	}
	return id, true
}

func nibble(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// ErrMissingID is what an [IDRule] answers when the message does not carry what
// the rule asks for.
var ErrMissingID = errors.New("the message carries no message ID")

// IDRule says how a consumer identifies messages. The zero value identifies
// them by position: only what the broker delivers again is recognised.
type IDRule struct {
	// Name is recorded with the consumer, so that a changed rule is noticed.
	Name string
	// Of gives the ID, or ErrMissingID (wrapped or not). nil: by position.
	Of func(m *Message) (ID, error)
	// Sent gives the ID as the sender wrote it, for dead letters and logs; nil:
	// the ID itself.
	Sent func(m *Message) string
}

// ByPosition says whether the rule knows messages by their position alone.
func (r IDRule) ByPosition() bool { return r.Of == nil }

// String is the rule's recorded name.
func (r IDRule) String() string {
	if r.ByPosition() {
		return "position"
	}
	return r.Name
}

// HeaderID takes the ID from a header, usually "message-id". An absent or empty
// header is a missing ID.
func HeaderID(name string) IDRule {
	return IDRule{
		Name: "header " + name,
		Of: func(m *Message) (ID, error) {
			v, ok := m.Header(name)
			if !ok || len(v) == 0 {
				return ID{}, ErrMissingID
			}
			return IDOf(v), nil
		},
		Sent: func(m *Message) string {
			v, _ := m.Header(name)
			return string(v)
		},
	}
}

// KeyID takes the record's key together with its topic as the ID: for topics
// where each key is sent once, like commands keyed by their number.
func KeyID() IDRule {
	return IDRule{
		Name: "key",
		Of: func(m *Message) (ID, error) {
			if m.Key == nil {
				return ID{}, ErrMissingID
			}
			return IDOf([]byte(m.Topic), m.Key), nil
		},
		Sent: func(m *Message) string { return string(m.Key) },
	}
}

// PositionID identifies messages by topic, partition and offset: the watermark
// alone. What a producer sends twice takes effect twice.
func PositionID() IDRule { return IDRule{} }
