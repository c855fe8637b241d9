package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semelhq/semel"
)

// settle takes the runs of one delivery through as many transactions as the
// bounds ask for. While one batch is written the next one is decoded.
func (l *lane[T]) settle(ctx context.Context, runs []Run) error {
	batches := cutter{l.pace, l.cfg.Batch.Bytes}.cut(l.accept(runs))
	if len(batches) == 0 {
		return nil
	}
	l.decodeFirst(&batches[0])
	began := time.Now()
	for i := range batches {
		b := batches[i]
		decoded := make(chan struct{})
		if i+1 < len(batches) {
			go func() {
				l.decode(batches[i+1])
				l.mark(&batches[i+1])
				close(decoded)
			}()
		} else {
			close(decoded)
		}
		err := l.commit(ctx, b)
		<-decoded
		l.ahead = aheadOf(time.Since(began), i+1, l.cfg.Batch.Time)
		l.unsettled(b)
		if err != nil || l.drained() {
			for _, rest := range batches[i+1:] {
				l.drop(rest)
			}
			return err
		}
	}
	return nil
}

// aheadOf is how many batches the next delivery may hold, after one of n took so
// long. The first of a delivery is decoded while nothing is written, so many are
// better; but a rebalance waits until all are settled, and must not wait for
// longer than one slow batch may take.
func aheadOf(took time.Duration, n int, patience time.Duration) int {
	each := max(took/time.Duration(n), 1)
	return int(min(max(patience/each, 1), mostAhead))
}

// decodeFirst decodes with nothing to do meanwhile: in two halves.
func (l *lane[T]) decodeFirst(b *batch) {
	if b.n < 1000 {
		l.decode(*b)
	} else {
		half := make(chan struct{})
		go func() { l.decode(b.slice(0, b.n/2)); close(half) }()
		l.decode(b.slice(b.n/2, b.n))
		<-half
	}
	l.mark(b)
}

// mark finds the repeats inside a batch that is decoded.
func (l *lane[T]) mark(b *batch) {
	b.marked, b.repeats = true, nil
	if l.cfg.Memory == MemoryPosition {
		return
	}
	if l.seen == nil {
		l.seen = make(map[semel.ID]*Item, b.n)
	}
	clear(l.seen)
	b.repeats = repeats(*b, l.seen)
}

// repeats are the items whose ID an earlier one of the batch has.
func repeats(b batch, seen map[semel.ID]*Item) (out []repeat) {
	b.each(func(_ int, it *Item) {
		if !it.identified() {
			return
		}
		if first, ok := seen[it.ID]; ok {
			out = append(out, repeat{it, first})
			return
		}
		seen[it.ID] = it
	})
	return out
}

// accept takes runs that continue exactly where the lane stands. Anything else
// is thrown away and its partition proved again. (Else: a batch over p0 and p1
// is rolled back because p0 is fenced; the next run of p1 starts 100 higher, and
// since holes are legal nobody sees that 100 messages are gone.)
func (l *lane[T]) accept(runs []Run) []stretch {
	var out []stretch
	n := 0
	for _, r := range runs {
		n += len(r.Messages)
	}
	// The items of the delivery before are settled: theirs is the space, and the
	// effect finds its Loads in it.
	if cap(l.slab) < n {
		l.slab = make([]Item, n)
	}
	slab := l.slab[:n]
	for _, r := range runs {
		p := l.parts[r.Partition]
		if p == nil || !p.proven {
			continue
		}
		if r.From != p.next || r.TopicID != p.claim.TopicID {
			l.log.Info("a run doesn't continue the watermark", "topic", p.Topic, "partition", p.Number, "from", r.From, "next", p.next)
			l.unprove(p)
			continue
		}
		p.end = r.End
		s := stretch{
			part: p, from: r.From, to: r.To, epochs: r.Epochs,
			items: slab[:len(r.Messages):len(r.Messages)], sums: make([]uint64, len(r.Messages)+1),
		}
		slab = slab[len(r.Messages):]
		for i := range r.Messages {
			it := &s.items[i]
			*it = Item{Message: r.Messages[i], Load: it.Load, hash: Hash(r.TopicID, r.Messages[i].Offset)}
			s.sums[i+1] = s.sums[i] + it.hash
		}
		out = append(out, s)
	}
	return out
}

// decode finds IDs and lets the effect look at the messages. A panic is about one
// message, which is dead. (Else the process dies of it after each restart.)
func (l *lane[T]) decode(b batch) {
	for _, s := range b.stretches {
		if call(func() error { l.read(s.items); return nil }) == nil {
			continue
		}
		for i := range s.items {
			it := &s.items[i]
			*it = Item{Message: it.Message, Load: it.Load, hash: it.hash}
			if err := call(func() error { l.read(s.items[i : i+1]); return nil }); err != nil {
				it.Err, it.Class = err, DeadDecode
			}
		}
	}
}

