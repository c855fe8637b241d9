package semel

import (
	"errors"
	"fmt"
	"time"
)

// The errors below are how a handler says more than "it failed". Each wraps the
// reason, so that errors.Is and errors.As see through it.

// SkipError settles the message without an effect, on purpose.
type SkipError struct{ Why string }

func (e *SkipError) Error() string { return "skipped: " + e.Why }

// Skip settles the message without an effect; it is counted as skipped. Decide
// before you write: what the handler wrote for this message before it returned
// Skip stays in the transaction.
func Skip(why string) error { return &SkipError{Why: why} }

// PermanentError says that no further attempt can succeed.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return "permanent: " + e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent buries the message at once, without further attempts.
func Permanent(err error) error { return &PermanentError{Err: err} }

// OutageError says that something that every message needs is down.
type OutageError struct{ Err error }

func (e *OutageError) Error() string { return "outage: " + e.Err.Error() }
func (e *OutageError) Unwrap() error { return e.Err }

// Outage waits with back-off, without end, and spends no attempt: for a service
// that all messages need and that is down.
func Outage(err error) error { return &OutageError{Err: err} }

// RetryAfterError asks for another attempt after a time of the handler's choice.
type RetryAfterError struct {
	After time.Duration
	Err   error
}

func (e *RetryAfterError) Error() string { return fmt.Sprintf("retry after %s: %v", e.After, e.Err) }
func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter spends an attempt and makes the next one not before d has passed.
func RetryAfter(d time.Duration, err error) error { return &RetryAfterError{After: d, Err: err} }

// FailedAtError names the message of a batch that failed.
type FailedAtError struct {
	Index int
	Err   error
}

func (e *FailedAtError) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.Index, e.Err)
}
func (e *FailedAtError) Unwrap() error { return e.Err }

// FailedAt is for batch handlers: the i-th message of the batch (from 0) is the
// one that failed. Without it the failing message is searched by halving.
func FailedAt(i int, err error) error { return &FailedAtError{Index: i, Err: err} }

// PanicError is a panic of a handler, with its stack. It counts as an error of
// the handler.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// ErrFenced says that a claim on a partition doesn't hold: another consumer has
// claimed it since, the database went back in time, or what was to be settled is
// settled already. The answer is the same to each: roll back, and if the partition
// is still yours claim it again and seek to what the claim answers.
var ErrFenced = errors.New("the claim does not hold")

// Retryable says whether another attempt may succeed, as far as the error tells:
// false for [Permanent] and [Skip].
func Retryable(err error) bool {
	var p *PermanentError
	var s *SkipError
	return err != nil && !errors.As(err, &p) && !errors.As(err, &s)
}
