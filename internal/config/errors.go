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

// Nearest is the name that is most like the given one, or "" if none is.
func Nearest(name string, names []string) string {
	best, least := "", len(name)/3+2
	slices.Sort(names)
	for _, n := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance counts the letters to add, drop, change or swap.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := [3][]int{}
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
	}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := range x {
		before, above, row := rows[i%3], rows[(i+1)%3], rows[(i+2)%3]
		row[0] = i + 1
		for j := range y {
			change := above[j]
			if x[i] != y[j] {
				change++
			}
			row[j+1] = min(change, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return rows[(len(x)+1)%3][len(y)]
}
