package sqldb_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/errgroup"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sqldb"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const schema = `my "memory"`

func open(t *testing.T) (*sql.DB, *sqldb.InboxStore) {
	t.Helper()
	url := testenv.Postgres(t)
	c, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer c.Close(context.Background())
	_, err = postgres.Migrate(t.Context(), c, postgres.MigrateConfig{Schema: schema})
	must(t, err)
	db, err := sql.Open("pgx", url)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db, sqldb.NewInboxStore(sqldb.Config{Schema: schema})
}

func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	must(t, err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func TestAnIDIsFreshUntilItIsCommitted(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	for _, step := range []struct {
		consumer      string
		commit, fresh bool
	}{{"a", false, true}, {"a", true, true}, {"a", true, false}, {"b", true, true}} {
		tx := begin(t, db, sql.LevelDefault)
		fresh, err := inbox.Admit(t.Context(), tx, step.consumer, semel.ID{1})
		must(t, err)
		if fresh != step.fresh {
			t.Errorf("%+v: %t", step, fresh)
		}
		if step.commit {
			must(t, tx.Commit())
		}
		tx.Rollback()
	}
}

func TestBatchAnswersTheFreshInOrder(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	tx := begin(t, db, sql.LevelDefault)
	_, err := inbox.Admit(t.Context(), tx, "a", semel.ID{2})
	must(t, err)
	for _, want := range [][]semel.ID{{{3}, {1}}, nil} {
		fresh, err := inbox.AdmitBatch(t.Context(), tx, "a", []semel.ID{{3}, {2}, {1}, {3}})
		must(t, err)
		if !slices.Equal(fresh, want) {
			t.Errorf("fresh %v, want %v", fresh, want)
		}
	}
	fresh, err := inbox.AdmitBatch(t.Context(), tx, "a", nil)
	must(t, err)
	if fresh != nil {
		t.Errorf("fresh of none: %v", fresh)
	}
}

func TestOtherIsolationLevelsAreRefused(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		_, err := inbox.Admit(t.Context(), begin(t, db, level), "a", semel.ID{1})
		var isolation *sqldb.IsolationError
		if !errors.As(err, &isolation) {
			t.Errorf("%s: %v", level, err)
		}
	}
}

func TestBatchesRefuseOtherIsolationLevelsByName(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	for level, name := range map[sql.IsolationLevel]string{sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable"} {
		_, batch := inbox.AdmitBatch(t.Context(), begin(t, db, level), "a", []semel.ID{{1}})
		_, remember := inbox.Remember(t.Context(), begin(t, db, level), "a", []semel.ID{{1}})
		for _, err := range []error{batch, remember} {
			var isolation *sqldb.IsolationError
			if !errors.As(err, &isolation) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", level, err)
			}
		}
	}
}

func TestBatchesOfTheSameIDsAreFreshOnce(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	const n = 200
	fresh := make([]int, 4)
	var g errgroup.Group
	for i := range fresh {
		g.Go(func() error {
			batch := make([]semel.ID, n)
			for k, at := range rand.Perm(n) {
				batch[k] = semel.ID{byte(at)}
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			got, err := inbox.AdmitBatch(t.Context(), tx, "a", batch)
			if err != nil {
				return err
			}
			fresh[i] = len(got)
			return tx.Commit()
		})
	}
	must(t, g.Wait())
	if fresh[0]+fresh[1]+fresh[2]+fresh[3] != n {
		t.Errorf("fresh: %v of %d", fresh, n)
	}
}

func TestRememberedUntilForgotten(t *testing.T) {
	t.Parallel()
	db, inbox := open(t)
	tx := begin(t, db, sql.LevelDefault)
	added, err := inbox.Remember(t.Context(), tx, "a", []semel.ID{{1}, {2}, {1}})
	must(t, err)
	must(t, tx.Commit())
	admit := func() (fresh bool) {
		tx := begin(t, db, sql.LevelDefault)
		defer tx.Rollback()
		fresh, err := inbox.Admit(t.Context(), tx, "a", semel.ID{1})
		must(t, err)
		return fresh
	}
	if added != 2 || admit() {
		t.Errorf("%d added", added)
	}
	for i, known := range []bool{true, true, false} { // time passes: its table is frozen, then too old
		must(t, inbox.ForgetOlder(t.Context(), db, "a", time.Hour))
		if admit() == known {
			t.Errorf("known: %t", !known)
		}
		_, err = db.ExecContext(t.Context(), `UPDATE "my ""memory""".generation SET from_time = from_time - interval '2 hours', to_time = to_time - interval '2 hours'`)
		must(t, err)
		tx := begin(t, db, sql.LevelDefault)
		_, err = inbox.Admit(t.Context(), tx, "a", semel.ID{2, byte(i)}) // it moves
		must(t, err)
		must(t, tx.Commit())
	}
}
