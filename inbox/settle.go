package inbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// settle takes the runs of a delivery, and what the source has beyond it, through
// as many transactions as the bounds ask for. While one batch is written the next
// one is read and decoded.
func (l *lane[T]) settle(ctx context.Context, runs []Run) error {
	if l.cfg.AtMostOnce {
		return l.settleAhead(ctx, runs)
	}
	s := l.stretches(runs)
	queue := l.cutter().cut(slices.DeleteFunc(s, func(s stretch) bool { return !l.accept(s) }))
	if len(queue) == 0 {
		return nil
	}
	l.decodeFirst(&queue[0])
	defer l.unbegin()
	for len(queue) > 0 {
		b := queue[0]
		if err := b.outage(); err != nil {
			for _, b := range queue {
				l.drop(b)
			}
			return err
		}
		next := &upcoming{after: b.n, batches: queue[1:], ready: make(chan struct{})}
		l.next = next
		l.beside = sync.OnceFunc(func() {
			cut, read := l.cutter(), len(next.batches) == 0 && l.reads(b)
			go func() { l.prepare(next, cut, read); close(next.ready) }()
		})
		err := l.commit(ctx, b)
		l.beside() // if there was no transaction
		<-next.ready
		l.unsettled(b)
		for _, s := range next.read {
			l.accept(s) // its batch leaves out what isn't
		}
		queue = next.batches
		if err != nil || l.drained() {
			for _, rest := range queue {
				l.drop(rest)
			}
			return err
		}
	}
	return nil
}

// upcoming is what comes after the batch that is being written.
type upcoming struct {
	after   int           // messages of that batch that are not settled yet
	ready   chan struct{} // closed when what follows is there
	batches []batch
	read    []stretch // what was read for them meanwhile, not accepted yet
}

// spans are those of the next batch, if it is ready and comes after a transaction
// of n messages: nil else.
func (u *upcoming) spans(n int) []Span {
	select {
	case <-u.ready:
	default:
		return nil
	}
	if n != u.after || len(u.batches) == 0 {
		return nil
	}
	return u.batches[0].spans()
}

// prepare decodes the next batch, and reads it first if nothing is there.
func (l *lane[T]) prepare(u *upcoming, cut cutter, read bool) {
	if read {
		if n, _ := l.cfg.Rate.ready(cut.messages); n > 0 {
			runs := l.cfg.Source.More(n)
			l.cfg.Rate.took(messagesOf(runs))
			u.read = l.stretches(runs)
			u.batches = cut.cut(u.read)
		}
	}
	if len(u.batches) > 0 {
		next := &u.batches[0]
		l.decode(*next)
		l.mark(next)
		t := l.sort(*next)
		next.sorted = &t
	}
}

// reads says whether the source is asked for more while the batch is written: at
// least as much waits behind it, and nothing else is due. Else what comes meanwhile
// makes the next batch: one that is read now would leave it out, and it would wait
// for a transaction more.
func (l *lane[T]) reads(b batch) bool {
	waits := int64(0)
	for _, s := range b.stretches {
		waits += max(0, s.end-s.to)
	}
	if waits < int64(b.n) || l.drained() || crowd.waiting.Load() > 0 || time.Since(l.reread) >= l.cfg.Reread {
		return false
	}
	for _, p := range l.parts {
		if !p.proven && time.Until(p.due.at) <= 0 {
			return false
		}
	}
	return true
}

func (l *lane[T]) cutter() cutter { return cutter{l.pace, l.cfg.Batch.Bytes} }

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

// decodeOutage says that messages can't be read because something that is needed
// for that is down.
type decodeOutage struct{ err *semel.OutageError }

func (e *decodeOutage) Error() string { return e.err.Err.Error() }
func (e *decodeOutage) Unwrap() error { return e.err }

// outage is the first one that was met while the batch was decoded. (Else the
// messages that were in flight when it began are buried.)
func (b batch) outage() (err error) {
	b.each(func(_ int, it *Item) {
		if err == nil && it.Err != nil {
			err = outageOf(it)
		}
	})
	return err
}

// outageOf is apart, for what errors.As looks into is allocated.
func outageOf(it *Item) error {
	var out *semel.OutageError
	if errors.As(it.Err, &out) {
		return &decodeOutage{out}
	}
	return nil
}

// mark finds the repeats inside a batch that is decoded.
func (l *lane[T]) mark(b *batch) {
	b.marked, b.repeats = true, nil
	if l.cfg.Memory != MemoryInbox {
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

// stretches are runs of this lane's partitions, and where their items go.
func (l *lane[T]) stretches(runs []Run) []stretch {
	var out []stretch
	n := messagesOf(runs)
	// Two deliveries may be in use. The items of the one before them are settled:
	// theirs is the space, and the effect finds its Loads in it.
	l.slabs[0], l.slabs[1] = l.slabs[1], l.slabs[0]
	if cap(l.slabs[0]) < n {
		l.slabs[0] = make([]Item, n)
	}
	slab := l.slabs[0][:n]
	for _, r := range runs {
		p := l.parts[r.Partition]
		if p == nil {
			continue
		}
		s := stretch{
			part: p, topic: r.TopicID, from: r.From, to: r.To, end: r.End, epochs: r.Epochs, messages: r.Messages,
			items: slab[:len(r.Messages):len(r.Messages)], sums: make([]uint64, len(r.Messages)+1),
		}
		slab = slab[len(r.Messages):]
		for i := range r.Messages {
			s.sums[i+1] = s.sums[i] + Hash(r.TopicID, r.Messages[i].Offset)
		}
		out = append(out, s)
	}
	return out
}

// accept takes a run that continues exactly where the lane stands. Anything else
// is not settled and its partition proved again. (Else: a batch over p0 and p1
// is rolled back because p0 is fenced; the next run of p1 starts 100 higher, and
// since holes are legal nobody sees that 100 messages are gone.)
func (l *lane[T]) accept(s stretch) bool {
	p := s.part
	if !p.proven {
		return false
	}
	if s.from != p.next || s.topic != p.claim.TopicID {
		l.log.Info("a run doesn't continue the watermark", "topic", p.Topic, "partition", p.Number, "from", s.from, "next", p.next)
		l.unprove(p)
		return false
	}
	p.end = s.end
	return true
}

// decode finds IDs and lets the effect look at the messages. A panic is about one
// message, which is dead. (Else the process dies of it after each restart.)
func (l *lane[T]) decode(b batch) {
	for _, s := range b.stretches {
		s.fill()
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
