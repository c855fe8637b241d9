package postgres_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/semelhq/semel/postgres"
)

var update = flag.Bool("update", false, "write the table into docs/errors.md")

// docs/errors.md holds the table by which errors are judged, no other one.
func TestErrorsDocumentHoldsTheTable(t *testing.T) {
	const path, begin, end = "../docs/errors.md", "<!-- table -->\n", "<!-- /table -->\n"
	var table strings.Builder
	table.WriteString("| SQLSTATE | class | what it is |\n| --- | --- | --- |\n")
	for _, s := range postgres.SQLStates {
		code := s.Code
		if len(code) == 2 {
			code += "…"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", code, s.Class, s.Why)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	if have == table.String() {
		return
	}
	if !*update {
		t.Fatalf("%s differs from postgres.SQLStates: go test ./postgres -run ErrorsDocument -update", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
