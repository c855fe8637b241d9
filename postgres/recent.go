package postgres

import "hash/maphash"

// recentKeys is how many keys a half of [recent] holds.
const recentKeys = 1 << 20

// recent remembers roughly which keys were written last, 4 MiB in two halves. What was
// added among the last million keys is found; of others some three in a thousand are
// taken for known. It decides only whether the database is asked: whether a key is
// there, the index says.
type recent struct {
	halves [2]*bloom // the newer one first
	n      int       // keys in that
}

func newRecent() *recent {
	seed := maphash.MakeSeed()
	return &recent{halves: [2]*bloom{newBloom(seed, recentKeys), newBloom(seed, recentKeys)}}
}

func (r *recent) add(key []byte) {
	if r.n == recentKeys {
		r.halves[0], r.halves[1] = r.halves[1], r.halves[0]
		clear(r.halves[0].blocks)
		r.n = 0
	}
	r.n++
	r.halves[0].add(key)
}

func (r *recent) has(key []byte) bool { return r.halves[0].has(key) || r.halves[1].has(key) }

// guess says which keys the database is asked about before rows are sent: those that
// this lane has written lately, and all for a while where keys were refused again that
// it hasn't, as after a restart.
type guess struct {
	recent  *recent
	quiet   int // batches since one was refused
	asksAll int // batches to go in which all are asked
	refused int // batches that were refused, for tests
}

const (
	guessAll   = 50 // batches in which all keys are asked
	guessQuiet = 10 // batches after which a refusal stands alone
)

func newGuess() guess { return guess{recent: newRecent(), quiet: guessQuiet} }

// suspects are the rows to ask about.
func (g *guess) suspects(rows []*tableRow) (ask []*tableRow) {
	all := g.asksAll > 0
	for _, r := range rows {
		if r.key != nil && (all || g.recent.has(r.key)) {
			ask = append(ask, r)
		}
	}
	return ask
}

// refuse notes that a batch was refused for keys that nobody suspected.
func (g *guess) refuse() {
	g.refused++
	if g.quiet < guessQuiet {
		g.asksAll = guessAll
	}
	g.quiet = 0
}

// writes notes what goes into the table. What is rolled back is suspected for nothing.
func (g *guess) writes(rows []*tableRow) {
	for _, r := range rows {
		if r.key != nil {
			g.recent.add(r.key)
		}
	}
}

// wrote notes the end of a batch.
func (g *guess) wrote() {
	g.quiet++
	g.asksAll = max(0, g.asksAll-1)
}
