package postgres

import "hash/maphash"

const (
	bloomBits   = 16 // a key
	bloomProbes = 6
)

// bloomBlock is a cache line: all bits of a key lie in one.
type bloomBlock [8]uint64

// bloom is a Bloom filter with 16 bits a key: what was added is found, of anything
// else some three in a thousand are taken for known. The hash is seeded at random, so
// that nobody can choose keys that collide.
type bloom struct {
	seed   maphash.Seed
	blocks []bloomBlock
}

// newBloom makes room for so many keys; more make it less sharp, never wrong.
func newBloom(seed maphash.Seed, keys int64) *bloom {
	return &bloom{seed, make([]bloomBlock, max(1, (keys*bloomBits+511)/512))}
}

// bytes is the memory that it takes.
func (b *bloom) bytes() int64 { return int64(len(b.blocks)) * 64 }

// place is a key's block and its bits there.
func (b *bloom) place(key []byte) (at int, bits bloomBlock) {
	h := maphash.Bytes(b.seed, key)
	at = int(h % uint64(len(b.blocks)))
	h = h>>15 | h<<49 // the bits that chose the block come last
	for range bloomProbes {
		bits[h>>6&7] |= 1 << (h & 63)
		h >>= 9
	}
	return at, bits
}

func (b *bloom) add(key []byte) {
	at, bits := b.place(key)
	for i := range bits {
		b.blocks[at][i] |= bits[i]
	}
}

func (b *bloom) has(key []byte) bool {
	at, bits := b.place(key)
	for i := range bits {
		if b.blocks[at][i]&bits[i] != bits[i] {
			return false
		}
	}
	return true
}
