package sink

import (
	"strings"
	"unicode/utf8"
)

// Class says what kind of fault a message has; the names are those of dead
// letters.
type Class string

const (
	// ClassDecode: the message can't be read at all.
	ClassDecode Class = "decode"
	// ClassValue: it can be read, but a value can't be what it must be.
	ClassValue Class = "value"
	// ClassMissingID: it carries no message ID where the rule asks for one.
	ClassMissingID Class = "missing-id"
)

// DecodeError is the fault of one message: no other attempt can cure it, and no
// other message is touched by it.
type DecodeError struct {
	Class Class
	// Field is what the fault is about, as an expression or a column's name
	// ("value.order.id", "key"); "" for none in particular.
	Field string
	Why   string
	// Err is a cause that callers may ask for with errors.Is; often nil.
	Err error
}

// maxText bounds what an error says, in bytes: it is stored with the dead letter
// and must never be the reason why burying fails.
const maxText = 500

// Error is valid UTF-8 without NUL and at most some 500 bytes, whatever the
// message held.
func (e *DecodeError) Error() string {
	if e.Field == "" {
		return clean(e.Why)
	}
	return clean(e.Field + ": " + e.Why)
}

// Unwrap gives the cause.
func (e *DecodeError) Unwrap() error { return e.Err }

// clean makes a text that every database can store.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
