package inbox

import (
	"context"
	"sync"
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
		l.beside = sync.OnceFunc(func() {
			if i+1 == len(batches) {
				close(decoded)
				return
			}
			go func() {
				l.decode(batches[i+1])
				l.mark(&batches[i+1])
				close(decoded)
			}()
		})
		err := l.commit(ctx, b)
		l.beside() // if there was no transaction
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
			part: p, from: r.From, to: r.To, epochs: r.Epochs, messages: r.Messages,
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
