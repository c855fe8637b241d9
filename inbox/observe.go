package inbox

import (
	"time"

	"github.com/semelhq/semel"
)

// State says what a lane is doing.
type State string

const (
	StateStarting State = "starting" // nothing proved yet
	StateRunning  State = "running"
	StatePaused   State = "paused"  // by an operator
	StateOutage   State = "outage"  // waiting for database or broker
	StateHalted   State = "halted"  // Run has returned an error
	StateStopped  State = "stopped" // Run has returned
)

// Observer is told what happens, for metrics. Each function may be nil; each is
// called on the lane's goroutine and must return at once.
type Observer struct {
	// Settled: accounts added to a partition, after COMMIT.
	Settled func(p semel.Partition, added Accounts)
	// Moved: a partition's watermark, and the log's stable end as last seen (-1
	// unknown); newest is the timestamp of the last message below the mark.
	Moved func(m Mark, end int64, newest time.Time)
	// Dropped: a partition is no longer this lane's.
	Dropped func(p semel.Partition)
	// Claimed: a partition has become this lane's.
	Claimed func(r Row)
	// Redelivered: messages below the watermark that the broker would have
	// delivered again.
	Redelivered func(p semel.Partition, n int64)
	// Lost: messages that retention took before they were read, or (at most once) that
	// have no effect; told once, by the lane whose claim finds it.
	Lost func(p semel.Partition, n int64)
	// Collision: an ID that was known with other content.
	Collision func(p semel.Partition)
	// Error: by class, once per failed transaction.
	Error func(c Class, err error)
	// Fenced: a row that didn't match.
	Fenced func(m Mismatch)
	// Batch: a committed transaction.
	Batch func(messages int, took time.Duration)
	// State of the lane, when it changes.
	State func(s State, reason string)
}

// tell calls f if there is one.
func tell[A any](f func(A), a A) {
	if f != nil {
		f(a)
	}
}

func tell2[A, B any](f func(A, B), a A, b B) {
	if f != nil {
		f(a, b)
	}
}
