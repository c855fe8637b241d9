package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutant is the code with a guard off.
type mutant struct {
	guard string // what is off
	edits []edit
	pkg   string   // where the tests are; "" is ./inbox
	tests []string // each of them must fail: names, or name/subtest
	// redundant says why no test can fail: something else covers the same. Such a
	// mutant must survive; when it doesn't, the reason is out of date.
	redundant string
}

// edit replaces old, which stands exactly once in the file.
type edit struct{ file, old, new string }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// overlay writes the patched files and the list of them that go build -overlay
// takes.
func (m mutant) overlay(t *testing.T) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	text := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root(t), e.file)
		s, ok := text[path]
		if !ok {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s = string(b)
		}
		if n := strings.Count(s, e.old); n != 1 {
			t.Fatalf("the text to patch stands %d times in %s: the guard has moved, and this mutant must follow:\n%s", n, e.file, e.old)
		}
		text[path] = strings.Replace(s, e.old, e.new, 1)
	}
	for path, s := range text {
		to := filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		if err := os.WriteFile(to, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTextOfEachMutantIsThere(t *testing.T) {
	for _, m := range all {
		t.Run(m.guard, func(t *testing.T) { m.overlay(t) })
	}
}

func TestEachMutantIsCaught(t *testing.T) {
	if os.Getenv("SEMEL_MUTANTS") == "" {
		t.Log("make mutants runs them")
		return
	}
	t.Run("none", func(t *testing.T) {
		for pkg, names := range named() {
			out, err := run(t, pkg, names, "")
			if err != nil {
				t.Fatalf("%s without a mutant: %v\n%s", pkg, err, out)
			}
		}
	})
	if t.Failed() {
		return
	}
	t.Run("mutant", func(t *testing.T) {
		for _, m := range all {
			t.Run(m.guard, func(t *testing.T) {
				t.Parallel()
				m.try(t)
			})
		}
	})
}

func (m mutant) try(t *testing.T) {
	out, err := run(t, m.pkg, m.tests, m.overlay(t))
	failed := failures(out)
	if m.redundant != "" {
		if err != nil {
			t.Errorf("said to be redundant (%s), but: %v\n%s", m.redundant, failed, tail(out))
		}
		return
	}
	for _, name := range m.tests {
		if !slices.Contains(failed, name) {
			t.Errorf("%s doesn't fail: the mutant survives\n%s", name, tail(out))
		}
	}
}

// named lists the tests of all mutants, by package.
func named() map[string][]string {
	out := map[string][]string{}
	for _, m := range all {
		for _, name := range m.tests {
			if !slices.Contains(out[m.pkg], name) {
				out[m.pkg] = append(out[m.pkg], name)
			}
		}
	}
	return out
}

// run runs tests, through an overlay if there is one. Tests that fail do so by
// themselves: the time-out is for a mutant that hangs, and that is not caught.
func run(t *testing.T, pkg string, tests []string, overlay string) (string, error) {
	t.Helper()
	limit := 2 * time.Minute
	if overlay == "" { // all that are named, which are many, and none is to hang
		limit = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit+3*time.Minute)
	defer cancel()
	if pkg == "" {
		pkg = "./inbox"
	}
	args := []string{"test", "-count=1", "-vet=off", "-timeout", limit.String(), "-run", pattern(tests)}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(args, pkg)
	if pkg == "./inbox" {
		args = append(args, "-patience", patience(overlay))
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root(t)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// patience is short where tests are to fail.
func patience(overlay string) string {
	if overlay == "" {
		return "10s"
	}
	return "3s"
}

// pattern matches the tests, level by level; a subtest's siblings of another test
// may run along.
func pattern(tests []string) string {
	var levels [][]string
	for _, name := range tests {
		for i, part := range strings.Split(name, "/") {
			if i == len(levels) {
				levels = append(levels, nil)
			}
			if part = regexp.QuoteMeta(part); !slices.Contains(levels[i], part) {
				levels[i] = append(levels[i], part)
			}
		}
	}
	var out []string
	for _, l := range levels {
		out = append(out, "^("+strings.Join(l, "|")+")$")
	}
	if len(out) > 1 && slices.ContainsFunc(tests, func(n string) bool { return !strings.Contains(n, "/") }) {
		out = out[:1] // one of them is wanted whole
	}
	return strings.Join(out, "/")
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+) `)

func failures(out string) (names []string) {
	for _, m := range failure.FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	return names
}

func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
