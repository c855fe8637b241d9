package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// attempt is one transaction: fence, admit, apply, bury, commit; then the ack. Its
// error is a [FencedError], a slowError, a stopAt, or a failure. met is nil, or why the
// batch failed before: then what the database refuses is sifted out first.
func (l *lane[T]) attempt(ctx context.Context, b batch, met *failure) error {
	if l.cfg.AtMostOnce && !slices.ContainsFunc(b.stretches, func(s stretch) bool { return s.ahead > 0 }) {
		return l.move(ctx, b)
	}
	began := time.Now()
	spans := b.spans()
	// Fence first, so that no effect precedes the check.
	tx, end, err := l.begin(ctx, spans)
	if err != nil {
		return err
	}
	defer end()
	// Not before: with every core busy the database is woken milliseconds late
	// for each short question.
	l.beside()
	todo := l.todo(b)
	fresh, at, err := l.admit(ctx, tx, todo)
	if err != nil {
		return failed(tx, err, -1)
	}
	if met != nil {
		if fresh, at, err = l.sift(ctx, tx, b, fresh, at, met); err != nil {
			return err
		}
	}
	if err := l.apply(ctx, tx, fresh, at); err != nil {
		return err
	}
	letters, marks, err := l.dead(b)
	if err != nil {
		return err
	}
	if len(letters) > 0 {
		if err := tx.Bury(ctx, letters); err != nil {
			return failed(tx, err, -1)
		}
	}
	settled := make([]Settled, len(b.stretches))
	for i, s := range b.stretches {
		settled[i] = Settled{Span: spans[i], Accounts: s.accounts(), Ahead: s.left(), Newest: s.newest()}
	}
	committing, cancel := context.WithTimeout(ctx, l.cfg.CutOff)
	defer cancel()
	if err := l.end(committing, tx, settled, b.n); err != nil {
		return failed(tx, err, -1)
	}
	l.limit = marks
	l.committed(b, settled, time.Since(began))
	return nil
}

// failure is why a transaction didn't commit.
type failure struct {
	class  Class
	err    error
	at     int // the item that failed; -1 unknown
	tx     describer
	source string // who is out, for an outage
}

type describer interface {
	Describe(err error) (sqlstate, text string)
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// stopAt says that everything before an item may be committed, and then the
// consumer halts.
type stopAt struct {
	at   int
	halt *HaltError
}

func (s *stopAt) Error() string { return s.halt.Error() }

// failed is an error that was met inside a transaction.
func failed[T any](tx Tx[T], err error, at int) *failure {
	f := &failure{class: tx.Class(err), err: err, at: at, tx: tx, source: "database"}
	var out *semel.OutageError
	if errors.As(err, &out) {
		f.class, f.source = ClassOutage, "handler"
	}
	return f
}

// named is the failure of an effect over n items, at the one that it names.
func named[T any](tx Tx[T], err error, n int) *failure {
	var at *semel.FailedAtError
	if errors.As(err, &at) && at.Index >= 0 && at.Index < n {
		return failed(tx, at.Err, at.Index)
	}
	return failed(tx, err, -1)
}

func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return nil
}

// begun is a transaction that the COMMIT of the one before it has begun.
type begun[T any] struct {
	tx    Tx[T]
	spans []Span
}

// end commits, and begins the transaction of the next batch where that is ready.
func (l *lane[T]) end(ctx context.Context, tx Tx[T], settled []Settled, n int) error {
	chain, ok := tx.(Chainer[T])
	next := l.next.spans(n)
	if !ok || next == nil {
		return tx.Commit(ctx, settled)
	}
	then, err := chain.CommitAndBegin(ctx, settled, next)
	if err == nil && then != nil {
		l.begun = &begun[T]{then, next}
	}
	return err
}

func (g *begun[T]) serves(spans []Span) bool {
	return slices.EqualFunc(g.spans, spans, func(a, b Span) bool {
		return a.Claim == b.Claim && a.From == b.From && a.To == b.To
	})
}

// unbegin rolls back a transaction that was begun for a batch that doesn't come.
func (l *lane[T]) unbegin() {
	if l.begun != nil {
		l.begun.tx.Rollback(context.Background())
		l.begun = nil
	}
}

// begin opens the transaction; end rolls back what was not committed.
func (l *lane[T]) begin(ctx context.Context, spans []Span) (tx Tx[T], end func(), err error) {
	if g := l.begun; g != nil && g.serves(spans) {
		l.begun = nil
		return g.tx, func() { g.tx.Rollback(context.WithoutCancel(ctx)) }, nil
	}
	l.unbegin()
	beginning, cancel := context.WithCancel(ctx) // lasts as long as the transaction
	late := time.AfterFunc(l.cfg.CutOff/2, cancel)
	tx, err = l.cfg.Store.Begin(beginning, spans)
	late.Stop()
	if err == nil {
		return tx, func() { tx.Rollback(context.WithoutCancel(ctx)); cancel() }, nil
	}
	cancel()
	var fenced *FencedError
	if errors.As(err, &fenced) {
		return nil, nil, fenced
	}
	class := l.cfg.Store.Class(err)
	if class == ClassSlow { // no message had a part in it
		class = ClassConflict
	}
	return nil, nil, &failure{class: class, err: err, at: -1, source: "database"}
}