func (l *lane[T]) read(items []Item) {
	if l.cfg.ID.Of != nil && !l.cfg.OwnIDs && l.cfg.Memory != MemoryPosition {
		for i := range items {
			it := &items[i]
			id, err := l.cfg.ID.Of(&it.Message)
			it.ID = id
			if err != nil {
				it.Err, it.Class = err, DeadMissingID
			}
		}
	}
	l.effect.Decode(items)
	if l.cfg.Memory == MemoryPosition {
		return
	}
	for i := range items {
		it := &items[i]
		if it.Class == DeadMissingID && l.cfg.OnMissingID == MissingPosition {
			it.Err, it.Class = nil, ""
			it.ID = semel.IDOf([]byte("position"), []byte(it.Position().String()))
		}
	}
}

// drop gives up a batch that was delivered: its partitions are read again from
// their rows.
func (l *lane[T]) drop(b batch) {
	for _, s := range b.stretches {
		if l.parts[s.part.Partition] == s.part && s.part.proven {
			l.unprove(s.part)
		}
	}
}

// unsettled gives up what is left of a batch that was taken through commit. (Else:
// a batch over p0 and p1 is taken apart because of a bad message in p0, p0 is
// fenced on the way, and p1, which stays proven, is read again only when its next
// message arrives.)
func (l *lane[T]) unsettled(b batch) {
	for _, s := range b.stretches {
		if l.parts[s.part.Partition] == s.part && s.part.proven && s.part.next != s.to {
			l.unprove(s.part)
		}
	}
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

// commit settles a batch, in pieces if it must. nil says that the loop goes on:
// what was not settled will be delivered again.
func (l *lane[T]) commit(ctx context.Context, b batch) error {
	began := time.Now()
	for tries := 1; ; tries++ {
		if b = b.proven(); len(b.stretches) == 0 {
			return nil
		}
		err := l.attempt(ctx, b)
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
		case ClassPoison, ClassHandler:
			return l.isolate(ctx, b, f)
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

func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return nil
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

// inPieces settles a batch whose handlers are slower than the batch's time.
func (l *lane[T]) inPieces(ctx context.Context, b batch, size int) error {
	l.pace = max(1, size)
	l.log.Info("handlers are slow: smaller batches", "messages", l.pace)
	for lo := 0; lo < b.n; lo += size {
		if err := l.commit(ctx, b.slice(lo, min(lo+size, b.n))); err != nil || l.drained() {
			return err
		}
	}
	return nil
}

// isolate finds the message that makes a batch fail, keeps the others, and tries
// or buries that one alone. With an unknown culprit the shortest failing prefix
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
		err := l.attempt(ctx, half)
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
			if err := l.commit(ctx, half); err != nil {
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
		err := l.attempt(ctx, b)
		f = asFailure(err)
		switch {
		case err == nil:
			return nil
		case f == nil || f.class != ClassPoison && f.class != ClassHandler:
			return l.commit(ctx, b) // not about the message: as for any batch
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
	it.attempts = p.trouble.attempts
	sqlstate, text := f.tx.Describe(f.err)
	it.sqlstate = sqlstate
	it.bury(deadClass(f.class, sqlstate), &buriedError{text, f.err}, false)
	if err := l.attempt(ctx, b); err != nil {
		var stop *stopAt
		switch g := asFailure(err); {
		case errors.As(err, &stop):
			return stop.halt
		case g == nil || g.class == ClassOutage || g.class == ClassFenced || g.class == ClassAmbiguous || g.class == ClassRoute:
			return l.commit(ctx, b)
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
	}
	return DeadHandler
}

// attempt is one transaction: fence, admit, apply, bury, commit; then the ack.
func (l *lane[T]) attempt(ctx context.Context, b batch) error {
	began := time.Now()
	spans := make([]Span, len(b.stretches))
	for i, s := range b.stretches {
		spans[i] = s.span()
	}
	todo := l.sort(b)
	// Fence first, so that no effect precedes the check.
	beginning, cancel := context.WithCancel(ctx) // lasts as long as the transaction
	defer cancel()
	late := time.AfterFunc(l.cfg.CutOff/2, cancel)
	tx, err := l.cfg.Store.Begin(beginning, spans)
	late.Stop()
	if err != nil {
		var fenced *FencedError
		if errors.As(err, &fenced) {
			return fenced
		}
		return &failure{class: l.cfg.Store.Class(err), err: err, at: -1, source: "database"}
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	fail := func(err error, at int) error {
		f := &failure{class: tx.Class(err), err: err, at: at, tx: tx, source: "database"}
		var out *semel.OutageError
		if errors.As(err, &out) {
			f.class, f.source = ClassOutage, "handler"
		}
		return f
	}
	fresh, at, err := l.admit(ctx, tx, todo)
	if err != nil {
		return fail(err, -1)
	}
	if len(fresh) > 0 {
		if err := call(func() error { return l.effect.Apply(ctx, tx, fresh) }); err != nil {
			var slow *slowError
			if errors.As(err, &slow) {
				return &slowError{done: at[slow.done]}
			}
			var named *semel.FailedAtError
			if errors.As(err, &named) && named.Index >= 0 && named.Index < len(at) {
				return fail(named.Err, at[named.Index])
			}
			return fail(err, -1)
		}
		for _, it := range fresh {
			if it.Err == nil {
				continue
			}
			if it.Class == DeadCollision { // the target itself remembers
				tell(l.cfg.Observe.Collision, it.Position().Log)
			}
			it.bury(it.Class, it.Err, true)
		}
	}
	letters, marks, err := l.dead(b)
	if err != nil {
		return err
	}
	if len(letters) > 0 {
		if err := tx.Bury(ctx, letters); err != nil {
			return fail(err, -1)
		}
	}
	settled := make([]Settled, len(b.stretches))
	for i, s := range b.stretches {
		settled[i] = Settled{Span: spans[i], Accounts: s.accounts()}
	}
	committing, cancel := context.WithTimeout(ctx, l.cfg.CutOff)
	defer cancel()
	if err := tx.Commit(committing, settled); err != nil {
		return fail(err, -1)
	}
	l.limit = marks
	l.committed(b, settled, time.Since(began))
	return nil
}

// todo are the items that may have an effect, or an ID to remember.
type todo struct {
	items   []*Item
	at      []int    // their places in the batch
	repeats []repeat // inside the batch
}

// sort forgets earlier verdicts and takes out repeats inside the batch: the
// first of an ID stands for it, as if they came one by one.
func (l *lane[T]) sort(b batch) todo {
	t := todo{items: make([]*Item, 0, b.n), at: make([]int, 0, b.n)}
	b.each(func(_ int, it *Item) { it.reset() })
	if t.repeats = b.repeats; !b.marked && l.cfg.Memory != MemoryPosition {
		t.repeats = repeats(b, make(map[semel.ID]*Item, b.n))
	}
	next := t.repeats
	b.each(func(i int, it *Item) {
		if len(next) > 0 && next[0].it == it {
			it.Outcome = DuplicateID
			next = next[1:]
			return
		}
		t.items, t.at = append(t.items, it), append(t.at, i)
	})
	return t
}

// digest is the item's own, or made now.
func (l *lane[T]) digest(it *Item) Digest {
	if d, ok := l.effect.(Digester); ok && it.Err == nil && it.Digest == (Digest{}) {
		it.Digest = d.Digest(&it.Message)
	}
	return it.Digest
}

// differ says whether two digests are known to differ.
func differ(a, b Digest) bool { return a != b && a != (Digest{}) && b != (Digest{}) }

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
	for i, it := range t.items {
		if it.Outcome == Applied {
			fresh, at = append(fresh, it), append(at, t.at[i])
		}
	}
	return fresh, at, nil
}

// judgeRepeat judges a repeat inside the batch as if the messages came one by one:
// by what is kept of the ID, which is of the first of them only if that was fresh.
func (l *lane[T]) judgeRepeat(ctx context.Context, tx Tx[T], r repeat) (Verdict, error) {
	first, it := l.digest(r.first), l.digest(r.it)
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

// dead collects the letters of a batch, and stops where a policy says that one
// message must not be buried.
func (l *lane[T]) dead(b batch) (letters []DeadLetter, marks limit, err error) {
	marks = l.limit
	b.each(func(i int, it *Item) {
		if err != nil {
			return
		}
		dead := it.Outcome == Dead
		if dead && l.halts(it.Class) {
			err = &stopAt{i, &HaltError{
				Partition: it.Position().Log, Kind: string(it.Class),
				Why:  fmt.Sprintf("offset %d: %v", it.Offset, it.Err),
				Hint: "mend the message's cause, or let the route bury such messages", Err: it.Err,
			}}
			return
		}
		if over := marks.settle(dead); over != nil {
			err = &stopAt{i, &HaltError{
				Partition: it.Position().Log, Kind: "limit",
				Why:  fmt.Sprintf("offset %d: %v; this one: %v", it.Offset, over, it.Err),
				Hint: "if the messages are bad, raise on_error.limit; if the route is, mend it", Err: it.Err,
			}}
			return
		}
		if dead {
			letters = append(letters, l.letter(it))
		}
	})
	return letters, marks, err
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

// committed tells everybody, and the broker, after COMMIT was answered.
func (l *lane[T]) committed(b batch, settled []Settled, took time.Duration) {
	l.outage, l.strikes = outage{}, 0
	o := l.cfg.Observe
	acks := make([]Ack, len(b.stretches))
	for i, s := range b.stretches {
		p := s.part
		p.next, p.moved, p.trouble = s.to, true, trouble{}
		p.due = due{}
		acks[i] = l.ack(p.Partition, p.claim.TopicID, p.first, p.next)
		tell2(o.Settled, p.Partition, settled[i].Accounts)
		if o.Moved != nil {
			var newest time.Time
			if n := len(s.items); n > 0 {
				newest = s.items[n-1].Timestamp
			}
			o.Moved(Mark{p.Partition, p.next}, p.end, newest)
		}
	}
	l.cfg.Source.Ack(acks)
	tell2(o.Batch, b.n, took)
	if b.n >= l.pace && l.pace < l.cfg.Batch.Messages {
		l.pace = min(l.pace*2, l.cfg.Batch.Messages)
	}
}
