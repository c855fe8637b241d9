package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// stream is what is sent, in order, when so many lines are sent with repeats:
// a line's number, negative for a repeat.
func stream(lines int64, share float64, seed uint64) []int64 {
	r := newRepeats(share, seed)
	var sent []int64
	take := func(os []outgoing) {
		for _, o := range os {
			sent = append(sent, -o.number)
		}
	}
	for n := int64(1); n <= lines; n++ {
		sent = append(sent, n)
		take(r.after(outgoing{number: n}))
	}
	take(r.rest())
	return sent
}

func TestRepeatsComeAfterTheirLineOnceEachNearAndFar(t *testing.T) {
	t.Parallel()
	const lines = 50_000
	at, near, far := map[int64]int{}, 0, 0
	for i, n := range stream(lines, 0.2, 7) {
		if n > 0 {
			at[n] = i
			continue
		}
		first, ok := at[-n]
		if !ok {
			t.Fatalf("line %d is repeated before it was sent, or twice", -n)
		}
		delete(at, -n)
		if i-first <= 3*nearRepeat {
			near++
		} else {
			far++
		}
	}
	for what, n := range map[string]int{"near": near, "far": far} {
		if n < lines/10*9/10 || n > lines/10*11/10 {
			t.Errorf("%d %s repeats of %d lines, want about a tenth", n, what, lines)
		}
	}
}

func TestASeedChoosesTheSameRepeats(t *testing.T) {
	t.Parallel()
	if !slices.Equal(stream(1000, 0.3, 5), stream(1000, 0.3, 5)) {
		t.Error("the same seed, another stream")
	}
	if slices.Equal(stream(1000, 0.3, 5), stream(1000, 0.3, 6)) {
		t.Error("another seed, the same stream")
	}
}

func TestLinesAreReadAsTheyAreOfAnyLengthPackedOrNot(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300_000)
	text := "one\r\n\ntwo \xff\n" + long + "\nlast"
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	fmt.Fprint(w, text)
	w.Close()
	name := filepath.Join(t.TempDir(), "lines") // packed, whatever its name
	if err := os.WriteFile(name, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	empty, err := eachLine([]string{"-", name}, strings.NewReader(text), func(l line) error {
		got = append(got, fmt.Sprintf("%d %s", l.number, l.bytes))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1 one", "3 two \xff", "4 " + long, "5 last"}
	if !slices.Equal(got, append(slices.Clone(want), want...)) || empty != 2 {
		t.Errorf("got %d lines and %d empty ones", len(got), empty)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
}
