package sink_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel/sink"
	"pgregory.net/rapid"
)

type change struct {
	key     string
	version int
}

// target is a table with one state per key, the dumb way.
type target map[string]change

func (tg target) write(cs []change, versions bool) {
	for _, c := range cs {
		old, ok := tg[c.key]
		if !ok || !versions || c.version > old.version {
			tg[c.key] = c
		}
	}
}

func TestReducedBatchesLeaveTheSameRows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		versions := rapid.Bool().Draw(t, "versions")
		cs := rapid.SliceOf(rapid.Custom(func(t *rapid.T) change {
			return change{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), rapid.IntRange(0, 4).Draw(t, "version")}
		})).Draw(t, "changes")

		one, many := target{}, target{}
		one.write(cs, versions)
		stale := make([]bool, len(cs)) // one by one, what never took effect
		dumb := target{}
		for i, c := range cs {
			before, ok := dumb[c.key]
			dumb.write([]change{c}, versions)
			stale[i] = versions && ok && c.version <= before.version
		}

		for from := 0; from < len(cs); {
			n := rapid.IntRange(1, len(cs)-from).Draw(t, "batch")
			batch := cs[from : from+n]
			var newer func(i, j int) bool
			if versions {
				newer = func(i, j int) bool { return batch[i].version > batch[j].version }
			}
			r := sink.Reduce(n, func(i int) []byte { return []byte(batch[i].key) }, newer)
			for _, i := range r.Rows {
				if r.Fates[i] != sink.Written || r.By[i] != i {
					t.Fatalf("row %d: fate %d by %d", i, r.Fates[i], r.By[i])
				}
				if old, ok := many[batch[i].key]; versions && ok && batch[i].version <= old.version {
					r.StoredNewer(i)
					continue
				}
				many[batch[i].key] = batch[i]
			}
			for i, f := range r.Fates {
				switch {
				case f == sink.Stale && !stale[from+i]:
					t.Fatalf("row %d is stale, and was applied one by one", from+i)
				case f == sink.Written && stale[from+i]:
					t.Fatalf("row %d was applied, and is stale one by one", from+i)
				}
			}
			from += n
		}
		if fmt.Sprint(one) != fmt.Sprint(many) {
			t.Fatalf("one by one %v, in batches %v", one, many)
		}
	})
}

func TestTheLastOfAKeyWinsWithoutVersions(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "a", "a"}
	r := sink.Reduce(4, func(i int) []byte { return []byte(keys[i]) }, nil)
	if got := fmt.Sprint(r.Fates, r.By, r.Rows); got != "[1 0 1 0] [3 1 3 3] [1 3]" {
		t.Error(got)
	}
}

func TestTheFirstOfEqualVersionsWins(t *testing.T) {
	t.Parallel()
	versions := []int{2, 1, 2, 3, 3}
	r := sink.Reduce(5, func(int) []byte { return nil }, func(i, j int) bool { return versions[i] > versions[j] })
	if got := fmt.Sprint(r.Fates, r.By, r.Rows); got != "[1 2 2 0 2] [3 0 0 3 3] [3]" {
		t.Error(got)
	}
}
