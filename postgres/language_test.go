//go:build languages

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// A server speaks these; of each, what it calls a deadlock, and an error. Of the two
// only German calls a fatal error FATAL, as the driver expects.
var languages = map[string]struct{ deadlock, severity string }{
	"de_DE.UTF-8": {"Verklemmung", "FEHLER"},
	"ru_RU.UTF-8": {"взаимоблокировка", "ОШИБКА"},
}

// failure is a way to fail; the transaction is over afterwards.
type failure struct {
	code  string
	class inbox.Class
	fail  func(l *languageLane, tx inbox.Tx[pgx.Tx]) error
}

func says(sql string) func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
	return func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		_, err := tx.DB().Exec(l.t.Context(), sql)
		return err
	}
}

var languageFailures = map[string]failure{
	"unique":            {"23505", inbox.ClassPoison, says("INSERT INTO child VALUES (1, 1), (1, 1)")},
	"check":             {"23514", inbox.ClassPoison, says("INSERT INTO child VALUES (-1, 1)")},
	"not null":          {"23502", inbox.ClassPoison, says("INSERT INTO child VALUES (1, NULL)")},
	"foreign key":       {"23503", inbox.ClassPoison, says("INSERT INTO child VALUES (1, 7)")},
	"deferred":          {"23503", inbox.ClassPoison, says("INSERT INTO later VALUES (7); SET CONSTRAINTS ALL IMMEDIATE")},
	"a number":          {"22P02", inbox.ClassPoison, says("SELECT 'x'::int")},
	"out of range":      {"22003", inbox.ClassPoison, says("SELECT 3000000000::int")},
	"no partition":      {"23514", inbox.ClassRoute, says("INSERT INTO parted VALUES (1)")},
	"undefined table":   {"42P01", inbox.ClassRoute, says("INSERT INTO gone VALUES (1)")},
	"undefined column":  {"42703", inbox.ClassRoute, says("INSERT INTO child (gone) VALUES (1)")},
	"read only":         {"25006", inbox.ClassOutage, says("SET TRANSACTION READ ONLY; INSERT INTO child VALUES (1, 1)")},
	"statement timeout": {"57014", inbox.ClassSlow, says("SET LOCAL statement_timeout = '50ms'; SELECT pg_sleep(60)")},
	"swallowed": {"25P02", inbox.ClassPoison, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		_ = says("SELECT 1/0")(l, tx) // which decides
		return says("SELECT 1")(l, tx)
	}},
	"lock timeout": {"55P03", inbox.ClassConflict, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		exec1(l.t, l.c, "BEGIN; LOCK TABLE child")
		defer exec1(l.t, l.c, "ROLLBACK")
		return says("SET LOCAL lock_timeout = '50ms'; INSERT INTO child VALUES (1, 1)")(l, tx)
	}},
	"deadlock": {"40P01", inbox.ClassConflict, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		exec1(l.t, l.c, "SET deadlock_timeout = '1h'; BEGIN; SELECT FROM parent WHERE id = 1 FOR UPDATE") // ours is the one that looks
		must(l.t, says("SET LOCAL deadlock_timeout = '10ms'; SELECT FROM parent WHERE id = 2 FOR UPDATE")(l, tx))
		stranger := make(chan error, 1)
		go func() {
			_, err := l.c.Exec(context.Background(), "SELECT FROM parent WHERE id = 2 FOR UPDATE")
			stranger <- err
		}()
		waits := connect(l.t, l.url)
		for !ask[bool](l.t, waits, "SELECT count(*) > 0 FROM pg_locks WHERE pid = $1 AND NOT granted", l.c.PgConn().PID()) {
		}
		err := says("SELECT FROM parent WHERE id = 1 FOR UPDATE")(l, tx)
		tx.Rollback(l.t.Context())
		must(l.t, <-stranger)
		exec1(l.t, l.c, "ROLLBACK")
		return err
	}},
	"a changed plan": {"0A000", inbox.ClassConflict, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		must(l.t, says("PREPARE it AS SELECT * FROM altered; EXECUTE it")(l, tx))
		must(l.t, says("ALTER TABLE altered ADD m int")(l, tx))
		return says("EXECUTE it")(l, tx)
	}},
	"idle for too long": {"25P03", inbox.ClassSlow, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		must(l.t, says("SET LOCAL idle_in_transaction_session_timeout = '50ms'")(l, tx))
		for ask[bool](l.t, l.c, "SELECT count(*) > 0 FROM pg_stat_activity, pg_sleep(0.01) WHERE pid = $1", tx.DB().Conn().PgConn().PID()) {
		}
		return says("SELECT 1")(l, tx)
	}},
	"the session is ended": {"57P01", inbox.ClassOutage, func(l *languageLane, tx inbox.Tx[pgx.Tx]) error {
		return says("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")(l, tx)
	}},
}

