package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds how deep arrays and objects may nest. Deeper ones are refused
// by encoding/json as well.
const maxDepth = 10_000

// A scanner reads one JSON text in one pass. All of it is checked, what the tree
// selects is written to out. It is reused: what it learnt about the order of
// fields makes the next message cheaper.
type scanner struct {
	data []byte
	out  []Value

	flags flags // of the value that is being read
	depth int
	at    int // where it went wrong, and why
	why   string

	round   uint64   // of this text; a node was met if met[node] == round
	met     []uint64 // by node
	next    []*node  // by node: the sibling that came after it the last time
	first   []*node  // by node: the child that came first the last time
	unknown int
	names   nameSet
	name    []byte // an unescaped name
}

// flags is what a string, or any string inside a document, has.
type flags uint8

const (
	hasEscape flags = 1 << iota
	hasNUL          // \u0000
	hasLone         // half of a surrogate pair
	isPlace         // of no text: it was computed of where and when the message stands
)

// node is a name on the way to selected fields.
type node struct {
	number int    // in its tree, from 0
	slot   int    // where its value goes; -1: nowhere
	path   string // for errors
	name   string
	kids   map[string]*node
}

// tree is the set of selected fields of a value or a key; nil selects nothing.
type tree struct {
	root  *node
	nodes int
}

func newTree(root string) *tree {
	return &tree{root: &node{slot: -1, path: root}, nodes: 1}
}

// add selects a field and returns the slot that has it: the one given, or the
// one of an earlier add of the same field.
func (t *tree) add(p Path, slot int) int {
	n := t.root
	for i, name := range p.Names {
		kid := n.kids[name]
		if kid == nil {
			kid = &node{number: t.nodes, slot: -1, name: name, path: Path{Root: p.Root, Names: p.Names[:i+1]}.String()}
			t.nodes++
			if n.kids == nil {
				n.kids = map[string]*node{}
			}
			n.kids[name] = kid
		}
		n = kid
	}
	if n.slot < 0 {
		n.slot = slot
	}
	return n.slot
}

func newScanner(nodes int) *scanner {
	return &scanner{
		met:   make([]uint64, nodes),
		next:  make([]*node, nodes),
		first: make([]*node, nodes),
	}
}

// scan reads a JSON text. Slots of fields that are not there are left as they
// are. With object, the text must be an object.
func (s *scanner) scan(data []byte, t *tree, out []Value, object bool) error {
	s.data, s.out = data, out
	s.flags, s.depth, s.unknown, s.why = 0, 0, 0, ""
	s.round++
	end := s.document(t.root, object)
	s.data, s.out = nil, nil // hold no buffer of the source
	s.names.reset()
	if end < 0 {
		return &DecodeError{Class: ClassDecode, Field: t.root.path, Why: fmt.Sprintf("%s (byte %d)", s.why, s.at+1)}
	}
	return nil
}

// fields reads values that a format has written: what it says of where they stand is
// right, and so are they.
func (s *scanner) fields(data []byte, tops []*node, spans []Span, out []Value) error {
	s.round++
	for i, n := range tops {
		from, to := spans[i][0], spans[i][1]
		if to == 0 {
			continue
		}
		raw := data[from:to:to]
		if n.kids == nil && bytes.IndexByte(raw, '\\') < 0 {
			out[n.slot] = Value{Kind: kindOf(raw[0]), Raw: raw}
			continue
		}
		s.data, s.out = data[:to], out
		s.flags, s.depth, s.why = 0, 0, ""
		end := s.selected(from, n)
		s.data, s.out = nil, nil
		if end != to {
			return &DecodeError{Class: ClassDecode, Field: n.path, Why: s.why}
		}
	}
	return nil
}

func (s *scanner) document(root *node, object bool) int {
	d := s.data
	if bytes.HasPrefix(d, []byte("\uFEFF")) {
		return s.fail(0, "a byte order mark in front of the JSON text")
	}
	// Checked for the whole at eight bytes a step; a byte above 0x7F outside of
	// a string is no JSON anyway.
	if !utf8.Valid(d) {
		return s.fail(invalidUTF8(d), "not valid UTF-8")
	}
	i := s.space(0)
	if i == len(d) {
		return s.fail(i, "no JSON text: empty or only white space")
	}
	if object && d[i] != '{' {
		// What is no JSON at all is called so.
		end := s.value(i, nil)
		if end >= 0 && s.space(end) == len(d) {
			return s.fail(i, "not an object but "+kindOf(d[i]).article())
		}
		if end >= 0 {
			return s.fail(s.space(end), "more after the JSON text")
		}
		return end
	}
	end := s.selected(i, root)
	if end < 0 {
		return end
	}
	if end = s.space(end); end != len(d) {
		return s.fail(end, "more after the JSON text")
	}
	return end
}

func (s *scanner) fail(at int, why string) int {
	s.at, s.why = at, why
	return -1
}

