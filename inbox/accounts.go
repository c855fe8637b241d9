package inbox

import (
	"encoding/binary"

	"github.com/semelhq/semel"
)

// Outcome says how a message was settled.
type Outcome uint8

const (
	Applied     Outcome = iota // its effect is committed
	DuplicateID                // its ID was known
	Stale                      // its version is not newer than the stored one
	Superseded                 // an older state of a key, overtaken inside its batch
	Dead                       // buried
	Skipped                    // not meant to have an effect
	outcomes    = iota         // how many there are
)

// Outcomes lists them all, in the order of the columns.
var Outcomes = [outcomes]Outcome{Applied, DuplicateID, Stale, Superseded, Dead, Skipped}

// String is the outcome's name in tables and metrics.
func (o Outcome) String() string {
	return [...]string{"applied", "duplicate", "stale", "superseded", "dead", "skipped"}[o]
}

// Tally counts messages and keeps an order-free checksum of their positions: the
// sum, modulo 2^64, of [Hash]. Two tallies of the same messages are equal,
// whatever the order and the cuts between batches.
type Tally struct {
	Count int64
	Sum   uint64
}

// Add puts one message into the tally.
func (t *Tally) Add(hash uint64) { t.Count++; t.Sum += hash }

// Plus is the tally of both.
func (t Tally) Plus(u Tally) Tally { return Tally{t.Count + u.Count, t.Sum + u.Sum} }

// Minus is what is in t and not in u.
func (t Tally) Minus(u Tally) Tally { return Tally{t.Count - u.Count, t.Sum - u.Sum} }

// Accounts say what became of every message of a stretch. Settled is taken when
// the messages leave Poll, the outcomes when each is decided, so that the
// equation Settled = sum of outcomes can fail, and [Accounts.Check] finds it.
type Accounts struct {
	Settled  Tally
	Outcome  [outcomes]Tally
	Holes    int64 // offsets without a message
	Lost     int64 // offsets that retention took before they were read, and messages without an effect (at most once)
	Redriven int64 // dead letters applied later; outside the equation
}

// Plus is the sum of both.
func (a Accounts) Plus(b Accounts) Accounts {
	a.Settled = a.Settled.Plus(b.Settled)
	for i := range a.Outcome {
		a.Outcome[i] = a.Outcome[i].Plus(b.Outcome[i])
	}
	a.Holes += b.Holes
	a.Lost += b.Lost
	a.Redriven += b.Redriven
	return a
}

// Check says by how much the outcomes differ from what was settled, and whether
// they do.
func (a Accounts) Check() (difference Tally, ok bool) {
	var sum Tally
	for _, o := range a.Outcome {
		sum = sum.Plus(o)
	}
	d := a.Settled.Minus(sum)
	return d, d == Tally{}
}

// Hash is a message's share of a checksum: a mix of topic ID and offset
// (splitmix64's finalizer, twice).
func Hash(topic semel.TopicID, offset int64) uint64 {
	seed := binary.BigEndian.Uint64(topic[:8]) ^ mix(binary.BigEndian.Uint64(topic[8:])+0x9e3779b97f4a7c15)
	return mix(seed + uint64(offset)*0x9e3779b97f4a7c15)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
