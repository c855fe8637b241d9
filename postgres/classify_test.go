package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

func TestSQLStateTable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]inbox.Class{
		"08006": inbox.ClassOutage, "57P01": inbox.ClassOutage, "53100": inbox.ClassOutage, "28P01": inbox.ClassOutage,
		"25006": inbox.ClassOutage, "42P05": inbox.ClassOutage, "26000": inbox.ClassOutage,
		"40001": inbox.ClassConflict, "40P01": inbox.ClassConflict, "55P03": inbox.ClassConflict,
		"22P02": inbox.ClassPoison, "23505": inbox.ClassPoison, "54000": inbox.ClassPoison, "40002": inbox.ClassPoison,
		"42P01": inbox.ClassRoute, "42501": inbox.ClassRoute, "3F000": inbox.ClassRoute, "0A000": inbox.ClassRoute, "SM001": inbox.ClassRoute,
		"25P02": inbox.ClassHandler, "P0001": inbox.ClassHandler, "XX000": inbox.ClassHandler, "ZZZZZ": inbox.ClassHandler, "": inbox.ClassHandler,
	} {
		if got := postgres.SQLStateClass(code); got != want {
			t.Errorf("%s is %s, want %s", code, got, want)
		}
	}
}

// effects is a transaction over a few tables for handlers to fail in.
func effects(t *testing.T) (url string, s *postgres.InboxStore, tx inbox.Tx[pgx.Tx]) {
	t.Helper()
	url = migrated(t)
	exec1(t, connect(t, url), `
		CREATE TABLE t (n int PRIMARY KEY, positive int CHECK (positive > 0));
		CREATE TABLE parted (n int) PARTITION BY RANGE (n);
		CREATE DOMAIN small AS int CHECK (VALUE < 10);`)
	s, row := lane(t, url)
	return url, s, begin(t, s, span(row, 10))
}

func TestFailedStatementIsJudgedByItsSQLState(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]inbox.Class{
		"INSERT INTO t VALUES (1, -1)":                           inbox.ClassPoison,
		"INSERT INTO t VALUES (1, 1), (1, 1)":                    inbox.ClassPoison,
		"SELECT 11::small":                                       inbox.ClassPoison,
		"INSERT INTO parted VALUES (1)":                          inbox.ClassRoute,
		"INSERT INTO gone VALUES (1)":                            inbox.ClassRoute,
		"SELECT 'x'::int":                                        inbox.ClassPoison,
		"DO 'BEGIN RAISE EXCEPTION ''no''; END'":                 inbox.ClassHandler,
		"DO 'BEGIN RAISE SQLSTATE ''40001''; END'":               inbox.ClassConflict,
		"SET TRANSACTION READ ONLY; INSERT INTO t VALUES (1, 1)": inbox.ClassOutage,
	} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			_, _, tx := effects(t)
			_, err := tx.DB().Exec(t.Context(), sql)
			if err == nil || !tx.Failed() {
				t.Fatalf("failed: %t, %v", tx.Failed(), err)
			}
			wrapped := fmt.Errorf("handler: %w", err)
			if got := tx.Class(wrapped); got != want {
				t.Errorf("class %s, want %s", got, want)
			}
			// A handler that hides the error, or asks on, changes nothing.
			if got := tx.Class(errors.New("something failed")); got != want {
				t.Errorf("hidden: class %s, want %s", got, want)
			}
			_, again := tx.DB().Exec(t.Context(), "SELECT 1")
			if got := tx.Class(again); got != want {
				t.Errorf("25P02: class %s, want %s", got, want)
			}
			tx.Rollback(t.Context())
			if got := tx.Class(errors.New("something failed")); got != want {
				t.Errorf("after the end: class %s, want %s", got, want)
			}
		})
	}
}

