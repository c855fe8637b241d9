package arch_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every promise in a table of guarantees names a test that exists: README's
// cells each, docs/guarantees.md's rows.
func TestEachGuaranteeNamesATest(t *testing.T) {
	tests := testNames(t)
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	for _, doc := range []struct {
		file, head string
		cells      bool
	}{
		{"../../README.md", "| what happens |", true},
		{"../../docs/guarantees.md", "| step |", false},
		{"../../docs/guarantees.md", "| what | what happens |", false},
	} {
		rows := table(t, doc.file, doc.head)
		if len(rows) < 5 {
			t.Errorf("%s: %d rows under %q", doc.file, len(rows), doc.head)
		}
		for _, row := range rows {
			places := []string{row}
			if doc.cells {
				places = strings.Split(strings.Trim(row, "|"), "|")[1:]
			}
			for _, place := range places {
				names := named.FindAllStringSubmatch(place, -1)
				if len(names) == 0 && !strings.Contains(place, "twice: it can't be told") {
					t.Errorf("%s: no test is named in %q", doc.file, strings.TrimSpace(place))
				}
				for _, n := range names {
					if !tests[n[1]] {
						t.Errorf("%s names %s, and there is no such test", doc.file, n[1])
					}
				}
			}
		}
	}
}

// table is the rows under a table's head.
func table(t *testing.T, file, head string) (rows []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n"+head)
	if !ok {
		t.Fatalf("%s has no table %q", file, head)
	}
	for _, line := range strings.Split(rest, "\n")[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows = append(rows, line)
	}
	return rows
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(b), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
