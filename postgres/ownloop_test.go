package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// ids makes n IDs in a random order.
func ids(n int) []semel.ID {
	list := make([]semel.ID, n)
	for i, k := range rand.Perm(n) {
		list[i] = semel.IDOf(fmt.Append(nil, k))
	}
	return list
}

func TestBatchesOfTheSameIDsAreFreshOnceAndNeverDeadlock(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, pool := newStore(t, url, postgres.InboxConfig{}), newPool(t, url)
	const sessions, n = 4, 300
	fresh := make([]int, sessions)
	var g errgroup.Group
	for i := range fresh {
		g.Go(func() error {
			for round := range 10 {
				batch := ids(n)
				for k := range batch {
					batch[k][0] = byte(round)
				}
				batch = append(batch, batch[:10]...)
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					got, err := s.AdmitBatch(t.Context(), tx, "billing", batch)
					fresh[i] += len(got)
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
	total := 0
	for _, f := range fresh {
		total += f
	}
	if kept := ask[int](t, connect(t, url), "SELECT count(*)::int FROM semel.inbox"); kept != 10*n || total != kept {
		t.Errorf("%d IDs are kept, %v were fresh", kept, fresh)
	}
}

// A batch waits for the transaction that holds one of its IDs, and its answer
// follows from how that one ends.
func TestBatchFollowsTheTransactionThatHoldsItsID(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			s := newStore(t, url, postgres.InboxConfig{})
			all := ids(3)
			exec1(t, connect(t, url), "SELECT semel.register('billing')") // else that is what is waited for
			first, err := connect(t, url).Begin(t.Context())
			must(t, err)
			if fresh, err := s.Admit(t.Context(), first, "billing", all[1]); err != nil || !fresh {
				t.Fatal(fresh, err)
			}
			c := connect(t, url)
			second, err := c.Begin(t.Context())
			must(t, err)
			answer := make(chan error)
			var fresh []semel.ID
			go func() {
				var err error
				fresh, err = s.AdmitBatch(context.Background(), second, "billing", all)
				answer <- err
			}()
			until(t, connect(t, url), "SELECT cardinality(pg_blocking_pids($1)) > 0", c.PgConn().PID())
			want := all
			if commit {
				must(t, first.Commit(t.Context()))
				want = []semel.ID{all[0], all[2]}
			} else {
				must(t, first.Rollback(t.Context()))
			}
			must(t, <-answer)
			if !slices.Equal(fresh, want) {
				t.Errorf("fresh %v, want %v", fresh, want)
			}
		})
	}
}

// A batch that waits for one ID doesn't hold another that comes after it.
func TestABatchTakesItsIDsInOneOrder(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	exec1(t, connect(t, url), "SELECT semel.register('billing')")
	first, err := connect(t, url).Begin(t.Context())
	must(t, err)
	_, err = s.Admit(t.Context(), first, "billing", semel.ID{1})
	must(t, err)
	c := connect(t, url)
	second, err := c.Begin(t.Context())
	must(t, err)
	answer := make(chan error)
	go func() {
		_, err := s.AdmitBatch(context.Background(), second, "billing", []semel.ID{{9}, {1}})
		answer <- err
	}()
	until(t, connect(t, url), "SELECT cardinality(pg_blocking_pids($1)) > 0", c.PgConn().PID())
	fresh, err := s.Admit(t.Context(), first, "billing", semel.ID{9})
	if err != nil || !fresh {
		t.Errorf("fresh %t, %v", fresh, err)
	}
	_ = first.Commit(t.Context())
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// until asks again and again.
func until(t *testing.T, c *pgx.Conn, question string, args ...any) {
	t.Helper()
	for range 1000 {
		if ask[bool](t, c, question, args...) {
			return
		}
		ask[string](t, c, "SELECT pg_sleep(0.01)::text")
	}
	t.Fatal("never: " + question)
}

func TestBatchRefusesOtherIsolationLevelsByName(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for call, do := range map[string]func(tx pgx.Tx) error{
			"batch":    func(tx pgx.Tx) error { _, err := s.AdmitBatch(t.Context(), tx, "a", ids(2)); return err },
			"remember": func(tx pgx.Tx) error { _, err := s.Remember(t.Context(), tx, "a", ids(2)); return err },
		} {
			tx, err := connect(t, url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			must(t, err)
			var isolation *postgres.IsolationError
			if err := do(tx); !errors.As(err, &isolation) || !strings.Contains(err.Error(), string(level)) {
				t.Errorf("%s, %s: %v", call, level, err)
			}
		}
	}
}

func TestRememberedIDsAreDuplicates(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, c := newStore(t, url, postgres.InboxConfig{}), connect(t, url)
	tx, err := c.Begin(t.Context())
	must(t, err)
	all := ids(5)
	for _, want := range []int64{3, 2, 0} {
		list := all[:3]
		if want < 3 {
			list = all
		}
		if added, err := s.Remember(t.Context(), tx, "billing", list); err != nil || added != want {
			t.Fatalf("%d added, want %d, %v", added, want, err)
		}
	}
	must(t, tx.Commit(t.Context()))
	// as a route: its inbox is the same
	lanes := opened(t, url, "billing")
	introduce(t, lanes, p0)
	vs, err := begin(t, lanes, span(claim(t, lanes, p0), 1)).Admit(t.Context(), admissions(5, 7))
	must(t, err)
	for _, v := range vs {
		if v != inbox.Duplicate {
			t.Errorf("verdicts %v", vs)
		}
	}
}

// A target that was filled before is remembered in one statement, by what its
// columns say.
func TestSeedingFromATarget(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	exec1(t, c, `CREATE TABLE payment AS SELECT n AS number, 'paid' AS kind, gen_random_uuid() AS event FROM generate_series(1, 25000) n`)
	const seed = `SELECT sum(semel.remember('by-fields', ids))::int FROM (
		SELECT array_agg(semel.id_of(number::text, kind)) AS ids FROM payment GROUP BY number / 10000) chunks`
	if n := ask[int](t, c, seed); n != 25000 {
		t.Errorf("%d remembered", n)
	}
	var id string
	must(t, c.QueryRow(t.Context(), "SELECT event::text FROM payment WHERE number = 7").Scan(&id))
	exec1(t, c, "SELECT semel.remember('by-uuid', array_agg(event::text)) FROM payment")
	for consumer, id := range map[string]semel.ID{"by-fields": semel.IDOf([]byte("7"), []byte("paid")), "by-uuid": semel.IDOf([]byte(id))} {
		if ask[bool](t, c, "SELECT semel.admit($1::text, $2::text::uuid)", consumer, id.String()) {
			t.Errorf("%s doesn't know %s", consumer, id)
		}
	}
	if n := ask[int](t, c, "SELECT semel.remember('empty', (SELECT array_agg(event) FROM payment WHERE number < 0))::int"); n != 0 {
		t.Errorf("%d of none", n)
	}
}

func TestSQLHashesPartsAsGoDoes(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.StringMatching(`[^\x00]*`), 1, 4).Draw(t, "parts")
		bytes := make([][]byte, len(parts))
		for i, p := range parts {
			bytes[i] = []byte(p)
		}
		var got string
		if err := c.QueryRow(ctx, "SELECT semel.id_of(VARIADIC $1::text[])::text", parts).Scan(&got); err != nil || got != semel.IDOf(bytes...).String() {
			t.Fatalf("%s, want %s, %v", got, semel.IDOf(bytes...), err)
		}
	})
	if !ask[bool](t, c, "SELECT semel.id_of('a', NULL) IS NULL AND semel.id_of('a', 'bc') <> semel.id_of('ab', 'c')") {
		t.Error("a null part makes an ID, or parts run together")
	}
}

