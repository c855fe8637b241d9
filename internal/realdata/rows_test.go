package realdata_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
)

// digest is that of digest.py: of the lines sorted by their bytes.
func digest(lines [][]byte) string {
	slices.SortFunc(lines, bytes.Compare)
	h := sha256.New()
	for _, l := range lines {
		h.Write(l)
		h.Write([]byte{'\n'})
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// copied are the rows of a query as COPY writes text.
func (s *station) copied(query string) [][]byte {
	s.t.Helper()
	var b bytes.Buffer
	if _, err := s.db.PgConn().CopyTo(within(s.t), &b, "COPY ("+query+") TO STDOUT"); err != nil {
		s.t.Fatal(err)
	}
	lines := bytes.Split(b.Bytes(), []byte{'\n'})
	return lines[:len(lines)-1]
}

// rows are the rows of a query, each value as its text, nil for null.
func (s *station) rows(query string) [][]*string {
	s.t.Helper()
	results, err := s.db.PgConn().Exec(within(s.t), query).ReadAll()
	if err != nil {
		s.t.Fatal(err)
	}
	var rows [][]*string
	for _, values := range results[0].Rows {
		row := make([]*string, len(values))
		for i, v := range values {
			if v != nil {
				text := string(v)
				row[i] = &text
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// canonical is one text for each JSON value, as digest.py makes it: numbers as
// fractions, exact; strings after their length; names sorted.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %.200s", err, text)
	}
	var b strings.Builder
	writeCanonical(&b, v)
	return b.String()
}

func writeCanonical(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		fmt.Fprint(b, v)
	case json.Number:
		r, _ := new(big.Rat).SetString(v.String())
		b.WriteString(r.String())
	case string:
		fmt.Fprintf(b, "%d:%s", len(v), v)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonical(b, e)
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteByte('{')
		for i, name := range sortedNames(v) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonical(b, name)
			b.WriteByte('=')
			writeCanonical(b, v[name])
		}
		b.WriteByte('}')
	}
}

func sortedNames(m map[string]any) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
