package postgres

import "hash/maphash"

// recentKeys is how many keys a generation of [recent] holds.
const recentKeys = 1 << 20

// recentBlock is a cache line: all bits of a key lie in one.
type recentBlock [8]uint64

// recent remembers roughly which keys were written last: a Bloom filter of two
// generations with 16 bits a key, 4 MiB. What was added among the last million keys
// is found; of others some three in a thousand are taken for known. It decides only
// whether the database is asked: whether a key is there, the index says.
type recent struct {
	seed        maphash.Seed
	generations [2][]recentBlock // the newer one first
	n           int              // keys in that
}

func newRecent() *recent {
	r := &recent{seed: maphash.MakeSeed()}
	for i := range r.generations {
		r.generations[i] = make([]recentBlock, recentKeys*16/512)
	}
	return r
}

// place is a key's block and its six bits there.
func (r *recent) place(key []byte) (at int, bits recentBlock) {
	h := maphash.Bytes(r.seed, key)
	at = int(h % uint64(len(r.generations[0])))
	h = h>>15 | h<<49 // the bits that chose the block come last
	for range 6 {
		bits[h>>6&7] |= 1 << (h & 63)
		h >>= 9
	}
	return at, bits
}

func (r *recent) add(key []byte) {
	if r.n == recentKeys {
		r.generations[0], r.generations[1] = r.generations[1], r.generations[0]
		clear(r.generations[0])
		r.n = 0
	}
	r.n++
	at, bits := r.place(key)
	b := &r.generations[0][at]
	for i := range b {
		b[i] |= bits[i]
	}
}

func (r *recent) has(key []byte) bool {
	at, bits := r.place(key)
	return r.generations[0][at].has(&bits) || r.generations[1][at].has(&bits)
}

func (b *recentBlock) has(bits *recentBlock) bool {
	for i := range b {
		if b[i]&bits[i] != bits[i] {
			return false
		}
	}
	return true
}

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