func TestErrorsAreSeenOnEveryWayOfAsking(t *testing.T) {
	t.Parallel()
	const bad = "INSERT INTO t VALUES (1, -1) RETURNING n"
	ways := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error { var n int; return tx.QueryRow(ctx, bad).Scan(&n) },
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, bad)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"Batch": func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue(bad)
			return tx.SendBatch(ctx, &b).Close()
		},
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"n", "positive"}, pgx.CopyFromRows([][]any{{1, -1}}))
			return err
		},
		"Conn": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, bad); return err },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, tx := effects(t)
			err := way(t.Context(), tx.DB())
			if got := tx.Class(err); err == nil || got != inbox.ClassPoison {
				t.Errorf("%v: class %s", err, got)
			}
			if state, _ := tx.Describe(err); state != "23514" {
				t.Errorf("SQLSTATE %s", state)
			}
		})
		if name == "Conn" { // of its failures only the transaction's status tells
			continue
		}
		t.Run(name+" in a savepoint", func(t *testing.T) {
			t.Parallel()
			_, _, tx := effects(t)
			err := pgx.BeginFunc(t.Context(), tx.DB(), func(sp pgx.Tx) error { return way(t.Context(), sp) })
			if got := tx.Class(err); tx.Failed() || got != inbox.ClassPoison {
				t.Errorf("failed %t, %v: class %s", tx.Failed(), err, got)
			}
		})
	}
}

func TestErrorOfAnotherConnectionIsTheHandlers(t *testing.T) {
	t.Parallel()
	url, _, tx := effects(t)
	_, other := connect(t, url).Exec(t.Context(), "SELECT FROM gone")
	_, dial := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/x")
	for _, err := range []error{other, dial, errors.New("x"), semel.Permanent(errors.New("x"))} {
		want := inbox.ClassHandler
		if !semel.Retryable(err) {
			want = inbox.ClassPoison
		}
		if got := tx.Class(err); got != want {
			t.Errorf("%v: class %s", err, got)
		}
	}
}

func TestHandlerMayNotEndTheTransaction(t *testing.T) {
	t.Parallel()
	_, _, tx := effects(t)
	if err := tx.DB().Commit(t.Context()); !errors.Is(err, postgres.ErrManaged) {
		t.Errorf("Commit: %v", err)
	}
	if err := tx.DB().Rollback(t.Context()); !errors.Is(err, postgres.ErrManaged) {
		t.Errorf("Rollback: %v", err)
	}
	sp, err := tx.DB().Begin(t.Context())
	must(t, err)
	_, err = sp.Exec(t.Context(), "INSERT INTO t VALUES (1, 1)")
	must(t, err)
	must(t, sp.Rollback(t.Context()))
	sp, err = tx.DB().Begin(t.Context())
	must(t, err)
	_, err = sp.Exec(t.Context(), "INSERT INTO t VALUES (2, 1)")
	must(t, err)
	must(t, sp.Commit(t.Context()))
	var n int
	must(t, tx.DB().QueryRow(t.Context(), "SELECT sum(n) FROM t").Scan(&n))
	if n != 2 {
		t.Errorf("sum %d", n)
	}
}

func TestSwallowedFailureIsNoCommit(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	_, _ = tx.DB().Exec(t.Context(), "SELECT FROM gone")
	err := tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	var swallowed *postgres.SwallowedError
	if !errors.As(err, &swallowed) || tx.Class(err) != inbox.ClassRoute {
		t.Errorf("got %v, class %s", err, tx.Class(err))
	}
	begin(t, s, sp) // the connection is whole
}

// A handler forgets to close its rows: that is no outage, which would be waited out
// for ever.
func TestResultLeftOpenIsTheHandlers(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	rows, err := tx.DB().Query(t.Context(), "SELECT generate_series(1, 100000)")
	must(t, err)
	rows.Next()
	if !tx.Failed() {
		t.Error("nothing can be done in this transaction, and it hasn't failed")
	}
	err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	if err == nil || tx.Class(err) != inbox.ClassHandler {
		t.Errorf("%v: class %s", err, tx.Class(err))
	}
	begin(t, s, sp)
}

// The handler's SQL ends the transaction: what follows is not the inbox's any more,
// and must not move the watermark.
func TestTransactionEndedBySQLIsNoCommit(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{"COMMIT", "ROLLBACK", "ROLLBACK; BEGIN", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			s, row := lane(t, url)
			sp := span(row, 1)
			tx := begin(t, s, sp)
			_, err := tx.DB().Exec(t.Context(), sql)
			must(t, err)
			err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
			if err == nil || tx.Class(err) != inbox.ClassRoute {
				t.Errorf("%v: class %s", err, tx.Class(err))
			}
			if look(t, s, p0).Next != 0 {
				t.Error("the watermark moved")
			}
		})
	}
}

