//go:build !race

package ringmodel_test

import (
	"os"
	"testing"
	"time"
)

// small scopes are looked at in each run of the tests.
var small = []scope{
	{name: "two workers", batches: []int{2, 2}, rotators: 2, versions: 4, crashes: 1},
	{name: "three workers", batches: []int{1, 1, 1}, rotators: 1, versions: 4},
	{name: "two IDs that came in opposite order", batches: []int{1, 1}, demand: [][]int{{0, 1}, {1, 0}}, rotators: 1, versions: 4, crashes: 1},
	{name: "filters", batches: []int{3}, rotators: 1, versions: 8, filters: true},
	{name: "filters of two", batches: []int{1, 1}, rotators: 1, versions: 5, filters: true},
	{name: "going back", batches: []int{1, 1}, rotators: 1, versions: 4, back: true},
	{name: "going back behind a pooler, with filters", batches: []int{2}, rotators: 1, versions: 5, filters: true, back: true, pooler: true},
	{name: "redrive", batches: []int{1, 1}, redrive: true, rotators: 1, versions: 5},
	{name: "redrive, a transaction lost", batches: []int{2}, redrive: true, rotators: 1, versions: 6, crashes: 1},
	{name: "redrive and going back", batches: []int{1}, redrive: true, rotators: 1, versions: 4, back: true},
	{name: "older snapshots", batches: []int{1, 2}, rotators: 1, versions: 6, repeatable: true},
	{name: "savepoints", batches: []int{1, 1}, rotators: 1, versions: 5, savepoints: true},
}

// wide scopes take minutes and memory: they are looked at if RINGMODEL is set.
var wide = []scope{
	{name: "two workers", batches: []int{2, 2}, rotators: 2, versions: 6, crashes: 1},
	{name: "three workers", batches: []int{1, 1, 1}, rotators: 2, versions: 5, crashes: 1},
	{name: "two IDs that came in opposite order", batches: []int{1, 1}, demand: [][]int{{0, 1}, {1, 0}}, rotators: 1, versions: 6, crashes: 1},
	{name: "filters", batches: []int{1, 1}, rotators: 1, versions: 7, filters: true},
	{name: "going back", batches: []int{2, 1}, rotators: 1, versions: 4, back: true},
	{name: "going back behind a pooler, with filters", batches: []int{3}, rotators: 1, versions: 6, filters: true, back: true, pooler: true},
	{name: "redrive", batches: []int{1, 1}, redrive: true, rotators: 2, versions: 6, crashes: 1},
	{name: "redrive, three workers", batches: []int{1, 1, 1}, redrive: true, rotators: 1, versions: 4},
	{name: "redrive and going back", batches: []int{1, 1}, redrive: true, rotators: 1, versions: 4, back: true},
	{name: "savepoints", batches: []int{2, 1}, rotators: 1, versions: 6, savepoints: true},
}

func TestRingHoldsUnderEveryInterleaving(t *testing.T) {
	t.Parallel()
	scopes, most := small, 5_000_000
	if os.Getenv("RINGMODEL") != "" {
		scopes, most = wide, 60_000_000
	}
	for _, sc := range scopes {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			f := explore(sc, most)
			t.Logf("%d states, %d steps deep, in %s", f.states, f.depth, time.Since(began).Round(time.Millisecond))
			if f.failure != "" {
				t.Fatalf("%s\n%s", f.failure, f.trace)
			}
			if !f.whole {
				t.Error("not every state was looked at")
			}
		})
	}
}

// From wherever it comes to, all that is to be done can be done.
func TestEverythingCanBeFinishedFromEveryState(t *testing.T) {
	t.Parallel()
	for _, sc := range []scope{
		{name: "batches", batches: []int{1, 1}, rotators: 1, versions: 4, crashes: 1},
		{name: "two IDs", batches: []int{1, 1}, demand: [][]int{{0, 1}, {1, 0}}, rotators: 1, versions: 3},
		{name: "redrive", batches: []int{1}, redrive: true, rotators: 1, versions: 6, crashes: 1},
		{name: "going back", batches: []int{1}, rotators: 1, versions: 4, filters: true, back: true},
	} {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			states, bad, how := stuck(sc, 500_000)
			t.Logf("%d states", states)
			if bad > 0 {
				t.Errorf("%d states lead nowhere\n%s", bad, how)
			}
		})
	}
}
