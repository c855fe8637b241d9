package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

func TestMigrationsAtTheSameTimeMakeTheTablesOnce(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	results := make([]postgres.MigrateResult, 4)
	var g errgroup.Group
	for i := range results {
		c := connect(t, url)
		g.Go(func() (err error) {
			results[i], err = postgres.Migrate(t.Context(), c, postgres.MigrateConfig{})
			return err
		})
	}
	must(t, g.Wait())
	made := 0
	for _, r := range results {
		if r.From == 0 {
			made++
		}
		if r.To != postgres.Version || r.Database != results[0].Database || r.Database == "" {
			t.Errorf("%+v", r)
		}
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	c := connect(t, url)
	id, err := postgres.NewIdentity(t.Context(), c, "")
	must(t, err)
	if got := migrate(t, url, ""); got.Database != id || id == results[0].Database {
		t.Errorf("identity %s, then %s, now %s", results[0].Database, id, got.Database)
	}
}

func TestSchemaMayHaveAnyName(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	const odd = `My "semel.' %s`
	migrate(t, url, odd)
	s := newStore(t, url, postgres.InboxConfig{Schema: odd})
	_, err := s.Open(t.Context(), record("billing"))
	must(t, err)
	introduce(t, s, p0)
	sp := span(claim(t, s, p0), 1)
	tx := begin(t, s, sp)
	for _, n := range sizes {
		_, err = tx.Admit(t.Context(), admissions(n, 1))
		must(t, err)
	}
	fresh, err := s.Admit(t.Context(), tx.DB(), "other", semel.ID{1})
	must(t, err)
	if !fresh {
		t.Error("not fresh")
	}
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	if ask[bool](t, connect(t, url), "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'semel')") {
		t.Error("something went to the default schema")
	}
}

func TestPrintedMigrationIsTheMigration(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	exec1(t, connect(t, url), postgres.MigrationSQL(""))
	if got := migrate(t, url, ""); got.From != postgres.Version {
		t.Errorf("%+v", got)
	}
	opened(t, url, "billing")
}

func TestSchemaStates(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	c := connect(t, url)
	state := func(want postgres.State, version int) {
		t.Helper()
		got, v, err := postgres.SchemaState(t.Context(), c, "")
		must(t, err)
		if got != want || v != version {
			t.Errorf("%s %d, want %s %d", got, v, want, version)
		}
	}
	state(postgres.SchemaMissing, 0)
	exec1(t, c, "CREATE SCHEMA semel")
	state(postgres.SchemaMissing, 0)
	migrate(t, url, "")
	state(postgres.SchemaCurrent, postgres.Version)
	exec1(t, c, "INSERT INTO semel.schema_version VALUES (98, 1)")
	state(postgres.SchemaCurrent, 98)
	exec1(t, c, "INSERT INTO semel.schema_version VALUES (99, 99)")
	state(postgres.SchemaNewer, 99)
	_, err := postgres.Migrate(t.Context(), c, postgres.MigrateConfig{})
	var schema *postgres.SchemaError
	if !errors.As(err, &schema) || schema.State != postgres.SchemaNewer {
		t.Errorf("got %v", err)
	}
	exec1(t, c, "DELETE FROM semel.schema_version WHERE version > (SELECT min(version) FROM semel.schema_version); UPDATE semel.schema_version SET version = 0")
	state(postgres.SchemaOlder, 0)
}

// granted is the URL of a role that has what [postgres.GrantSQL] gives, and more.
func granted(t *testing.T, owner string, more ...string) string {
	t.Helper()
	c := connect(t, owner)
	role := "runner_" + ask[string](t, c, "SELECT current_database()")
	exec1(t, c, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() {
		c, err := pgx.Connect(context.Background(), owner)
		must(t, err)
		defer c.Close(context.Background())
		_, err = c.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		must(t, err)
	})
	exec1(t, c, postgres.GrantSQL("", role))
	for _, m := range more {
		exec1(t, c, "GRANT "+m+" TO "+role)
	}
	u, err := url.Parse(owner)
	must(t, err)
	u.User = url.UserPassword(role, "x")
	return u.String()
}

func TestGrantedRoleRunsButDoesNotMakeInboxes(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	runner := granted(t, owner)
	s := newStore(t, runner, postgres.InboxConfig{})
	_, err := s.Open(t.Context(), record("billing"))
	var halt *inbox.HaltError
	if !errors.As(err, &halt) || !strings.Contains(halt.Hint, "semel migrate") || s.Class(err) != inbox.ClassRoute {
		t.Fatalf("got %v", err)
	}
	tx, err := connect(t, runner).Begin(t.Context())
	must(t, err)
	if _, err := s.Admit(t.Context(), tx, "billing", semel.ID{1}); err == nil || postgres.SQLStateClass("SM002") != inbox.ClassRoute || !strings.Contains(err.Error(), "SM002") {
		t.Errorf("got %v", err)
	}

	opened(t, owner, "billing") // as migrate FILE does
	_, err = s.Open(t.Context(), record("billing"))
	must(t, err)
	introduce(t, s, p0)
	sp := span(claim(t, s, p0), 1)
	batch := begin(t, s, sp)
	_, err = batch.Admit(t.Context(), admissions(100, 1))
	must(t, err)
	must(t, batch.Bury(t.Context(), []inbox.DeadLetter{{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadValue, ID: admissions(1, 0)[0].ID}}))
	must(t, batch.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	must(t, s.Record(t.Context(), []inbox.Event{{Kind: "x"}}))
	_, err = s.Forget(t.Context(), time.Now())
	must(t, err)
	if _, err := connect(t, runner).Exec(t.Context(), "UPDATE semel.database SET identity = gen_random_uuid()"); err == nil {
		t.Error("the role may change the identity")
	}
}
