package main

import (
	"container/heap"
	"math/rand/v2"
)

// repeats decides which messages are sent again, as new records with the same
// ID, and when: half of them soon, as after a lost answer, half of them much
// later, as after a replay. The same seed makes the same choice.
type repeats struct {
	share  float64
	random *rand.Rand
	sent   int64 // lines seen
	held   int   // bytes kept for later
	queue  repeatQueue
}

const (
	nearRepeat = 10      // at most so many lines later
	farRepeat  = 100_000 // at most so many lines later
	heldMax    = 64 << 20
)

func newRepeats(share float64, seed uint64) *repeats {
	return &repeats{share: share, random: rand.New(rand.NewPCG(seed, seed))}
}

// after is called once for each line sent, and answers the messages to send
// again now.
func (r *repeats) after(o outgoing) []outgoing {
	r.sent++
	if r.share > 0 && r.random.Float64() < r.share {
		wait := 1 + r.random.Int64N(nearRepeat)
		if r.random.IntN(2) == 1 {
			wait = nearRepeat + 1 + r.random.Int64N(farRepeat)
		}
		o.repeat = true
		heap.Push(&r.queue, repeat{r.sent + wait, r.sent, o})
		r.held += o.size()
	}
	var now []outgoing
	for len(r.queue) > 0 && (r.queue[0].due <= r.sent || r.held > heldMax) {
		now = append(now, r.pop())
	}
	return now
}

// rest answers what is still to be sent again when the lines are over.
func (r *repeats) rest() []outgoing {
	var all []outgoing
	for len(r.queue) > 0 {
		all = append(all, r.pop())
	}
	return all
}

func (r *repeats) pop() outgoing {
	o := heap.Pop(&r.queue).(repeat).outgoing
	r.held -= o.size()
	return o
}

// repeat waits for the line number due.
type repeat struct {
	due, first int64
	outgoing
}

type repeatQueue []repeat

func (q repeatQueue) Len() int { return len(q) }
func (q repeatQueue) Less(i, j int) bool {
	return q[i].due < q[j].due || q[i].due == q[j].due && q[i].first < q[j].first
}
func (q repeatQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *repeatQueue) Push(x any)   { *q = append(*q, x.(repeat)) }
func (q *repeatQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
