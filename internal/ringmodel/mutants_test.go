//go:build !race

package ringmodel_test

import "testing"

var (
	plain   = scope{batches: []int{1, 1}, rotators: 1, versions: 6}
	letters = scope{batches: []int{1, 1}, redrive: true, rotators: 1, versions: 6, crashes: 1}
	clever  = scope{batches: []int{2}, rotators: 1, versions: 7, filters: true}
	goes    = scope{batches: []int{2}, rotators: 1, versions: 6, filters: true, back: true, pooler: true}
)

// Each rule is needed: without it something fails, in a scope that is named beside it.
var mutations = []struct {
	without rule
	in      scope
	fails   string
}{
	{testAtFreezing, plain, "an ID is admitted twice"},
	{testAtBoth, plain, "an ID is admitted twice"},
	{testAtTruncation, plain, "a table is emptied that a transaction's list names"},
	{testAtDrop, plain, "a table is emptied that a transaction's list names"},
	{testLater, plain, "an ID is admitted twice"},
	{statements, plain, "an ID is admitted twice"},
	{tryLock, plain, "a batch waits for a rotator"},
	{lockHeld, plain, "an ID is admitted twice"},
	{both, plain, "an ID is admitted twice"},
	{everyTable, plain, "an ID is admitted twice"},
	{rowLock, scope{batches: []int{1, 1}, rotators: 2, versions: 6}, "an ID is admitted twice"},
	{askFirst, letters, "a batch waits for a rotator"},
	{sorted, scope{batches: []int{1, 1}, demand: [][]int{{0, 1}, {1, 0}}, rotators: 0, versions: 1}, "a deadlock"},
	{yesAsked, clever, "an ID that nobody committed is known"},
	{byToken, scope{batches: []int{2}, rotators: 1, versions: 8, crashes: 1, filters: true}, "an ID is admitted twice"},
	{lookAgain, goes, "an ID is admitted twice"},
	{oneTransaction, goes, "an ID is admitted twice"},
	{readContent, scope{batches: []int{2}, rotators: 1, versions: 6, back: true}, "an ID is admitted twice"},
	{readCommitted, scope{batches: []int{1, 1}, rotators: 1, versions: 6, repeatable: true}, "an ID is admitted twice"},
	{carry, letters, "an ID is admitted twice"},
	{letterLock, letters, "a batch waits for a rotator"},
	{letterMissed, letters, "an ID is admitted twice"},
	{relock, scope{batches: []int{1, 1}, rotators: 1, versions: 6, savepoints: true}, "an ID is admitted twice"},
	{loserDead, letters, "a letter that nobody applied is a duplicate"},
}

func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	for _, mu := range mutations {
		t.Run(string(mu.without), func(t *testing.T) {
			t.Parallel()
			sc := mu.in
			sc.without, sc.seek = []rule{mu.without}, mu.fails
			f := explore(sc, 2_000_000)
			t.Logf("%d states, %d steps deep, whole: %t: %s\n%s", f.states, f.depth, f.whole, f.failure, f.trace)
			if f.failure != mu.fails {
				t.Errorf("%q, want %q", f.failure, mu.fails)
			}
		})
	}
}
