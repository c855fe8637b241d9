//go:build !race

package ringmodel_test

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// found is what was found in a scope.
type found struct {
	states  int
	depth   int
	whole   bool   // every state was looked at
	failure string // "": nothing fails
	trace   string // of the failure, as short as can be
}

// explore looks at every state, those that take fewest steps first, until something
// fails or there are more than most.
func explore(sc scope, most int) found {
	f := search(sc, most, nil)
	if f.failure != "" {
		// Once more, with a memory of where each state came from, and workers kept apart.
		f.trace = search(sc, 4*most, map[uint64]origin{}).trace
	}
	return f
}

type origin struct {
	from uint64
	step step
}

// set is a set of hashes, in half the time and memory of a map.
type set struct {
	slots []uint64 // 0: empty
	n     int
}

// add says whether the hash is new.
func (s *set) add(h uint64) bool {
	h |= 1
	if 2*s.n >= len(s.slots) {
		old := s.slots
		s.slots, s.n = make([]uint64, max(1<<12, 2*len(old))), 0
		for _, o := range old {
			if o != 0 {
				s.add(o)
			}
		}
	}
	for i := h >> 1 & uint64(len(s.slots)-1); ; i = (i + 1) & uint64(len(s.slots)-1) {
		switch s.slots[i] {
		case h:
			return false
		case 0:
			s.slots[i] = h
			s.n++
			return true
		}
	}
}

func hash(s *state) uint64 { return maphash.Comparable(seed, *s) }

func search(sc scope, most int, origins map[uint64]origin) (f found) {
	m := newModel(sc)
	if origins != nil {
		m.sort = false
	}
	s := m.first()
	var seen set
	seen.add(hash(&s))
	now, later := []state{s}, []state(nil)
	var at uint64
	m.out = func(st step, n *state) {
		m.canonical(n)
		h := hash(n)
		if !seen.add(h) {
			return
		}
		later = append(later, *n)
		if origins != nil {
			origins[h] = origin{at, st}
		}
	}
	m.failed = func(st step, _ *state, why string) {
		if f.failure != "" || sc.seek != "" && sc.seek != why {
			return
		}
		f.failure = why
		if origins != nil {
			f.trace = trace(origins, at, st, why)
		}
	}
	for ; len(now) > 0; f.depth++ {
		for i := range now {
			at = hash(&now[i])
			m.next(&now[i])
			if f.states = seen.n; f.failure != "" || f.states > most {
				return f
			}
		}
		now, later = later, now[:0]
	}
	f.whole = true
	return f
}

func trace(origins map[uint64]origin, at uint64, last step, why string) string {
	steps := []step{last}
	for {
		o, ok := origins[at]
		if !ok {
			break
		}
		steps = append(steps, o.step)
		at = o.from
	}
	slices.Reverse(steps)
	var b strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&b, "%3d  %s %s %d\n", i+1, s.who, s.what, s.n)
	}
	return b.String() + "     " + why
}

// stuck looks from which states not everything can be finished any more, and answers
// how many these are, and how one is come to.
func stuck(sc scope, most int) (states, bad int, how string) {
	m := newModel(sc)
	s := m.first()
	numbers := map[uint64]int32{hash(&s): 0}
	all := []state{s}
	var from [][]int32 // the states that each follows
	from = append(from, nil)
	origins := map[uint64]origin{}
	var at int32
	m.out = func(st step, n *state) {
		m.canonical(n)
		h := hash(n)
		i, ok := numbers[h]
		if !ok {
			i = int32(len(all))
			numbers[h] = i
			all = append(all, *n)
			from = append(from, nil)
			origins[h] = origin{hash(&all[at]), st}
		}
		from[i] = append(from[i], at)
	}
	m.failed = func(step, *state, string) {}
	for ; int(at) < len(all); at++ {
		if len(all) > most {
			return len(all), len(all), "more states than can be looked at"
		}
		s := all[at]
		m.next(&s)
	}
	good := make([]bool, len(all))
	var queue []int32
	for i := range all {
		if m.finished(&all[i]) {
			good[i] = true
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, p := range from[i] {
			if !good[p] {
				good[p] = true
				queue = append(queue, p)
			}
		}
	}
	for i := range all {
		if !good[i] {
			if bad++; how == "" {
				how = trace(origins, hash(&all[i]), step{"", "", 0}, "not everything can be finished from here")
			}
		}
	}
	return len(all), bad, how
}
