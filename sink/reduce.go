package sink

// Fate is what becomes of a row among those of its key in one batch.
type Fate uint8

const (
	// Written: the one row of its key that goes to the target, where the stored
	// version may still make it stale.
	Written Fate = iota
	// Superseded: a later row of the batch holds a newer state of the key.
	Superseded
	// Stale: an earlier row of the batch already held a version as high.
	Stale
)

// Reduce picks, for a target that keeps one state per key, the newest row of each
// key of a batch. Duplicates by message ID are taken out before; rows 0 to n-1
// are in the order in which they are applied.
//
// key gives a row's key: equal bytes, equal key. newer says whether row i has a
// greater version than row j of the same key; nil: there is no version, the last
// row wins. With versions the greatest wins, and of equal ones the first to come.
//
// Batches may be cut anywhere and the rows in the target are the same. Of the
// outcomes, one depends on the cut, as its name says: superseded means overtaken
// inside one batch, whatever would have become of the row alone (applied and then
// overtaken, or stale). A row that is applied or stale in a batch is that one by
// one too. If the target finds a written row to be stale, what it superseded is
// older still, hence stale: see [Reduction.StoredNewer].
func Reduce(n int, key func(i int) []byte, newer func(i, j int) bool) Reduction {
	r := Reduction{Fates: make([]Fate, n), By: make([]int, n)}
	best := make(map[string]int, n)
	for i := range n {
		k := key(i)
		r.By[i] = i
		j, ok := best[string(k)]
		switch {
		case !ok:
			best[string(k)] = i
		case newer == nil || newer(i, j):
			best[string(k)] = i
			r.Fates[j], r.By[j] = Superseded, i
		default:
			r.Fates[i], r.By[i] = Stale, j
		}
	}
	// The row that overtook one may have been overtaken: the last is what counts.
	for i := n - 1; i >= 0; i-- {
		if r.Fates[i] == Superseded {
			r.By[i] = r.By[r.By[i]]
		} else if r.Fates[i] == Written {
			r.Rows = append(r.Rows, i)
		}
	}
	for a, b := 0, len(r.Rows)-1; a < b; a, b = a+1, b-1 {
		r.Rows[a], r.Rows[b] = r.Rows[b], r.Rows[a]
	}
	return r
}

// Reduction is the answer of Reduce.
type Reduction struct {
	// Fates and By have one for each row. By is the row that a superseded one
	// gave way to in the end; of a stale one the row that was there before it;
	// of a written one itself.
	Fates []Fate
	By    []int
	// Rows are those to write, in order.
	Rows []int
}

// StoredNewer is to be called with a written row that the target refused as
// stale: it turns what that row superseded stale as well, and returns how many
// that were.
func (r *Reduction) StoredNewer(row int) int {
	n := 0
	for i := range r.Fates {
		if r.By[i] == row && r.Fates[i] != Stale {
			if r.Fates[i] == Superseded {
				n++
			}
			r.Fates[i] = Stale
		}
	}
	return n
}