// todo are the items that may have an effect, or an ID to remember.
type todo struct {
	items   []*Item
	at      []int    // their places in the batch
	repeats []repeat // inside the batch
	used    bool
}

// todo is what was sorted beside the batch before, or is now. Verdicts of an attempt
// are no other's.
func (l *lane[T]) todo(b batch) todo {
	if b.sorted == nil || b.sorted.used {
		return l.sort(b)
	}
	b.sorted.used = true
	return *b.sorted
}

// sort forgets earlier verdicts and takes out repeats inside the batch: the
// first of an ID stands for it, as if they came one by one. Where the target is the
// memory it judges these too: what is stored under the ID may be of a message before
// the first of them.
func (l *lane[T]) sort(b batch) todo {
	t := todo{items: make([]*Item, 0, b.n), at: make([]int, 0, b.n)}
	if t.repeats = b.repeats; !b.marked && l.cfg.Memory == MemoryInbox {
		b.each(func(_ int, it *Item) { it.reset() }) // an ID counts where nothing is wrong
		t.repeats = repeats(b, make(map[semel.ID]*Item, b.n))
	}
	next := t.repeats
	b.each(func(i int, it *Item) {
		it.reset()
		if len(next) > 0 && next[0].it == it {
			it.Outcome = DuplicateID
			next = next[1:]
			return
		}
		if it.Outcome == Skipped {
			return
		}
		t.items, t.at = append(t.items, it), append(t.at, i)
	})
	return t
}

// admit asks the inbox which of the items are fresh, and answers those that are
// to be applied.
func (l *lane[T]) admit(ctx context.Context, tx Tx[T], t todo) (fresh []*Item, at []int, err error) {
	if l.cfg.Memory == MemoryInbox {
		ids := make([]Admission, 0, len(t.items))
		asked := make([]*Item, 0, len(t.items))
		for _, it := range t.items {
			if !it.identified() {
				continue // nothing to remember: it is dead
			}
			ids = append(ids, Admission{ID: it.ID, Digest: it.Digest, Dead: it.Err != nil})
			asked = append(asked, it)
		}
		if len(ids) > 0 {
			verdicts, err := tx.Admit(ctx, ids)
			if err != nil {
				return nil, nil, err
			}
			if len(verdicts) != len(ids) {
				panic(fmt.Sprintf("inbox: %d verdicts for %d IDs", len(verdicts), len(ids)))
			}
			for i, v := range verdicts {
				if v != Fresh {
					l.repeat(asked[i], v)
				}
			}
		}
	}
	for _, r := range t.repeats {
		v, err := l.judgeRepeat(ctx, tx, r)
		if err != nil {
			return nil, nil, err
		}
		l.repeat(r.it, v)
	}
	if !slices.ContainsFunc(t.items, func(it *Item) bool { return it.Outcome != Applied }) {
		return t.items, t.at, nil
	}
	fresh, at = make([]*Item, 0, len(t.items)), make([]int, 0, len(t.items))
	for i, it := range t.items {
		if it.Outcome == Applied {
			fresh, at = append(fresh, it), append(at, t.at[i])
		}
	}
	return fresh, at, nil
}

// repeat settles an item whose ID was known.
func (l *lane[T]) repeat(it *Item, v Verdict) {
	it.verdict = v
	if v == Collision {
		tell(l.cfg.Observe.Collision, it.Position().Log)
		if l.cfg.OnCollision != CollisionDuplicate && it.Err == nil {
			it.bury(DeadCollision, errCollision, true)
			return
		}
	}
	it.Outcome = DuplicateID
}

var errCollision = errors.New("another message with this ID was settled before, with other content")

// judgeRepeat judges a repeat inside the batch as if the messages came one by one:
// by what is kept of the ID, which is of the first of them only if that was fresh.
func (l *lane[T]) judgeRepeat(ctx context.Context, tx Tx[T], r repeat) (Verdict, error) {
	first, it := r.first.Digest, r.it.Digest
	switch {
	case first == it:
		return max(r.first.verdict, Duplicate), nil
	case r.first.verdict == Fresh && differ(first, it):
		return Collision, nil
	case r.first.verdict == Fresh:
		return Duplicate, nil
	}
	vs, err := tx.Admit(ctx, []Admission{{ID: r.it.ID, Digest: it}})
	if err != nil {
		return 0, err
	}
	return vs[0], nil
}

// differ says whether two digests are known to differ.
func differ(a, b Digest) bool { return a != b && a != (Digest{}) && b != (Digest{}) }

