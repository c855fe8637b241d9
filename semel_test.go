package semel_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func TestIDOfAUUIDIsTheUUID(t *testing.T) {
	const text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	id := semel.IDOf([]byte(text))
	if id.String() != text {
		t.Errorf("%s became %s", text, id)
	}
	if upper := semel.IDOf([]byte("6BA7B810-9DAD-11D1-80B4-00C04FD430C8")); upper != id {
		t.Errorf("in capitals it is another: %s", upper)
	}
	for _, other := range []string{"6ba7b8109dad11d180b400c04fd430c8", "{" + text + "}", text[:35], text + "0", "6ba7b810-9dad-11d1-80b4-00c04fd430cg"} {
		if semel.IDOf([]byte(other)) == id {
			t.Errorf("%q is taken for the UUID", other)
		}
	}
}

// The rule that other languages follow (semel.id_of in SQL): the first half of
// SHA-256 of each part after its length in eight bytes.
func TestIDOfAnythingElseIsItsHash(t *testing.T) {
	sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x04o-17"))
	if id := semel.IDOf([]byte("o-17")); id != semel.ID(sum[:16]) {
		t.Errorf("got %s", id)
	}
}

func TestPartsOfAnIDDoNotRunTogether(t *testing.T) {
	seen := map[semel.ID][]string{}
	for _, parts := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc"}, {"abc", ""}, {"", "abc"}, {"a|bc"}, {}} {
		var bs [][]byte
		for _, p := range parts {
			bs = append(bs, []byte(p))
		}
		id := semel.IDOf(bs...)
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q are one ID", parts, other)
		}
		seen[id] = parts
	}
}

func TestRulesFindIDs(t *testing.T) {
	m := semel.Message{Topic: "t", Key: []byte("k"), Headers: []semel.Header{
		{Name: "message-id", Value: []byte("first")}, {Name: "message-id", Value: []byte("last")}, {Name: "empty", Value: []byte{}},
	}}
	id, err := semel.HeaderID("message-id").Of(&m)
	if err != nil || id != semel.IDOf([]byte("last")) {
		t.Errorf("of repeated headers the last counts: %s, %v", id, err)
	}
	for _, name := range []string{"empty", "absent"} {
		if _, err := semel.HeaderID(name).Of(&m); !errors.Is(err, semel.ErrMissingID) {
			t.Errorf("header %s: %v", name, err)
		}
	}
	elsewhere := m
	elsewhere.Topic = "u"
	a, _ := semel.KeyID().Of(&m)
	b, _ := semel.KeyID().Of(&elsewhere)
	if a == b {
		t.Error("a key is one ID in two topics")
	}
	m.Key = nil
	if _, err := semel.KeyID().Of(&m); !errors.Is(err, semel.ErrMissingID) {
		t.Errorf("no key: %v", err)
	}
	m.Key = []byte{}
	if _, err := semel.KeyID().Of(&m); err != nil {
		t.Errorf("an empty key is a key: %v", err)
	}
	if r := semel.PositionID(); !r.ByPosition() || r.String() != "position" {
		t.Errorf("%q", r)
	}
}

func TestErrorsSayMoreAndHideNothing(t *testing.T) {
	cause := errors.New("cause")
	for _, err := range []error{
		semel.Permanent(cause), semel.Outage(cause), semel.RetryAfter(time.Second, cause),
		semel.FailedAt(3, cause), fmt.Errorf("handler: %w", semel.Permanent(cause)),
	} {
		if !errors.Is(err, cause) {
			t.Errorf("%v hides its cause", err)
		}
	}
	for err, want := range map[error]bool{
		nil: false, cause: true, semel.Permanent(cause): false, semel.Skip("why"): false,
		semel.RetryAfter(time.Second, cause): true, semel.FailedAt(0, semel.Permanent(cause)): false,
	} {
		if got := semel.Retryable(err); got != want {
			t.Errorf("%v: retryable is %v", err, got)
		}
	}
}
