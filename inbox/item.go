package inbox

import "github.com/semelhq/semel"

// Item is a message on its way through a batch.
type Item struct {
	semel.Message
	Digest Digest
	// Load belongs to the effect: what it decoded.
	Load any
	// Outcome is decided by the machine and by Apply.
	Outcome Outcome
	// Err buries the item without further attempts. In Decode: it can't be read.
	Err error
	// Class goes with Err.
	Class DeadClass

	hash     uint64 // its share of the accounts' checksums
	sqlstate string
	attempts int
}
