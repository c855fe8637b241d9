package config

import (
	"cmp"
	"slices"
	"strings"
)

// Errors are all mistakes of a file, in its order; at least one.
type Errors struct{ List []*Error }

// Error is a line for each mistake, with its hint in a line below.
func (e *Errors) Error() string {
	var b strings.Builder
	for i, x := range e.List {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(x.Error())
		if x.Hint != "" {
			b.WriteString("\n  hint: " + x.Hint)
		}
	}
	return b.String()
}

// Unwrap gives each mistake to errors.As.
func (e *Errors) Unwrap() []error {
	list := make([]error, len(e.List))
	for i, x := range e.List {
		list[i] = x
	}
	return list
}

func (r *reader) errors() error {
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Errors{List: r.errs}
}