func TestLostConnectionIsAnOutageAndReplaced(t *testing.T) {
	t.Parallel()
	url, s, tx := effects(t)
	pid := tx.DB().Conn().PgConn().PID()
	ask[bool](t, connect(t, url), "SELECT pg_terminate_backend($1, 5000)", pid)
	_, err := tx.DB().Exec(t.Context(), "SELECT 1")
	if got := tx.Class(fmt.Errorf("%v", err)); err == nil || got != inbox.ClassOutage || !tx.Failed() {
		t.Errorf("%v: class %s", err, got)
	}
	tx.Rollback(t.Context())
	l, err := s.Look(t.Context(), nil)
	must(t, err)
	begin(t, s, span(l.Rows[0], 1))
}

func TestSessionEndedDuringCommitIsAmbiguous(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	must(t, begin(t, s, sp).Commit(t.Context(), []inbox.Settled{{Span: sp}})) // statements are prepared
	row.Next++
	sp = span(row, 1)
	tx := begin(t, s, sp)
	ask[bool](t, connect(t, url), "SELECT pg_terminate_backend($1, 5000)", tx.DB().Conn().PgConn().PID())
	err := tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
	if err == nil || tx.Class(err) != inbox.ClassAmbiguous {
		t.Errorf("%v: class %s", err, tx.Class(err))
	}
	begin(t, s, sp)
}

func TestReadOnlyServerIsLeft(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$")
	exec1(t, c, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	for range 3 { // first the lost connection, then the refusal, each on another connection
		if _, err := s.Begin(t.Context(), []inbox.Span{span(row, 1)}); err == nil || s.Class(err) != inbox.ClassOutage {
			t.Fatalf("got %v", err)
		}
	}
	exec1(t, c, "DO $$ BEGIN SET TRANSACTION READ WRITE; EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$")
	begin(t, s, span(row, 1)) // a connection made before would still refuse
}

func TestHandlersOwnTimeoutIsNoOutage(t *testing.T) {
	t.Parallel()
	_, _, tx := effects(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50_000_000)
	defer cancel()
	_, err := tx.DB().Exec(ctx, "SELECT pg_sleep(10)")
	if got := tx.Class(errors.New("too slow")); err == nil || got != inbox.ClassHandler {
		t.Errorf("%v: class %s", err, got)
	}
}

func TestChangedPlanIsOnceAConflictThenTheRoute(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE t (n int)")
	read := func() error {
		tx := begin(t, s, span(row, 1))
		defer tx.Rollback(t.Context())
		rows, err := tx.DB().Query(t.Context(), "SELECT * FROM t")
		if err == nil {
			_, err = pgx.CollectRows(rows, pgx.RowToMap)
		}
		if err == nil {
			return nil
		}
		for range 2 {
			if got := tx.Class(err); got != inbox.ClassConflict {
				t.Fatalf("%v: class %s", err, got)
			}
		}
		return err
	}
	must(t, read())
	exec1(t, c, "ALTER TABLE t ADD m int")
	if read() == nil {
		t.Fatal("the plan did not change")
	}
	tx := begin(t, s, span(row, 1))
	_, err := tx.DB().Exec(t.Context(), "DO 'BEGIN RAISE SQLSTATE ''0A000''; END'")
	if got := tx.Class(err); got != inbox.ClassRoute {
		t.Errorf("the second time: class %s", got)
	}
}

// Many languages of the server have a word of their own for FATAL.
func TestASessionsEndIsKnownInEveryLanguage(t *testing.T) {
	t.Parallel()
	for pg, open := range map[pgconn.PgError]bool{
		{Severity: "FATAL", SeverityUnlocalized: "FATAL"}:  false,
		{Severity: "ВАЖНО", SeverityUnlocalized: "FATAL"}:  false,
		{Severity: "致命错误", SeverityUnlocalized: "PANIC"}:   false,
		{Severity: "ОШИБКА", SeverityUnlocalized: "ERROR"}: true,
	} {
		if got := postgres.CloseOnFatal(nil, &pg); got != open {
			t.Errorf("%+v: open %t", pg, got)
		}
	}
}
