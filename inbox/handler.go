package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/semelhq/semel"
)

// perMessage runs a handler message by message.
type perMessage[T any] struct {
	handle   func(context.Context, T, semel.Message) error
	patience func() time.Duration
}

func (perMessage[T]) Decode([]Item) {}

func (h perMessage[T]) Apply(ctx context.Context, tx Tx[T], items []*Item) error {
	began := time.Now()
	for i, it := range items {
		if i > 0 && time.Since(began) > h.patience() {
			return &slowError{done: i}
		}
		if err := call(func() error { return h.handle(ctx, tx.DB(), it.Message) }); err != nil {
			var skip *semel.SkipError
			if !errors.As(err, &skip) {
				return semel.FailedAt(i, err)
			}
			it.Outcome = Skipped
		}
		if tx.Failed() {
			return semel.FailedAt(i, errSwallowed)
		}
	}
	return nil
}

// perBatch runs a handler once for all messages of a batch.
type perBatch[T any] struct {
	handle func(context.Context, T, []semel.Message) error
}

func (perBatch[T]) Decode([]Item) {}

func (h perBatch[T]) Apply(ctx context.Context, tx Tx[T], items []*Item) error {
	ms := make([]semel.Message, len(items))
	for i, it := range items {
		ms[i] = it.Message
	}
	err := call(func() error { return h.handle(ctx, tx.DB(), ms) })
	if err == nil && tx.Failed() {
		return errSwallowed
	}
	var skip *semel.SkipError
	if !errors.As(err, &skip) {
		return err
	}
	var at *semel.FailedAtError
	switch {
	case !errors.As(err, &at):
		for _, it := range items {
			it.Outcome = Skipped
		}
		return nil
	default: // FailedAt(i, Skip(why)): the others of the batch are still to be done
		return fmt.Errorf("a batch handler can skip all messages or none: %w", err)
	}
}

// errSwallowed is a handler's failure that it didn't report.
var errSwallowed = errors.New("a statement failed, its result was left open, or SQL ended the transaction, and the handler returned nil: it can't be committed")

// slowError says that the batch's time was over after some messages.
type slowError struct{ done int }

func (e *slowError) Error() string {
	return fmt.Sprintf("the batch's time was over after %d messages", e.done)
}

// call turns a panic into an error.
func call(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &semel.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
