package sink

import (
	"encoding/binary"
	"math/bits"
)

// Digest says in 16 bytes what a message makes of its row. Messages of one ID
// with another digest are a collision.
//
// It is equal for honest repeats: it covers the mapped values in the order of
// columns, strings by their content, numbers by their value (1.0 is 1), documents
// apart from white space and the order of names; absent is null, and nulls at the
// end count for nothing: a column that the table gets later is the last, and the
// messages from before it are to stay the same. Timestamp,
// partition and offset are no part of it: a repeat has its own. It is the same
// in every process and version, for it is stored. It finds mistakes; it is no
// defence against somebody who wants two messages to look alike.
func (r *Row) Digest() [16]byte {
	h := newHash(0)
	var buf [256]byte
	nulls := 0
	for _, v := range r.Values {
		if v.IsNull() && v.flags&isPlace == 0 {
			nulls++
			continue
		}
		for ; nulls > 0; nulls-- {
			h.word(uint64(Null))
		}
		h.value(v, buf[:])
	}
	if r.Tombstone {
		h.word(1)
	}
	a, b := h.sum()
	var d [16]byte
	binary.BigEndian.PutUint64(d[:8], a)
	binary.BigEndian.PutUint64(d[8:], b)
	return d
}

// hash is two lanes of 64 bits, each as xxHash has four: every step is a
// bijection of the lane for a given word, and of the word for a given lane.
type hash struct{ a, b uint64 }

const (
	prime1 = 0x9E3779B185EBCA87
	prime2 = 0xC2B2AE3D27D4EB4F
	prime3 = 0x165667B19E3779F9
	prime4 = 0x85EBCA77C2B2AE63
	prime5 = 0x27D4EB2F165667C5
)

func newHash(kind uint64) hash {
	h := hash{a: prime5, b: prime3}
	h.word(kind)
	return h
}

func (h *hash) word(w uint64) {
	h.a = bits.RotateLeft64(h.a+w*prime2, 31) * prime1
	h.b = bits.RotateLeft64(h.b^w*prime4, 27)*prime3 + prime5
}

// bytes hashes the length too, so that stretches can't run into one another.
func (h *hash) bytes(b []byte) {
	h.word(uint64(len(b)))
	for len(b) >= 8 {
		h.word(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		h.word(binary.LittleEndian.Uint64(last[:]))
	}
}

func (h *hash) sum() (a, b uint64) {
	a, b = h.a, h.b
	a += bits.RotateLeft64(b, 32) * prime4
	b += bits.RotateLeft64(a, 29) * prime2
	return avalanche(a), avalanche(b)
}

func avalanche(x uint64) uint64 {
	x ^= x >> 33
	x *= prime2
	x ^= x >> 29
	x *= prime3
	return x ^ x>>32
}

func (h *hash) value(v Value, buf []byte) {
	if v.flags&isPlace != 0 {
		h.word(uint64(Time))
		return
	}
	switch v.Kind {
	case Absent, Null:
		h.word(uint64(Null))
	case Int, Time: // where and when, not what: see [Path.IsPlace]
		h.word(uint64(v.Kind))
	case Text, Bytes:
		h.word(uint64(v.Kind))
		h.bytes(v.Raw)
	default:
		*h, _ = jsonHash(*h, v.Raw, 0, buf)
	}
}

// jsonHash goes on with the checked JSON value at i and returns the position
// after it. The hash goes in and out by value, so that it stays on the stack.
func jsonHash(h hash, d []byte, i int, buf []byte) (hash, int) {
	kind := kindOf(d[i])
	h.word(uint64(kind))
	switch kind {
	case Null:
		return h, i + 4
	case Bool:
		h.word(uint64(d[i]))
		if d[i] == 't' {
			return h, i + 4
		}
		return h, i + 5
	case Number:
		end := i
		for end < len(d) && (isDigit(d[end]) || d[end] == '-' || d[end] == '+' || d[end] == '.' || d[end]|0x20 == 'e') {
			end++
		}
		h.number(d[i:end])
		return h, end
	case String:
		end := h.string(d, i, buf)
		return h, end
	case Array:
		n := uint64(0)
		for i = skipSpace(d, i+1); d[i] != ']'; i = skipComma(d, i) {
			h, i = jsonHash(h, d, i, buf)
			n++
		}
		h.word(n)
		return h, i + 1
	}
	// The sum of its members, so their order is no matter.
	var a, b, n uint64
	for i = skipSpace(d, i+1); d[i] != '}'; i = skipComma(d, i) {
		m := newHash(uint64(Object))
		i = m.string(d, i, buf)
		i = skipSpace(d, skipSpace(d, i)+1) // the colon
		m, i = jsonHash(m, d, i, buf)
		x, y := m.sum()
		a, b, n = a+x, b+y, n+1
	}
	h.word(n)
	h.word(a)
	h.word(b)
	return h, i + 1
}

func (h *hash) string(d []byte, i int, buf []byte) int {
	from := i + 1
	escaped := false
	for i++; d[i] != '"'; i++ {
		if d[i] == '\\' {
			escaped = true
			i++
		}
	}
	body := d[from:i]
	if escaped {
		body = appendUnescaped(buf[:0], body)
	}
	h.bytes(body)
	return i + 1
}

// number hashes the value of a number, not its literal.
func (h *hash) number(b []byte) {
	dec, _ := ParseDecimal(b)
	x, y, point := dec.Significant()
	if len(x)+len(y) == 0 {
		h.word(0) // zero, whatever its sign
		return
	}
	sign := uint64(1)
	if dec.Negative {
		sign = 2
	}
	h.word(sign)
	h.word(uint64(point))
	// The two stretches as if they were one.
	h.word(uint64(len(x) + len(y)))
	var w uint64
	n := 0
	for _, part := range [2][]byte{x, y} {
		for _, c := range part {
			w = w<<8 | uint64(c)
			if n++; n%8 == 0 {
				h.word(w)
				w = 0
			}
		}
	}
	if n%8 != 0 {
		h.word(w)
	}
}

func skipSpace(d []byte, i int) int {
	for isSpace(d[i]) {
		i++
	}
	return i
}

// skipComma goes to the next element, or to the bracket that closes.
func skipComma(d []byte, i int) int {
	i = skipSpace(d, i)
	if d[i] == ',' {
		i = skipSpace(d, i+1)
	}
	return i
}
