// Package arch holds the import rules of the repository as a test: each names
// what a package must not depend on, by whatever way, and why.
package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/semelhq/semel"

// rule forbids dependencies. Paths inside the module are written without its
// name; "." is the root package, and a path stands for what lies below it too,
// but not in the standard library: net is sockets, net/url is text.
type rule struct {
	pkg string
	not []string
	why string
}

const (
	anyModule = "any module" // everything outside the standard library
	franz     = "github.com/twmb/franz-go"
	pgx       = "github.com/jackc/pgx/v5"
	cobra     = "github.com/spf13/cobra"
)

var rules = []rule{
	{
		pkg: ".", not: []string{anyModule},
		why: "everything else speaks the root's words; what it needs, everybody needs",
	},
	{
		pkg: "inbox", not: []string{"kafka", "postgres", "outbox", "sink", franz, pgx, "net", "database/sql"},
		why: "the promise must be readable, and testable, without knowing a broker or a driver",
	},
	{
		pkg: "outbox", not: []string{"kafka", "postgres", "inbox", "sink", franz, pgx, "net", "database/sql"},
		why: "the mirror promise is a machine of its own, as free of brokers and drivers as the inbox",
	},
	{
		pkg: "sink", not: []string{"kafka", "postgres", "inbox", "outbox", franz, pgx, "database/sql"},
		why: "how a message becomes a row is a matter of values; a driver would bring its own conversions",
	},
	{
		pkg: "registry", not: []string{"kafka", "postgres", "inbox", "outbox", "lab", pgx, franz + "/pkg/kgo", "database/sql"},
		why: "a schema registry is asked over HTTP: who reads messages by schema needs neither broker nor database",
	},
	{
		pkg: "kafka", not: []string{"postgres", "sink", "lab", pgx, "database/sql"},
		why: "broker and database meet in the loop, never in an adapter: each can be replaced alone",
	},
	{
		pkg: "postgres", not: []string{"kafka", "lab", franz},
		why: "all SQL lies in one folder, which is reviewed without a broker in mind",
	},
	{
		pkg: "sqldb", not: []string{"kafka", "lab", franz, pgx},
		why: "users of database/sql bring their own driver",
	},
	{
		pkg: "lab", not: []string{"cmd", "internal/daemon", cobra},
		why: "the lab tries the parts that users have, not our own wiring of them",
	},
	{
		pkg: "internal/config", not: []string{"kafka", "postgres", franz, pgx, cobra},
		why: "the file says what is wanted; reading it must not need a broker, a database or a terminal",
	},
	{
		pkg: "internal/daemon", not: []string{"cmd", "lab", "internal/devenv", cobra},
		why: "the daemon runs what it is given; flags and embedded services are the command's",
	},
	{
		pkg: "internal/devenv", not: []string{"cmd", "inbox", "outbox", "sink", "kafka", "postgres", "internal/daemon", cobra},
		why: "the embedded services must be strangers to what is tried on them",
	},
}

// pkg is what the go command says of a package.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	Deps       []string
}

// packages lists every package of the module with all that they depend on.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// within says whether path is root or lies below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func (r rule) covers(path string) bool {
	if r.pkg == "." {
		return path == module
	}
	return within(path, module+"/"+r.pkg)
}

func (r rule) forbids(dep string, standard bool) bool {
	for _, n := range r.not {
		switch {
		case n == anyModule:
			if !standard {
				return true
			}
		case standard:
			if dep == n {
				return true
			}
		case within(dep, n), within(dep, module+"/"+n):
			return true
		}
	}
	return false
}

// breaches says which rules the packages break, a line each.
func breaches(rules []rule, all []pkg) []string {
	standard := map[string]bool{}
	for _, p := range all {
		standard[p.ImportPath] = p.Standard
	}
	var found []string
	for _, p := range all {
		for _, r := range rules {
			if !r.covers(p.ImportPath) {
				continue
			}
			for _, dep := range p.Deps {
				if r.forbids(dep, standard[dep]) {
					found = append(found, fmt.Sprintf("%s depends on %s: %s", p.ImportPath, dep, r.why))
				}
			}
		}
	}
	return found
}

func TestNoPackageDependsOnWhatItMustNotKnow(t *testing.T) {
	t.Parallel()
	for _, b := range breaches(rules, packages(t)) {
		t.Error(b)
	}
}

func TestARuleSeesABreach(t *testing.T) {
	t.Parallel()
	all := []pkg{
		{ImportPath: "net", Standard: true},
		{ImportPath: "fmt", Standard: true},
		{ImportPath: franz + "/pkg/kgo"},
		{ImportPath: module, Deps: []string{"fmt", franz + "/pkg/kgo"}},
		{ImportPath: module + "/inbox/inboxtest", Deps: []string{"net", module + "/postgres/migrations"}},
		{ImportPath: module + "/inboxes", Deps: []string{"net"}},
	}
	if got := breaches(rules, all); len(got) != 3 {
		t.Errorf("want three breaches, got %q", got)
	}
}

func TestEveryPackageHasOnePackageComment(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if !within(p.ImportPath, module) || len(p.GoFiles) == 0 {
			continue
		}
		var with []string
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				with = append(with, name)
			}
		}
		if len(with) != 1 {
			t.Errorf("%s: want the package comment in one file, it is in %d: %v", p.ImportPath, len(with), with)
		}
	}
}

// statement is how SQL begins. Prose begins so too, hence the second word.
var statement = regexp.MustCompile(`^\s*(SELECT\s+[a-z*(0-9]|INSERT INTO |UPDATE \S+ SET |DELETE FROM |TRUNCATE |CREATE (TABLE|INDEX|FUNCTION|SCHEMA) |ALTER TABLE |COPY \S+ )`)

// sqlAllowed may hold SQL: the folder where it is reviewed, its sibling for
// other drivers, and what plays the part of a user or a test.
var sqlAllowed = []string{"postgres", "sqldb", "lab", "examples", "internal/demo", "internal/testenv", "internal/devenv"}

func TestSQLLivesInOneFolder(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if !within(p.ImportPath, module) || slices.ContainsFunc(sqlAllowed, func(dir string) bool { return within(path, dir) }) {
			continue
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil && statement.MatchString(text) {
						t.Errorf("%s: %.40q is SQL, which lives in postgres/, where every lock and constraint is reviewed", set.Position(lit.Pos()), text)
					}
				}
				return true
			})
		}
	}
}