// languageLane is a store at a server that speaks a language.
type languageLane struct {
	t   *testing.T
	url string
	c   *pgx.Conn // a stranger's
	s   *postgres.InboxStore
	row inbox.Row
}

func newLanguageLane(t *testing.T, language string) *languageLane {
	t.Helper()
	to := migrated(t)
	admin := connect(t, to)
	_, err := admin.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET lc_messages = %%L', current_database(), '%s'); END $$`, language))
	if err != nil {
		t.Fatalf("no language %s here (`make setup` brings it): %v", language, err)
	}
	l := &languageLane{t: t, url: to, c: connect(t, to)}
	exec1(t, l.c, `CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1), (2);
		CREATE TABLE child (id int PRIMARY KEY CHECK (id > 0), parent int NOT NULL REFERENCES parent);
		CREATE TABLE later (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE parted (n int) PARTITION BY RANGE (n);
		CREATE TABLE altered (n int)`)
	l.s, l.row = lane(t, to)
	return l
}

// fails answers the error of a failure, and what the store takes it for.
func (l *languageLane) fails(f failure) (*pgconn.PgError, inbox.Class) {
	l.t.Helper()
	tx := begin(l.t, l.s, span(l.row, 1))
	defer tx.Rollback(l.t.Context())
	err := f.fail(l, tx)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		l.t.Fatalf("no error of the server: %v", err)
	}
	return pg, tx.Class(err)
}

// englishFailures are the texts of failures at a server that speaks English.
func englishFailures(t *testing.T) map[string]string {
	t.Helper()
	l, texts := newLanguageLane(t, "C"), map[string]string{}
	for name, f := range languageFailures {
		pg, _ := l.fails(f)
		texts[name] = pg.Message
	}
	return texts
}

func TestAServerThatSpeaksAnotherLanguageChangesNoClass(t *testing.T) {
	t.Parallel()
	english := englishFailures(t)
	for language, words := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			l := newLanguageLane(t, language)
			for name, f := range languageFailures {
				pg, class := l.fails(f)
				if pg.Code != f.code || class != f.class {
					t.Errorf("%s: %s is %s, want %s of %s", name, pg.Code, class, f.code, f.class)
				}
				if pg.Message == english[name] || pg.SeverityUnlocalized == "ERROR" && pg.Severity != words.severity || name == "deadlock" && !strings.Contains(pg.Message, words.deadlock) {
					t.Errorf("%s: it says %s: %s (`make setup` brings its words)", name, pg.Severity, pg.Message)
				}
			}
			begin(t, l.s, span(l.row, 1)) // on a connection that is whole
		})
	}
}

func TestAServerThatSpeaksAnotherLanguageBuriesTheSameMessages(t *testing.T) {
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			l := newLanguageLane(t, language)
			exec1(t, l.c, "CREATE TABLE t (id int PRIMARY KEY CHECK (id <> 7), parent int REFERENCES parent)")
			r := startRoute(t, l.c, l.url, "t", inbox.ErrorPolicy{})
			r.send(0, numbered(0, 10)...)
			r.send(0, `{"id":10,"parent":1}`, `{"id":11,"parent":3}`, `{"id":0}`)
			r.until("all is settled", func() bool { return r.settled(0) == 13 })
			r.stop()
			if got := r.dead(); got != "0/7 constraint 23514 1, 0/11 constraint 23503 1" {
				t.Error(got)
			}
			if n := ask[int](t, l.c, "SELECT count(*)::int FROM t"); n != 10 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// Three sessions that broke are enough to blame a message; ten are needed of such
// that were ended by command, which a fatal error of another name still says.
func TestAServerThatSpeaksAnotherLanguageEndsSessionsByTheSameCode(t *testing.T) {
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			aMessageEndsItsOwnSession(t, newLanguageLane(t, language).url)
		})
	}
}