func TestBatchInSQLAnswersIDsAsTheyWereSent(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	const batch = `SELECT coalesce(string_agg(f, ' ' ORDER BY n), '') FROM semel.admit_batch('a', ARRAY['z', 'b', 'z', 'c']) WITH ORDINALITY x(f, n)`
	exec1(t, c, "SELECT semel.admit('a', 'b')")
	for _, want := range []string{"z c", ""} {
		if got := ask[string](t, c, batch); got != want {
			t.Errorf("fresh %q, want %q", got, want)
		}
	}
}

func TestNullIsNoMessageID(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	for _, call := range []string{
		"admit('a', NULL)", "admit('a', NULL::uuid)", "admit('a', NULL::bytea)", "admit(NULL, 'x')",
		"admit_batch('a', ARRAY['x', NULL])", "admit_batch('a', ARRAY[gen_random_uuid(), NULL])", "remember('a', ARRAY['x', NULL])",
	} {
		_, err := c.Exec(t.Context(), "SELECT semel."+call)
		if postgres.SQLStateClass("22004") != inbox.ClassPoison || err == nil || !strings.Contains(err.Error(), "22004") || !strings.Contains(err.Error(), "null is no ") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestForgettingWithoutADaemon(t *testing.T) {
	t.Parallel()
	for way, forget := range map[string]func(ctx context.Context, s *postgres.InboxStore, pool *pgxpool.Pool) error{
		"Go": func(ctx context.Context, s *postgres.InboxStore, _ *pgxpool.Pool) error {
			return s.ForgetOlder(ctx, "a", time.Hour)
		},
		"SQL": func(ctx context.Context, _ *postgres.InboxStore, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "CALL semel.forget('a', '1 hour')")
			return err
		},
		"window": func(ctx context.Context, _ *postgres.InboxStore, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "UPDATE semel.consumer SET inbox_window = '1 hour'")
			if err == nil {
				_, err = pool.Exec(ctx, "CALL semel.forget('a')")
			}
			return err
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			s, c, pool := newStore(t, url, postgres.InboxConfig{}), connect(t, url), newPool(t, url)
			exec1(t, c, "SELECT semel.remember('a', array_agg(gen_random_uuid())) FROM generate_series(1, 20000)")
			exec1(t, c, "SELECT semel.admit('other', 'x')")
			left := func(want int) {
				t.Helper()
				must(t, forget(t.Context(), s, pool))
				if n := ask[int](t, c, "SELECT count(*)::int FROM semel.inbox WHERE consumer = 'a'"); n != want {
					t.Errorf("%d IDs are left, want %d", n, want)
				}
			}
			exec1(t, c, "UPDATE semel.inbox_all SET at = now() - interval '3 hours'")
			pass(t, c, 3*time.Hour)
			left(20000) // it stands still
			exec1(t, c, `WITH d AS (INSERT INTO semel.dead_letter (consumer, topic, partition, "offset", id, class, error, attempts)
				VALUES ('a', 'orders', 0, 1, gen_random_uuid(), 'value', '', 1) RETURNING id)
				INSERT INTO semel.inbox_1_1 (id, at, how) SELECT id, now() - interval '3 hours', 'd' FROM d`)
			exec1(t, c, "SELECT semel.admit('a', 'new')")
			left(20002) // the table is frozen
			exec1(t, c, "SELECT semel.admit('a', 'newer')")
			pass(t, c, 3*time.Hour)
			left(2) // the newer one and the open dead letter
			if n := ask[int](t, c, "SELECT count(*)::int FROM semel.inbox"); n != 3 {
				t.Errorf("%d IDs of all consumers", n)
			}
		})
	}
	s := newStore(t, migrated(t), postgres.InboxConfig{})
	if err := s.ForgetOlder(t.Context(), "nobody", time.Hour); err == nil || !strings.Contains(err.Error(), "42704") {
		t.Errorf("got %v", err)
	}
	if err := s.ForgetOlder(t.Context(), "nobody", -time.Hour); err == nil {
		t.Error("a negative time is taken")
	}
}

