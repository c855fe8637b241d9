package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semelhq/semel"
)

// redriveTurn is how long a lane redrives before it looks for messages again.
const redriveTurn = time.Second

// redrive handles dead letters that are marked, between two batches. A pass goes by
// their numbers; what it leaves behind, the next look finds.
func (l *lane[T]) redrive(ctx context.Context) error {
	var mine []semel.Partition
	for _, p := range l.parts {
		if p.proven {
			mine = append(mine, p.Partition)
		}
	}
	for began := time.Now(); l.marked && len(mine) > 0 && !l.drained() && time.Since(began) < redriveTurn; {
		more, err := l.redriveNext(ctx, mine)
		if err != nil {
			return err
		}
		if !more {
			l.marked, l.after = false, 0
		}
	}
	return nil
}

// redriveNext handles one letter; false: there is none. One that fails again is
// buried again, with the new reason.
func (l *lane[T]) redriveNext(ctx context.Context, of []semel.Partition) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(l.cfg.CutOff/2, cancel)
	tx, err := l.cfg.Store.Redrive(ctx, of, l.after)
	late.Stop()
	switch {
	case err != nil && l.cfg.Store.Class(err) == ClassConflict:
		return false, nil // its partition's row is locked: another time
	case err != nil || tx == nil:
		return false, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	letter := tx.Letter()
	l.after = letter.Number
	log := l.log.With("number", letter.Number, "topic", letter.Message.Topic, "partition", letter.Message.Partition, "offset", letter.Message.Offset)
	it := &Item{Message: letter.Message}
	var f *failure
	if letter.Class == DeadCollision {
		it.bury(DeadCollision, &takenError{cmp.Or(letter.SentID, letter.ID.String())}, false)
	} else if f = l.renew(ctx, tx, letter); f == nil {
		f = l.again(ctx, tx, letter, it)
	}
	if f == nil && it.Outcome != Dead {
		if err := tx.Close(ctx, it.Outcome); err != nil {
			f = failed(tx, err, -1)
		}
	}
	var halt *HaltError
	switch {
	case f == nil && it.Outcome == Dead:
		f = &failure{class: ClassPoison, err: it.Err}
		letter.Class, letter.SQLState, letter.Error = it.Class, "", it.Err.Error()
	case f == nil:
		l.over("format")
		log.Info("a dead letter is redriven", "outcome", it.Outcome.String())
		return true, nil
	case ctx.Err() != nil: // the end of the process says nothing about the message
		return false, ctx.Err()
	case f.class == ClassConflict, f.class == ClassAmbiguous: // its row says at the next look whether it is done
		log.Info("a redrive is tried again", "error", f.err)
		return true, nil
	case f.class == ClassOutage:
		return false, f
	case errors.As(f.err, &halt) && halt.Kind == HaltTableChanged: // as a batch would; it stays marked
		return false, halt
	default:
		letter.SQLState, letter.Error = tx.Describe(f.err)
		letter.Class = deadClass(f.class, letter.SQLState)
	}
	tell2(l.cfg.Observe.Error, f.class, f.err)
	tx.Rollback(context.WithoutCancel(ctx))
	log.Warn("a redrive has failed: the letter is buried again", "error", letter.Error)
	return true, l.cfg.Store.Rebury(ctx, letter.Number, letter.DeadLetter)
}

// takenError is why a letter of a collision stays one, whatever the memory still knows:
// closed as a duplicate it would leave no trace of a message that had no effect, and
// under that ID it would be taken for the other, which may be a letter too.
type takenError struct{ id string }

func (e *takenError) Error() string {
	return fmt.Sprintf("message ID %s is another message's, which was settled before: discard this one, or send it again under another ID", e.id)
}

// renew looks at the target as it is now: letters are redriven because it was mended,
// and no batch may have come by since.
func (l *lane[T]) renew(ctx context.Context, tx Redrive[T], letter Letter) *failure {
	e, ok := l.effect.(Renewer[T])
	if !ok {
		return nil
	}
	if err := e.Renew(ctx, tx, letter.Message.Topic); err != nil {
		return failed(tx, err, -1)
	}
	return nil
}

// again makes the effect of a letter's message, unless the memory says that it was
// applied meanwhile.
func (l *lane[T]) again(ctx context.Context, tx Redrive[T], letter Letter, it *Item) *failure {
	items := []Item{*it}
	if err := call(func() error { l.read(items); return nil }); err != nil {
		items[0].Err, items[0].Class = err, DeadDecode
	}
	*it = items[0]
	if err := outageOf(it); err != nil { // it stays marked
		return &failure{class: ClassOutage, err: err, at: -1, tx: tx, source: "format"}
	}
	if it.Err != nil {
		it.Outcome = Dead
		return nil
	}
	if !letter.ID.IsZero() {
		it.ID = letter.ID // what the memory knows it by, whatever the rule says now
	}
	if l.cfg.Memory == MemoryInbox {
		v, err := tx.Readmit(ctx, Admission{ID: it.ID, Digest: it.Digest})
		if err != nil {
			return failed(tx, err, -1)
		}
		if v != Fresh {
			it.Outcome = DuplicateID
			return nil
		}
	}
	err := l.apply(ctx, tx, []*Item{it}, []int{0})
	var f *failure
	if err != nil && !errors.As(err, &f) {
		return failed(tx, err, -1)
	}
	return f
}
