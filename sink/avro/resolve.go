package avro

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/avro"
)

// As reads what s wrote as reader has it: fields that s doesn't have take their
// defaults, those that reader doesn't have are left out, aliases rename, symbols
// that reader doesn't have become its default. Numbers stay what was written,
// whatever type they are promoted to, and so does what they mean: a decimal has the
// scale of its writer. The error says why the two don't fit.
func (s *Schema) As(reader *Schema) (*Schema, error) {
	if err := avro.CheckCompatibility(s.parsed, reader.parsed); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnresolved, err)
	}
	r := resolver{}
	root, err := r.resolve(s.root, reader.root)
	if err != nil {
		return nil, err
	}
	return newSchema(root, s.parsed, reader.root.fields, reader.typ), nil
}

// resolver makes one node of two, each pair once: schemas may contain themselves.
type resolver map[[2]*node]*node

func (c resolver) resolve(w, r *node) (*node, error) {
	if n := c[[2]*node{w, r}]; n != nil {
		return n, nil
	}
	if r.kind == kindUnion && w.kind != kindUnion {
		b := branch(w, r.of)
		if b == nil {
			return nil, fmt.Errorf("%w: no branch for %s", ErrUnresolved, w.src.Type)
		}
		return c.resolve(w, b)
	}
	n := new(node)
	c[[2]*node{w, r}] = n
	if w.kind == kindUnion {
		n.kind = kindUnion
		for _, b := range w.of {
			of, err := c.resolve(b, r)
			if err != nil {
				return nil, err
			}
			n.of = append(n.of, of)
		}
		return n, nil
	}
	*n = *w
	var err error
	switch {
	case w.kind == kindRecord && r.kind == kindRecord:
		n.fields = nil
		err = c.record(n, w, r)
	case w.kind == kindEnum && r.kind == kindEnum:
		n.symbols = symbols(w, r)
	case w.kind == r.kind && (w.kind == kindArray || w.kind == kindMap):
		n.items, err = c.resolve(w.items, r.items)
	case w.kind == kindBytes && r.kind == kindString && w.meaning == plain:
		n.kind = kindString
	case w.kind == kindString && r.kind == kindBytes && w.meaning == plain:
		n.kind, n.meaning, n.scale, n.size = kindBytes, r.meaning, r.scale, r.size
	case w.kind != r.kind && !promotes(w.kind, r.kind):
		err = fmt.Errorf("%w: %s as %s", ErrUnresolved, w.src.Type, r.src.Type)
	case w.meaning == plain && w.kind == r.kind:
		n.meaning, n.scale, n.per, n.size = r.meaning, r.scale, r.per, max(w.size, r.size)
	}
	return n, err
}

// ErrUnresolved says that what one schema wrote can't be read by another.
var ErrUnresolved = errors.New("the reader's schema doesn't fit")

// record writes the reader's fields: in the order of the data, then those that it
// doesn't have.
func (c resolver) record(n, w, r *node) error {
	met := map[int]bool{}
	for i := range w.fields {
		f := w.fields[i]
		at := slices.IndexFunc(r.fields, func(rf field) bool { return rf.name == f.name })
		if at < 0 {
			at = slices.IndexFunc(r.fields, func(rf field) bool { return slices.Contains(rf.src.Aliases, f.name) })
		}
		if at < 0 {
			n.fields = append(n.fields, field{of: f.of, dropped: true})
			continue
		}
		of, err := c.resolve(f.of, r.fields[at].of)
		if err != nil {
			return err
		}
		met[at] = true
		n.fields = append(n.fields, field{name: r.fields[at].name, of: of})
	}
	for i := range r.fields {
		f := &r.fields[i]
		if met[i] {
			continue
		}
		text, err := f.preset()
		if err != nil {
			return err
		}
		n.fields = append(n.fields, field{name: f.name, of: &node{kind: kindPreset, symbols: [][]byte{text}}})
	}
	n.label()
	return nil
}

// preset is the text of a field's default, as if it had been written.
func (f *field) preset() ([]byte, error) {
	if !f.src.HasDefault {
		return nil, fmt.Errorf("%w: no default of %s", ErrUnresolved, f.name)
	}
	of, err := f.src.Type.Schema(avro.WithLaxNames(nil))
	if err != nil {
		return nil, err
	}
	data, err := of.Encode(f.src.Default)
	if err != nil {
		return nil, fmt.Errorf("default of %s: %w", f.name, err)
	}
	return (&Schema{root: f.of}).appendJSON(nil, data)
}

// symbols are those of a writer, by the reader's default where it doesn't have them.
func symbols(w, r *node) [][]byte {
	out := slices.Clone(w.symbols)
	for i, s := range w.src.Symbols {
		if at := slices.Index(r.src.Symbols, s); at < 0 {
			out[i] = r.symbols[slices.Index(r.src.Symbols, r.src.EnumDefault)]
		}
	}
	return out
}

// branch is the branch of a reader's union that a writer's type becomes: its own, or
// the first that it promotes to.
func branch(w *node, of []*node) *node {
	for _, fits := range []func(*node) bool{
		func(r *node) bool { return r.kind == w.kind && r.full == w.full },
		func(r *node) bool { return r.kind == w.kind && named(w, r) },
		func(r *node) bool { return promotes(w.kind, r.kind) },
	} {
		if i := slices.IndexFunc(of, fits); i >= 0 {
			return of[i]
		}
	}
	return nil
}

func promotes(w, r kind) bool {
	switch w {
	case kindInt:
		return r == kindLong || r == kindFloat || r == kindDouble
	case kindLong:
		return r == kindFloat || r == kindDouble
	case kindFloat:
		return r == kindDouble
	case kindString:
		return r == kindBytes
	case kindBytes:
		return r == kindString
	}
	return false
}

// named says whether a reader's type has the writer's name, in any space, or has it
// as an alias.
func named(w, r *node) bool {
	short := w.full[strings.LastIndexByte(w.full, '.')+1:]
	if short == r.full[strings.LastIndexByte(r.full, '.')+1:] {
		return true
	}
	return slices.Contains(r.src.Aliases, w.full) || slices.Contains(r.src.Aliases, short)
}
