package inbox

import "github.com/semelhq/semel"

// Item is a message on its way through a batch.
type Item struct {
	semel.Message
	Digest Digest
	// Load belongs to the effect: what it decoded.
	Load any
	// SentID is the ID as the sender wrote it, if the effect knows; for dead letters.
	SentID string
	// Outcome is decided by the machine and by Apply.
	Outcome Outcome
	// Err buries the item without further attempts. In Decode: it can't be read.
	// A semel.OutageError there is no verdict: the batch waits.
	Err error
	// Class goes with Err.
	Class DeadClass
	// Skip settles the item as skipped, without asking or telling any memory: it
	// is not meant to have an effect. Decode sets it; Err comes first.
	Skip bool

	hash     uint64 // its share of the accounts' checksums
	sqlstate string
	attempts int
	verdict  Verdict // of the inbox about its ID
	passing  bool    // Err belongs to one transaction's verdict, not to the message
}

// identified says whether the item has an ID, in a consumer that knows messages
// by IDs. One of zeros is an ID like any other; what has none has an Err.
func (it *Item) identified() bool {
	if it.Err == nil {
		return !it.Skip
	}
	return !it.ID.IsZero()
}

// bury settles the item without effect. A passing verdict is forgotten when the
// batch is tried again.
func (it *Item) bury(class DeadClass, err error, passing bool) {
	it.Outcome, it.Class, it.Err, it.passing = Dead, class, err, passing
}

// retry forgets what Apply made of an item that is fresh.
func (it *Item) retry() { it.Outcome, it.Err, it.Class, it.passing = Applied, nil, "", false }

// reset forgets what an earlier transaction decided.
func (it *Item) reset() {
	if it.passing {
		it.Err, it.Class, it.passing = nil, "", false
		it.sqlstate, it.attempts = "", 0
	}
	it.Outcome, it.verdict = Applied, Fresh
	switch {
	case it.Err != nil:
		it.Outcome = Dead
	case it.Skip:
		it.Outcome = Skipped
	}
}