func (s *scanner) space(i int) int {
	for i < len(s.data) && s.data[i] <= ' ' && isSpace(s.data[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// selected reads the value at i, writes it to the slot of n and goes on into it.
func (s *scanner) selected(i int, n *node) int {
	outer := s.flags
	s.flags = 0
	end := s.value(i, n)
	if end >= 0 && n.slot >= 0 {
		s.out[n.slot] = Value{Kind: kindOf(s.data[i]), flags: s.flags, Raw: s.data[i:end:end]}
	}
	s.flags |= outer
	return end
}

// value reads the value at i, where there is a byte that is no white space; n is
// its place in the tree, or nil. It returns the position after it, or -1.
func (s *scanner) value(i int, n *node) int {
	switch c := s.data[i]; c {
	case '"':
		return s.string(i)
	case '{':
		return s.object(i, n)
	case '[':
		return s.array(i)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	default:
		return s.number(i)
	}
}

func (s *scanner) object(i int, n *node) int {
	if s.depth++; s.depth > maxDepth {
		return s.fail(i, "nested too deeply")
	}
	d := s.data
	top := n != nil && n.number == 0
	var last *node
	i = s.space(i + 1)
	if i < len(d) && d[i] == '}' {
		s.depth--
		return i + 1
	}
	for {
		if i >= len(d) || d[i] != '"' {
			return s.unexpected(i, "where a name should be")
		}
		name := i
		outer := s.flags
		s.flags = 0
		if i = s.string(i); i < 0 {
			return i
		}
		escaped := s.flags&hasEscape != 0
		s.flags |= outer

		var kid *node
		if n != nil && (top || n.kids != nil) {
			text := d[name+1 : i-1]
			if escaped {
				s.name = appendUnescaped(s.name[:0], text)
				text = s.name
			}
			kid = s.lookup(n, last, text)
			switch {
			case kid != nil:
				if s.met[kid.number] == s.round {
					return s.fail(name, "the name "+quote(text)+" twice in one object")
				}
				s.met[kid.number] = s.round
				last = kid
			case top:
				s.unknown++
				if !s.names.add(text, escaped) {
					return s.fail(name, "the name "+quote(text)+" twice in one object")
				}
			}
		}

		if i = s.space(i); i >= len(d) || d[i] != ':' {
			return s.unexpected(i, "where a colon should be")
		}
		if i = s.space(i + 1); i >= len(d) {
			return s.unexpected(i, "")
		}
		if kid != nil {
			i = s.selected(i, kid)
		} else {
			i = s.value(i, nil)
		}
		if i < 0 {
			return i
		}
		if i = s.space(i); i >= len(d) {
			return s.unexpected(i, "")
		}
		switch d[i] {
		case ',':
			i = s.space(i + 1)
		case '}':
			s.depth--
			return i + 1
		default:
			return s.unexpected(i, "after a field")
		}
	}
}

// lookup finds the child of that name, first where it was the last time.
func (s *scanner) lookup(n, last *node, name []byte) *node {
	if n.kids == nil {
		return nil
	}
	guess := &s.first[n.number]
	if last != nil {
		guess = &s.next[last.number]
	}
	if g := *guess; g != nil && g.name == string(name) {
		return g
	}
	kid := n.kids[string(name)]
	if kid != nil {
		*guess = kid
	}
	return kid
}

func (s *scanner) array(i int) int {
	if s.depth++; s.depth > maxDepth {
		return s.fail(i, "nested too deeply")
	}
	d := s.data
	i = s.space(i + 1)
	if i < len(d) && d[i] == ']' {
		s.depth--
		return i + 1
	}
	for {
		if i >= len(d) {
			return s.unexpected(i, "")
		}
		if i = s.value(i, nil); i < 0 {
			return i
		}
		if i = s.space(i); i >= len(d) {
			return s.unexpected(i, "")
		}
		switch d[i] {
		case ',':
			i = s.space(i + 1)
		case ']':
			s.depth--
			return i + 1
		default:
			return s.unexpected(i, "after an element")
		}
	}
}

func (s *scanner) literal(i int, word string) int {
	if len(s.data)-i >= len(word) && string(s.data[i:i+len(word)]) == word {
		return i + len(word)
	}
	k := 0
	for i+k < len(s.data) && s.data[i+k] == word[k] {
		k++
	}
	return s.unexpected(i+k, "in the word "+word)
}

func (s *scanner) number(i int) int {
	d := s.data
	if d[i] == '-' {
		i++
	}
	switch {
	case i < len(d) && d[i] == '0':
		i++
	case i < len(d) && isDigit(d[i]):
		i = s.digits(i)
	default:
		return s.unexpected(i, "where a value should be")
	}
	if i < len(d) && d[i] == '.' {
		if i++; i >= len(d) || !isDigit(d[i]) {
			return s.unexpected(i, "in a number")
		}
		i = s.digits(i)
	}
	if i < len(d) && d[i]|0x20 == 'e' {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		if i >= len(d) || !isDigit(d[i]) {
			return s.unexpected(i, "in a number")
		}
		i = s.digits(i)
	}
	return i
}

func (s *scanner) digits(i int) int {
	for i < len(s.data) && isDigit(s.data[i]) {
		i++
	}
	return i
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// string reads the string at i and adds to flags what it has.
func (s *scanner) string(i int) int {
	d := s.data
	i++
	for {
		for i+8 <= len(d) {
			if m := special(binary.LittleEndian.Uint64(d[i:])); m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		for i < len(d) && d[i] != '"' && d[i] != '\\' && d[i] >= ' ' {
			i++
		}
		switch {
		case i == len(d):
			return s.fail(i, "ends inside a string")
		case d[i] == '"':
			return i + 1
		case d[i] == '\\':
			if i = s.escape(i); i < 0 {
				return i
			}
		default:
			return s.fail(i, fmt.Sprintf("the control character %#02x inside a string", d[i]))
		}
	}
}

// special has the high bit of the first byte set that ends a plain stretch of a
// string: a quote, a backslash, a control character. Bits after the first one
// may be wrong.
func special(w uint64) uint64 {
	const ones = 0x0101010101010101
	const high = 0x8080808080808080
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return ((w-ones*' ')&^w | (quote-ones)&^quote | (slash-ones)&^slash) & high
}

func (s *scanner) escape(i int) int {
	d := s.data
	s.flags |= hasEscape
	if i+1 >= len(d) {
		return s.fail(i, "ends inside a string")
	}
	switch d[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return s.unexpected(i+1, "after a backslash")
	}
	r, ok := hex4(d, i+2)
	if !ok {
		return s.fail(i, "an escape without four hexadecimal digits")
	}
	i += 6
	switch {
	case r == 0:
		s.flags |= hasNUL
	case r < 0xD800 || r > 0xDFFF:
	case r < 0xDC00 && i+1 < len(d) && d[i] == '\\' && d[i+1] == 'u':
		low, ok := hex4(d, i+2)
		if ok && low >= 0xDC00 && low <= 0xDFFF {
			return i + 6
		}
		s.flags |= hasLone // what follows is read as an escape of its own
	default:
		s.flags |= hasLone
	}
	return i
}

// hex4 reads four hexadecimal digits at i.
func hex4(d []byte, i int) (rune, bool) {
	if i+4 > len(d) {
		return 0, false
	}
	var r rune
	for _, c := range d[i : i+4] {
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (s *scanner) unexpected(i int, where string) int {
	if i >= len(s.data) {
		return s.fail(len(s.data), "ends too early")
	}
	r, _ := utf8.DecodeRune(s.data[i:])
	why := fmt.Sprintf("unexpected %q", r)
	if where != "" {
		why += " " + where
	}
	return s.fail(i, why)
}

func invalidUTF8(d []byte) int {
	for i := 0; i < len(d); {
		r, size := utf8.DecodeRune(d[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(d)
}

// quote is a name for an error.
func quote(name []byte) string {
	if len(name) > 100 {
		name = name[:100]
	}
	return fmt.Sprintf("%q", name)
}

func kindOf(c byte) Kind {
	switch c {
	case '"':
		return String
	case '{':
		return Object
	case '[':
		return Array
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	}
	return Number
}

// nameSet finds names that repeat. Its hash has a seed of this process, so that
// no message can be made to be slow.
type nameSet struct {
	list  []seenName
	index map[uint64]int // hash to the last one of that hash, once the list is long
	seed  maphash.Seed
	set   bool
}

type seenName struct {
	hash  uint64
	name  []byte
	older int // another one of the same hash, or -1
}

// fewNames is how many are compared one by one.
const fewNames = 16

func (s *nameSet) reset() {
	if len(s.list) > 1024 {
		s.list, s.index = nil, nil // a rare giant leaves nothing behind
	}
	clear(s.list)
	s.list = s.list[:0]
	if len(s.index) > 0 {
		clear(s.index)
	}
}

// add says whether the name is new. It keeps the slice, or a copy.
func (s *nameSet) add(name []byte, copied bool) bool {
	if !s.set {
		s.seed, s.set = maphash.MakeSeed(), true
	}
	h := maphash.Bytes(s.seed, name)
	older := -1
	if len(s.list) < fewNames {
		for i := range s.list {
			if s.list[i].hash == h && bytes.Equal(s.list[i].name, name) {
				return false
			}
		}
	} else {
		if s.index == nil {
			s.index = map[uint64]int{}
		}
		if len(s.index) == 0 {
			for i := range s.list {
				s.link(i)
			}
		}
		if i, ok := s.index[h]; ok {
			older = i
		}
		for i := older; i >= 0; i = s.list[i].older {
			if bytes.Equal(s.list[i].name, name) {
				return false
			}
		}
	}
	if copied {
		name = bytes.Clone(name)
	}
	s.list = append(s.list, seenName{hash: h, name: name, older: -1})
	if len(s.index) > 0 {
		s.link(len(s.list) - 1)
	}
	return true
}

func (s *nameSet) link(i int) {
	h := s.list[i].hash
	s.list[i].older = -1
	if j, ok := s.index[h]; ok {
		s.list[i].older = j
	}
	s.index[h] = i
}
