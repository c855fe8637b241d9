package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
)

// commit settles a batch, in pieces if it must. nil says that the loop goes on:
// what was not settled will be delivered again.
func (l *lane[T]) commit(ctx context.Context, b batch) error { return l.answer(ctx, b, nil) }

// answer settles a batch of which an attempt has met an error, nil if there was none
// yet. To try once more before the error is answered would not end where every other
// attempt meets it.
func (l *lane[T]) answer(ctx context.Context, b batch, met error) error {
	if f := asFailure(met); f != nil && f.class == ClassAmbiguous {
		met = nil // begin compares the row, which says whether the piece is in
	}
	began := time.Now()
	var sifting *failure // why the batch is sifted
	sifts := 0
	for tries := 1; ; tries++ {
		if b = b.proven(); len(b.stretches) == 0 {
			return nil
		}
		err := met
		if met = nil; err == nil {
			err = l.attempt(ctx, b, sifting)
		}
		if err == nil {
			return nil
		}
		var slow *slowError
		var stop *stopAt
		switch {
		case errors.As(err, &slow):
			return l.inPieces(ctx, b, slow.done)
		case errors.As(err, &stop):
			if stop.at > 0 {
				if err := l.commit(ctx, b.slice(0, stop.at)); err != nil {
					return err
				}
			}
			return stop.halt
		}
		f := asFailure(err)
		if f == nil {
			l.drop(b)
			return err
		}
		tell2(l.cfg.Observe.Error, f.class, f.err)
		switch f.class {
		case ClassConflict:
			// The whole batch again, but not beyond the group's patience: a row
			// that a stranger locks for minutes must not cost the membership.
			if time.Since(began) > l.cfg.Batch.Time {
				l.log.Info("conflicts for too long: the batch is given back and tried again", "error", f.err)
				l.drop(b)
				return nil
			}
			if !sleep(ctx, backoff(5*time.Millisecond, 500*time.Millisecond, tries)) {
				return ctx.Err()
			}
			if sifting != nil && sifts == maxSifts { // it holds many locks: others may need fewer
				sifting = nil
			} else if sifting != nil {
				sifts++
			}
		case ClassPoison, ClassHandler:
			if sifts == 0 && l.sifts(b, f) {
				sifting, sifts = f, 1
				continue
			}
			return l.isolate(ctx, b, f)
		case ClassSlow:
			if b.n > 1 {
				return l.inPieces(ctx, b, (b.n+1)/2)
			}
			return l.alone(ctx, b, f)
		case ClassRoute:
			if halted(f.err) {
				l.drop(b)
				return f.err
			}
			return &HaltError{
				Kind: "route", Why: f.err.Error(), Err: f.err,
				Hint: "this has nothing to do with the data: mend it, then resume the route",
			}
		case ClassAmbiguous:
			// Never COMMIT again: the row says whether the batch is in.
			l.log.Warn("COMMIT was not answered: the watermark is read again", "error", f.err)
			l.drop(b)
			return nil
		default:
			l.drop(b)
			return f
		}
	}
}

// inPieces settles a batch that is slower than its time, or than the database allows.
func (l *lane[T]) inPieces(ctx context.Context, b batch, size int) error {
	l.pace = max(1, size)
	l.log.Info("batches are slow: smaller ones", "messages", l.pace)
	for lo := 0; lo < b.n; lo += size {
		if err := l.commit(ctx, b.slice(lo, min(lo+size, b.n))); err != nil || l.drained() {
			return err
		}
	}
	return nil
}

// isolate finds the message that makes a batch fail, keeps the others, and tries
// or buries that one alone, where the batch can't be sifted. With an unknown culprit the shortest failing prefix
// is searched by halving, each half a transaction of its own, in order: log2 n
// transactions, and one for what follows.
func (l *lane[T]) isolate(ctx context.Context, b batch, f *failure) error {
	lo, hi := 0, b.n // the first culprit is in here; what is before lo is settled
	if f.at >= 0 {
		if f.at > 0 {
			if err := l.commit(ctx, b.slice(0, f.at)); err != nil {
				return err
			}
		}
		lo, hi = f.at, f.at+1
	} else {
		f = nil // found by halving
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		half := b.slice(lo, mid).proven()
		if half.n < mid-lo {
			l.drop(b)
			return nil
		}
		err := l.attempt(ctx, half, nil)
		g := asFailure(err)
		switch {
		case err == nil:
			lo = mid
		case g != nil && (g.class == ClassPoison || g.class == ClassHandler):
			hi = mid
			if g.at >= 0 {
				return l.isolateRest(ctx, b, lo, g)
			}
		default:
			// anything else is answered as for any batch
			if err := l.answer(ctx, half, err); err != nil {
				return err
			}
			lo = mid
		}
	}
	if err := l.alone(ctx, b.slice(lo, hi), f); err != nil {
		return err
	}
	if hi < b.n {
		return l.commit(ctx, b.slice(hi, b.n))
	}
	return nil
}

