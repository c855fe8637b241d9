package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/devenv"
)

// fast trades what only a loss of power can take for speed: a server that is killed still keeps its committed rows.
var fast = map[string]string{
	"fsync":              "off",
	"full_page_writes":   "off",
	"max_connections":    "300",
	"autovacuum_naptime": "10s",
}

var sharedPostgres shared[string]

// Postgres returns the URL of a new, empty database. It is dropped, with whoever is still connected to it, when the
// test ends.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := SharedPostgres()
	if err != nil {
		t.Fatalf("no PostgreSQL for the tests (`make setup` brings it): %v", err)
	}
	name := "test_" + strings.ToLower(rand.Text()[:12])
	if err := onServer(server, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("new database on %s: %v", server, err)
	}
	t.Cleanup(func() {
		if err := onServer(server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// SharedPostgres returns the URL of the server that [Postgres] makes its databases on, for a program that runs tests.
func SharedPostgres() (string, error) { return sharedPostgres.get(startShared) }

func startShared() (string, error) {
	if u := os.Getenv("SEMEL_TEST_POSTGRES"); u != "" {
		return u, nil
	}
	dir, err := tempDir("postgres")
	if err != nil {
		return "", err
	}
	ctx, cancel := timeout()
	defer cancel()
	pg, err := devenv.StartPostgres(ctx, devenv.PostgresConfig{Dir: dir, Settings: fast})
	if err != nil {
		return "", err
	}
	onClose(func() { stop(pg) })
	return pg.URL(), nil
}

func stop(pg *devenv.Postgres) {
	ctx, cancel := timeout()
	defer cancel()
	if err := pg.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func onServer(server, sql string) error {
	ctx, cancel := timeout()
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	_, err = c.Exec(ctx, sql)
	return err
}

// OwnPostgres starts a server of the test's own, to kill and start again: Kill, Stop and Start keep folder and port.
// It costs about two seconds; settings are added to fast ones (fsync off).
func OwnPostgres(t testing.TB, settings map[string]string) *devenv.Postgres {
	t.Helper()
	dir, err := tempDir("postgres")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range []map[string]string{fast, settings} {
		for k, v := range m {
			all[k] = v
		}
	}
	ctx, cancel := timeout()
	defer cancel()
	pg, err := devenv.StartPostgres(ctx, devenv.PostgresConfig{Dir: dir, Settings: all})
	if err != nil {
		t.Fatalf("no PostgreSQL for the test (`make setup` brings it): %v", err)
	}
	t.Cleanup(func() {
		stop(pg)
		os.RemoveAll(dir)
	})
	return pg
}

// Standby starts an asynchronous streaming standby on a copy of a server's folder; the server is stopped for the copy.
// It takes no writes until it is promoted.
func Standby(t testing.TB, primary *devenv.Postgres) *devenv.Postgres {
	t.Helper()
	dir, err := tempDir("standby")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout()
	defer cancel()
	if err := primary.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.CopyFS(data, os.DirFS(filepath.Join(primary.Dir(), "data"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := primary.Start(ctx); err != nil {
		t.Fatal(err)
	}
	follows := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres'\n", primary.Port())
	for name, text := range map[string]string{"standby.signal": "", "postgresql.auto.conf": follows} {
		if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := maps.Clone(fast)
	settings["max_standby_streaming_delay"] = "-1" // who asks is never interrupted
	pg, err := devenv.StartPostgres(ctx, devenv.PostgresConfig{Dir: dir, Settings: settings})
	if err != nil {
		t.Fatalf("no standby: %v", err)
	}
	t.Cleanup(func() {
		stop(pg)
		os.RemoveAll(dir)
	})
	return pg
}