func TestTablesOfTheFirstVersionAreUpgraded(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	c := connect(t, url)
	first, err := os.ReadFile("schema/0001.sql")
	must(t, err)
	exec1(t, c, `CREATE SCHEMA semel; CREATE TABLE semel.schema_version (version integer PRIMARY KEY, min_version integer NOT NULL, made_at timestamptz NOT NULL DEFAULT now());
		INSERT INTO semel.schema_version VALUES (1, 1);`+string(first))
	exec1(t, c, "SELECT semel.admit('a', 'x')")
	if got := migrate(t, url, ""); got.From != 1 || got.To != postgres.Version {
		t.Errorf("%+v", got)
	}
	if ask[bool](t, c, "SELECT semel.admit('a', 'x')") || !ask[bool](t, c, "SELECT semel.admit('a', 'y')") {
		t.Error("the memory is lost")
	}
	// A program of before knows one inbox table: it is refused at its start, and what runs finds no table to write to.
	if n := ask[int](t, c, "SELECT min_version FROM semel.schema_version ORDER BY version DESC LIMIT 1"); n != 8 {
		t.Errorf("min_version is %d", n)
	}
	if !ask[bool](t, c, "SELECT to_regclass('semel.inbox_1_0') IS NULL") {
		t.Error("a program of before finds its table")
	}
}