// isolateRest goes on with a culprit that a half has named.
func (l *lane[T]) isolateRest(ctx context.Context, b batch, lo int, f *failure) error {
	return l.isolate(ctx, b.slice(lo, b.n), &failure{class: f.class, err: f.err, at: f.at, tx: f.tx})
}

// alone gives one message its attempts. met is its failure in a larger batch, nil
// if it isn't known to have failed. That is an attempt, so that nobody is called
// twice for one, but not the last if others came before it in the transaction: the
// failure may be theirs.
func (l *lane[T]) alone(ctx context.Context, b batch, met *failure) error {
	if b = b.proven(); b.n == 0 {
		return nil
	}
	f := met
	if met == nil || met.at > 0 && !l.retries(b, met) {
		err := l.attempt(ctx, b, nil)
		f = asFailure(err)
		switch {
		case err == nil:
			return nil
		case f == nil || f.class != ClassPoison && f.class != ClassHandler && f.class != ClassSlow:
			return l.answer(ctx, b, err) // not about the message: as for any batch
		}
		tell2(l.cfg.Observe.Error, f.class, f.err)
	}
	it, p := l.only(b)
	retries := l.retries(b, f)
	if p.trouble.offset != it.Offset || p.trouble.attempts == 0 {
		p.trouble = trouble{offset: it.Offset}
	}
	p.trouble.attempts++
	if retries {
		wait := backoff(l.cfg.OnError.Backoff, l.cfg.OnError.MaxBackoff, p.trouble.attempts)
		var after *semel.RetryAfterError
		if errors.As(f.err, &after) {
			wait = after.After
		}
		// Its partition waits; the others of this lane go on.
		l.unprove(p)
		p.due = due{at: time.Now().Add(wait)}
		return nil
	}
	it.condemn(f, p.trouble.attempts, false)
	if err := l.attempt(ctx, b, nil); err != nil {
		var stop *stopAt
		switch g := asFailure(err); {
		case errors.As(err, &stop):
			return stop.halt
		case g == nil || g.class == ClassOutage || g.class == ClassFenced || g.class == ClassAmbiguous || g.class == ClassRoute:
			return l.answer(ctx, b, err)
		default:
			l.log.Error("a message can't be buried: its partition waits", "topic", it.Topic, "partition", it.Partition, "offset", it.Offset, "error", g.err)
			l.unprove(p)
			p.due.after(l.cfg.OnError.Backoff, l.cfg.OnError.MaxBackoff)
			return nil
		}
	}
	return nil
}

// only is the one message of a batch, and its partition.
func (l *lane[T]) only(b batch) (it *Item, p *part) {
	b.each(func(_ int, i *Item) { it = i })
	return it, l.parts[it.Position().Log]
}

// retries says whether the failure of a single message is followed by another
// attempt.
func (l *lane[T]) retries(b batch, f *failure) bool {
	it, p := l.only(b)
	n := 1
	if p.trouble.offset == it.Offset {
		n += p.trouble.attempts
	}
	return semel.Retryable(f.err) && n < l.cfg.attempts(f.class)
}

// condemn buries the item for a failure of its own.
func (it *Item) condemn(f *failure, attempts int, passing bool) {
	sqlstate, text := f.tx.Describe(f.err)
	it.sqlstate, it.attempts = sqlstate, attempts
	it.bury(deadClass(f.class, sqlstate), &buriedError{text, f.err}, passing)
}

// buriedError is an error as a dead letter keeps it.
type buriedError struct {
	text string
	err  error
}

func (e *buriedError) Error() string { return e.text }
func (e *buriedError) Unwrap() error { return e.err }

func deadClass(c Class, sqlstate string) DeadClass {
	if c == ClassPoison && len(sqlstate) == 5 {
		switch sqlstate[:2] {
		case "22":
			return DeadValue
		case "23":
			return DeadConstraint
		}
		if sqlstate == "42601" { // so some types call a value that they can't read
			return DeadValue
		}
	}
	return DeadHandler
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
