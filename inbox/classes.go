package inbox

import (
	"fmt"
	"strings"

	"github.com/semelhq/semel"
)

// Class says what an error means to the flow. The store decides it, by SQLSTATE
// and type, never by text.
type Class uint8

const (
	ClassHandler   Class = iota // an error of the handler's own: attempts
	ClassPoison                 // this data is refused for good: isolate and bury
	ClassConflict               // the whole batch again
	ClassOutage                 // wait with back-off; nothing is buried
	ClassRoute                  // nothing to do with the data: halt the route
	ClassFenced                 // the claim isn't ours or the place isn't: prove it again
	ClassAmbiguous              // COMMIT was sent and not answered
	ClassSlow                   // the database's patience was over: smaller batches, and attempts for one alone
)

// String is the class's name in metrics and logs.
func (c Class) String() string {
	return [...]string{"handler", "poison", "conflict", "outage", "route", "fenced", "ambiguous", "slow"}[c]
}

// FencedError names the partitions whose row didn't match the span: another
// claim's token, another topic ID, or another place. What it was is for the
// event log; the answer is the same: claim again and seek.
type FencedError struct{ Mismatches []Mismatch }

// Mismatch is one row that didn't match.
type Mismatch struct {
	semel.Partition
	From int64
	Row  *Row // nil: it is gone
	Mine bool // the token is ours
}

// Kind names what happened, for logs and events.
func (m Mismatch) Kind() string {
	switch {
	case m.Row == nil:
		return "went-back"
	case !m.Mine:
		return "fenced"
	case m.Row.Next < m.From:
		return "went-back"
	default:
		return "answer-lost"
	}
}

func (e *FencedError) Error() string {
	parts := make([]string, len(e.Mismatches))
	for i, m := range e.Mismatches {
		parts[i] = fmt.Sprintf("%s (%s)", m.Partition, m.Kind())
	}
	return "the claim does not hold: " + strings.Join(parts, ", ")
}

// HaltError stops a consumer: something has to be decided by a person.
type HaltError struct {
	semel.Partition        // zero: the whole consumer
	Kind            string // as in events
	Why             string // one line
	Hint            string // what decides it; may be empty
	Err             error  // what was met; may be nil
}

func (e *HaltError) Error() string {
	if e.Partition == (semel.Partition{}) {
		return "halted: " + e.Why
	}
	return "halted at " + e.Partition.String() + ": " + e.Why
}

func (e *HaltError) Unwrap() error { return e.Err }

// ChangedError says that a consumer is not what its record says: another
// cluster, other topics, another rule for IDs or another target under the same
// name.
type ChangedError struct {
	Consumer string
	Changes  []Change
}

// Change is one field of a consumer's record.
type Change struct{ Field, Recorded, Now string }

func (e *ChangedError) Error() string {
	parts := make([]string, len(e.Changes))
	for i, c := range e.Changes {
		parts[i] = fmt.Sprintf("%s was %q and is %q", c.Field, c.Recorded, c.Now)
	}
	return fmt.Sprintf("consumer %s changed: %s", e.Consumer, strings.Join(parts, "; "))
}
