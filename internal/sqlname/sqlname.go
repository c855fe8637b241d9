// Package sqlname reads and writes the names of tables as SQL does: what is not
// quoted folds to lower case, what is quoted is exact. The file and the table
// writer must agree about it, so it is written once.
package sqlname

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table names a table, exactly. Schema is "" where the search path decides.
type Table struct{ Schema, Name string }

// String is the name as SQL, quoted where it must be.
func (t Table) String() string {
	if t.Schema == "" {
		return Quote(t.Name)
	}
	return Quote(t.Schema) + "." + Quote(t.Name)
}

// Quote is one name as SQL, quoted where it must be.
func Quote(s string) string {
	plain := s != ""
	for i, r := range s {
		if !(r == '_' || r >= 'a' && r <= 'z' || i > 0 && r >= '0' && r <= '9') {
			plain = false
		}
	}
	if plain {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// MaxBytes is how long a name can be in PostgreSQL.
const MaxBytes = 63

// ParseTable reads schema.table as SQL does: what is not quoted folds to lower
// case, what is quoted is exact.
func ParseTable(s string) (Table, error) {
	var parts []string
	rest := strings.TrimSpace(s)
	for {
		part, after, err := first(rest)
		if err != nil {
			return Table{}, err
		}
		if len(part) > MaxBytes {
			return Table{}, fmt.Errorf("the name %.20s… has %d bytes, more than the %d that PostgreSQL keeps", part, len(part), MaxBytes)
		}
		parts = append(parts, part)
		rest = strings.TrimSpace(after)
		if rest == "" {
			break
		}
		if rest[0] != '.' {
			r, _ := utf8.DecodeRuneInString(rest)
			return Table{}, fmt.Errorf("unexpected %q after %s; other names are written in double quotes", r, part)
		}
		rest = strings.TrimSpace(rest[1:])
	}
	switch len(parts) {
	case 1:
		return Table{Name: parts[0]}, nil
	case 2:
		return Table{Schema: parts[0], Name: parts[1]}, nil
	}
	return Table{}, errors.New("more than schema and table; the database is chosen by its URL")
}

// first takes one name off the front.
func first(s string) (name, rest string, err error) {
	if s == "" {
		return "", "", errors.New("a name is missing")
	}
	if s[0] == '"' {
		var b strings.Builder
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == 0:
				return "", "", errors.New("a name can't hold a NUL")
			case s[i] != '"':
				b.WriteByte(s[i])
			case i+1 < len(s) && s[i+1] == '"':
				b.WriteByte('"')
				i++
			case b.Len() == 0:
				return "", "", errors.New("a quoted name is empty")
			default:
				return b.String(), s[i+1:], nil
			}
		}
		return "", "", errors.New("a double quote is not closed")
	}
	end := len(s)
	for i, r := range s {
		letter := r == '_' || r >= utf8.RuneSelf && unicode.IsLetter(r) || r|0x20 >= 'a' && r|0x20 <= 'z'
		if !letter && (i == 0 || r != '$' && (r < '0' || r > '9')) {
			end = i
			break
		}
	}
	if end == 0 {
		r, _ := utf8.DecodeRuneInString(s)
		return "", "", fmt.Errorf("unexpected %q where a name should be; such names are written in double quotes", r)
	}
	// Only the letters of ASCII fold, as in a database of UTF-8.
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s[:end]), s[end:], nil
}
