package postgres

import (
	"encoding/binary"
	"testing"
)

func key(n int) []byte { return binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, uint64(n)) }

func TestRecentFindsTheLastMillionAndLittleElse(t *testing.T) {
	t.Parallel()
	r := newRecent()
	const n = 3*recentKeys + 12345
	for i := range n {
		r.add(key(i))
	}
	for i := n - recentKeys; i < n; i++ {
		if !r.has(key(i)) {
			t.Fatalf("key %d of %d is forgotten", i, n)
		}
	}
	wrong := 0
	const others = 100000
	for i := range others {
		if r.has(key(n + 1 + i)) {
			wrong++
		}
	}
	if wrong > others/100 {
		t.Errorf("%d of %d keys that were never added are taken for known", wrong, others)
	}
}

func TestGuessAsksNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	g := newGuess()
	rows := func(from, to int) (out []*tableRow) {
		for i := from; i < to; i++ {
			out = append(out, &tableRow{key: key(i)})
		}
		return append(out, &tableRow{}) // null in its key: nothing to ask
	}
	want := func(what string, at, from, to int) {
		t.Helper()
		if n := len(g.suspects(rows(from, to))); n != at {
			t.Errorf("%s: %d of %d are asked, want %d", what, n, to-from, at)
		}
	}
	want("nothing was written", 0, 0, 200)
	g.writes(rows(0, 100))
	g.wrote()
	want("half was written", 100, 0, 200)
	g.refuse()
	want("one refusal", 100, 0, 200)
	for range guessQuiet {
		g.wrote()
	}
	g.refuse()
	want("another, later", 100, 0, 200)
	g.wrote()
	g.refuse()
	want("one soon after another", 200, 0, 200)
	for range guessAll {
		g.wrote()
	}
	want("a while later", 100, 0, 200)
}

func BenchmarkRecent(b *testing.B) {
	r := newRecent()
	ks := make([][]byte, 5000)
	for i := range ks {
		ks[i] = key(i)
	}
	for b.Loop() {
		for _, k := range ks {
			r.has(k)
			r.add(k)
		}
	}
}
