package inbox

import (
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// part is a partition of this lane.
type part struct {
	semel.Partition
	claim  Claim
	first  int64  // the first position ever claimed: acks are signed with it
	next   int64  // the watermark, as last read or written by this lane
	end    int64  // the log's stable end, as last seen
	proven bool   // the claim is ours and the source stands at next
	due    due    // when to prove it (again)
	moved  bool   // an advance has compared the row since the last re-read
	ahead  *Ahead // as the row has it
	suspicion
	trouble
}

// trouble is the message at the head of a partition that fails.
type trouble struct {
	offset   int64
	attempts int
}

// stretch is a piece of a run inside a batch.
type stretch struct {
	part     *part
	topic    semel.TopicID
	from, to int64
	end      int64 // the log's, as the run said
	ahead    int64 // at most once: where the watermark was moved to, before the effect; 0: it wasn't
	epochs   []Epoch
	messages []semel.Message // as Poll gave them
	items    []Item          // theirs, once filled
	sums     []uint64        // sums[i] is the checksum of the items before i; one more than items
}

// batch shares one transaction; its stretches are in the order of delivery, each
// partition's one after the other.
type batch struct {
	stretches []stretch
	n         int
	repeats   []repeat // in order, if marked
	marked    bool
	sorted    *todo // while nothing has been tried with it
}

// repeat is an item whose ID an earlier one of the batch has.
type repeat struct{ it, first *Item }

func (b *batch) add(s stretch) {
	b.stretches = append(b.stretches, s)
	b.n += len(s.items)
}

// slice gives the items lo <= i < hi as a batch of their own. Holes belong to
// the piece before them, so pieces join without a gap.
func (b batch) slice(lo, hi int) batch {
	var out batch
	at := 0
	for _, s := range b.stretches {
		from, to := max(lo-at, 0), min(hi-at, len(s.items))
		at += len(s.items)
		if len(s.items) == 0 { // goes with the items before it
			if (lo < at || lo == 0) && at <= hi {
				out.add(s)
			}
			continue
		}
		if from >= to {
			continue
		}
		out.add(s.cut(from, to))
	}
	return out
}

func (s stretch) cut(i, j int) stretch {
	c := stretch{part: s.part, topic: s.topic, from: s.from, to: s.to, end: s.end, ahead: s.ahead, messages: s.messages[i:j], items: s.items[i:j:j], sums: s.sums[i : j+1]}
	if i > 0 {
		c.from = s.messages[i].Offset
	}
	if j < len(s.items) {
		c.to = s.messages[j].Offset
	}
	for _, e := range s.epochs {
		if e.First < c.to && (e.First >= c.from || i == 0) {
			c.epochs = append(c.epochs, e)
		}
	}
	return c
}

// fill makes the items. It is done batch by batch, beside writing.
func (s stretch) fill() {
	for i := range s.messages {
		it := &s.items[i]
		*it = Item{Message: s.messages[i], Load: it.Load, hash: s.sums[i+1] - s.sums[i]}
	}
}

// proven leaves out partitions whose place is no longer sure.
func (b batch) proven() batch {
	var out batch
	if !slices.ContainsFunc(b.stretches, func(s stretch) bool { return !s.part.proven || s.part.next != s.span().From }) {
		return b
	}
	for _, s := range b.stretches {
		if s.part.proven && s.part.next == s.span().From {
			out.add(s)
		}
	}
	return out
}

// settledTally is what left Poll in this stretch, whatever became of it.
func (s stretch) settledTally() Tally {
	n := len(s.sums) - 1
	return Tally{Count: int64(n), Sum: s.sums[n] - s.sums[0]}
}

// accounts adds up the outcomes of a decided stretch.
func (s stretch) accounts() Accounts {
	a := Accounts{Settled: s.settledTally()}
	for i := range s.items {
		it := &s.items[i]
		a.Outcome[it.Outcome].Add(it.hash)
	}
	if a.Holes = (s.to - s.from) - a.Settled.Count; s.ahead > 0 {
		a.Holes, a.Lost = 0, -a.Settled.Count
	}
	return a
}

func (b batch) spans() []Span {
	spans := make([]Span, len(b.stretches))
	for i, s := range b.stretches {
		spans[i] = s.span()
	}
	return spans
}

// span is what of the partition's row is compared and written.
// newest is the record time of the last message; zero: there is none.
func (s stretch) newest() time.Time {
	if n := len(s.items); n > 0 {
		return s.items[n-1].Timestamp
	}
	return time.Time{}
}

func (s stretch) span() Span {
	if s.ahead > 0 {
		return Span{Claim: s.part.claim, From: s.ahead, To: s.ahead}
	}
	return Span{Claim: s.part.claim, From: s.from, To: s.to, Epochs: s.epochs}
}

// each visits the items in order.
func (b batch) each(f func(i int, it *Item)) {
	i := 0
	for _, s := range b.stretches {
		for k := range s.items {
			f(i, &s.items[k])
			i++
		}
	}
}

// cutter makes batches of runs.
type cutter struct {
	messages, bytes int
}

// cut turns runs into batches within the bounds. A batch holds at least one
// message. Runs without messages (only markers or holes) move the watermark too.
func (c cutter) cut(stretches []stretch) []batch {
	var out []batch
	var b batch
	size := 0
	flush := func() {
		if len(b.stretches) > 0 {
			out = append(out, b)
		}
		b, size = batch{}, 0
	}
	for _, s := range stretches {
		begin := 0
		for i := range s.items {
			w := len(s.messages[i].Key) + len(s.messages[i].Value)
			full := b.n+(i-begin) >= c.messages || size+w > c.bytes
			if full && b.n+(i-begin) > 0 {
				if i > begin {
					b.add(s.cut(begin, i))
				}
				flush()
				begin = i
			}
			size += w
		}
		if begin == 0 {
			b.add(s)
		} else {
			b.add(s.cut(begin, len(s.items)))
		}
	}
	flush()
	return out
}