// apply makes the effects of the fresh items; at are their places in the batch.
func (l *lane[T]) apply(ctx context.Context, tx Tx[T], fresh []*Item, at []int) error {
	if len(fresh) == 0 {
		return nil
	}
	err := applied(ctx, l.effect, tx, fresh)
	var slow *slowError
	if errors.As(err, &slow) {
		return &slowError{done: at[slow.done]}
	}
	if err != nil {
		f := named(tx, err, len(fresh))
		if f.at >= 0 {
			f.at = at[f.at]
		}
		return f
	}
	for _, it := range fresh {
		if it.Outcome == Dead && it.Class == DeadCollision { // the target itself remembers
			tell(l.cfg.Observe.Collision, it.Position().Log)
		}
	}
	return nil
}

// applied makes the effects of items. What it says of single ones counts only with its
// transaction. (Else what is settled as the repeat of a message that is refused in
// the same batch stays dead when that one is.)
func applied[T any](ctx context.Context, effect Effect[T], tx Tx[T], items []*Item) error {
	err := call(func() error { return effect.Apply(ctx, tx, items) })
	for _, it := range items {
		if err != nil {
			it.retry()
		} else if it.Err != nil {
			it.bury(it.Class, it.Err, true)
		}
	}
	return err
}

// dead collects the letters of a batch, and stops where a policy says that one
// message must not be buried.
func (l *lane[T]) dead(b batch) (letters []DeadLetter, marks limit, err error) {
	marks = l.limit
	b.each(func(i int, it *Item) {
		if err != nil {
			return
		}
		if halt := l.count(&marks, it); halt != nil {
			err = &stopAt{i, halt}
		} else if it.Outcome == Dead {
			letters = append(letters, l.letter(it))
		}
	})
	return letters, marks, err
}

// count takes an item into the limit. A halt says that it must not be buried.
func (l *lane[T]) count(marks *limit, it *Item) *HaltError {
	dead := it.Outcome == Dead
	if dead && l.halts(it.Class) {
		return &HaltError{
			Partition: it.Position().Log, Kind: string(it.Class),
			Why:  fmt.Sprintf("offset %d: %v", it.Offset, it.Err),
			Hint: "mend the message's cause, or let the route bury such messages", Err: it.Err,
		}
	}
	if over := marks.settle(dead); over != nil {
		return &HaltError{
			Partition: it.Position().Log, Kind: "limit",
			Why:  fmt.Sprintf("offset %d: %v; this one: %v", it.Offset, over, it.Err),
			Hint: "if the messages are bad, raise on_error.limit; if the route is, mend it", Err: it.Err,
		}
	}
	return nil
}

func (l *lane[T]) halts(c DeadClass) bool {
	switch c {
	case DeadMissingID:
		return l.cfg.OnError.Halt || l.cfg.OnMissingID == MissingHalt
	case DeadCollision:
		return l.cfg.OnError.Halt || l.cfg.OnCollision == CollisionHalt
	}
	return l.cfg.OnError.Halt
}

func (l *lane[T]) letter(it *Item) DeadLetter {
	d := DeadLetter{
		Message: it.Message, ID: it.ID, Class: it.Class, SQLState: it.sqlstate,
		Error: it.Err.Error(), Attempts: max(it.attempts, 1), SentID: it.SentID,
	}
	if d.SentID == "" && l.cfg.ID.Sent != nil && it.Class != DeadMissingID {
		_ = call(func() error { d.SentID = l.cfg.ID.Sent(&it.Message); return nil }) // it may panic as Of did
	}
	return d
}

// committed is what follows the COMMIT of effects.
func (l *lane[T]) committed(b batch, settled []Settled, took time.Duration) {
	l.advanced(b, settled)
	tell2(l.cfg.Observe.Batch, b.n, took)
	if b.n >= l.pace && l.pace < l.cfg.Batch.Messages {
		l.pace = min(l.pace*2, l.cfg.Batch.Messages)
	}
}

// advanced tells everybody, and the broker, after COMMIT was answered.
func (l *lane[T]) advanced(b batch, settled []Settled) {
	l.outage, l.strikes = outage{}, 0
	l.next.after -= b.n
	o := l.cfg.Observe
	acks := make([]Ack, len(b.stretches))
	for i, s := range b.stretches {
		p := s.part
		p.next, p.moved, p.trouble = settled[i].To, true, trouble{}
		p.ahead = settled[i].Ahead
		p.due = due{}
		if p.careful = max(0, p.careful-len(s.items)); p.next >= p.end {
			p.careful = 0
		}
		acks[i] = l.ack(p.Partition, p.claim.TopicID, p.first, p.next)
		tell2(o.Settled, p.Partition, settled[i].Accounts)
		if o.Moved != nil {
			o.Moved(Mark{p.Partition, p.next}, p.end, s.newest())
		}
	}
	l.cfg.Source.Ack(acks)
}
