package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// SQLState is one line of the table that gives every SQLSTATE a class.
type SQLState struct {
	Code  string // five characters, or the first two for a whole class of codes
	Class inbox.Class
	Why   string
}

// SQLStates is that table. The longest code that fits decides; what isn't here
// is [inbox.ClassHandler]: attempts, then a dead letter.
var SQLStates = []SQLState{
	{"08", inbox.ClassOutage, "connection"},
	{"0A", inbox.ClassRoute, "feature not supported"},
	{"0A000", inbox.ClassRoute, "feature not supported, changed plan: once again as a conflict, then the route"},
	{"21", inbox.ClassPoison, "cardinality: two rows where one is allowed"},
	{"22", inbox.ClassPoison, "data exception"},
	{"23", inbox.ClassPoison, "integrity constraint; but 23514 without a constraint's name: no partition for the row, the route"},
	{"25", inbox.ClassHandler, "transaction state"},
	{"25006", inbox.ClassOutage, "read-only transaction: a demoted server; the connection is thrown away"},
	{"25P02", inbox.ClassHandler, "a statement failed before and its error was swallowed"},
	{"25P03", inbox.ClassSlow, "idle in transaction for too long"},
	{"25P04", inbox.ClassSlow, "transaction time-out"},
	{"26", inbox.ClassOutage, "prepared statement is gone: a pooler, see InboxConfig; the connection is thrown away"},
	{"28", inbox.ClassOutage, "credentials"},
	{"3D", inbox.ClassOutage, "database is not there"},
	{"3F", inbox.ClassRoute, "schema is not there"},
	{"40", inbox.ClassConflict, "serialization, deadlock"},
	{"40002", inbox.ClassPoison, "integrity constraint at commit"},
	{"42", inbox.ClassRoute, "undefined column or table, privilege, syntax"},
	{"42P05", inbox.ClassOutage, "prepared statement exists: a pooler, see InboxConfig; the connection is thrown away"},
	{"44", inbox.ClassPoison, "check option of a view"},
	{"53", inbox.ClassOutage, "out of disk, memory, connections"},
	{"54", inbox.ClassPoison, "too large or too deep: an index row, a nested value"},
	{"54011", inbox.ClassRoute, "too many columns"},
	{"54023", inbox.ClassRoute, "too many arguments"},
	{"55", inbox.ClassRoute, "object not in the state that the statement needs"},
	{"55006", inbox.ClassConflict, "object in use"},
	{"55P03", inbox.ClassConflict, "lock time-out"},
	{"57", inbox.ClassOutage, "shutdown"},
	{"57014", inbox.ClassSlow, "statement time-out, or cancelled by somebody"},
	{"58", inbox.ClassOutage, "error of the server's system"},
	{"72", inbox.ClassConflict, "snapshot too old"},
	{"F0", inbox.ClassOutage, "error in the server's configuration"},
	{"SM", inbox.ClassRoute, "Semel's own functions: SM001 isolation level, SM002 consumer can't be registered, SM004 fenced, SM005 a place that can't be claimed"},
	{"XX001", inbox.ClassRoute, "data of the server is damaged"},
	{"XX002", inbox.ClassRoute, "an index of the server is damaged"},
}

// SQLStateClass is the class of a code by the table alone.
func SQLStateClass(code string) inbox.Class {
	class, length := inbox.ClassHandler, 0
	for _, s := range SQLStates {
		if len(s.Code) > length && strings.HasPrefix(code, s.Code) {
			class, length = s.Class, len(s.Code)
		}
	}
	return class
}

// classOf adds what a code doesn't say. PostgreSQL reports a row that no
// partition takes as a check violation of a table without naming a constraint,
// while a CHECK or a domain always names one.
func classOf(pg *pgconn.PgError) inbox.Class {
	if pg.Code == "23514" && pg.ConstraintName == "" && pg.TableName != "" {
		return inbox.ClassRoute
	}
	return SQLStateClass(pg.Code)
}

// AmbiguousError says that COMMIT was sent and its answer was not received: the
// transaction may have been committed or not.
type AmbiguousError struct{ Err error }

func (e *AmbiguousError) Error() string { return "no answer to COMMIT: " + e.Err.Error() }
func (e *AmbiguousError) Unwrap() error { return e.Err }

// classedError is an error whose class this package knows better than its code.
type classedError struct {
	class inbox.Class
	what  string
	err   error
}

func (e *classedError) Error() string {
	if e.err == nil {
		return e.what
	}
	return e.what + ": " + e.err.Error()
}
func (e *classedError) Unwrap() error { return e.err }

// CloseOnFatal is for a pool's ConnConfig.OnPgError. The driver's own takes an error
// for the session's end by the word FATAL, which some languages of the server
// translate: then a session that was ended by command looks like a network that broke,
// and a message that was in it is suspected of that after three times instead of ten.
func CloseOnFatal(_ *pgconn.PgConn, pg *pgconn.PgError) bool { return !fatal(pg) }

func fatal(pg *pgconn.PgError) bool {
	return pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
}

// typed is the class of errors that carry it in their type.
func typed(err error) (inbox.Class, bool) {
	var (
		own       *classedError
		ambiguous *AmbiguousError
		fenced    *inbox.FencedError
		changed   *inbox.ChangedError
		halt      *inbox.HaltError
		schema    *SchemaError
	)
	switch {
	case errors.As(err, &ambiguous):
		return inbox.ClassAmbiguous, true
	case errors.As(err, &fenced), errors.Is(err, inbox.ErrNoRow):
		return inbox.ClassFenced, true
	case errors.As(err, &own):
		return own.class, true
	case errors.As(err, &changed), errors.As(err, &halt), errors.As(err, &schema):
		return inbox.ClassRoute, true
	}
	return 0, false
}

// Class says what an error of this store means. An error without an SQLSTATE is
// one of the connection.
func (s *InboxStore) Class(err error) inbox.Class {
	if class, ok := typed(err); ok {
		return class
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return s.classOf(pg)
	}
	return inbox.ClassOutage
}

// classOf takes the first changed plan since the last commit for a conflict: the
// statement is planned anew when the batch runs again.
func (s *InboxStore) classOf(pg *pgconn.PgError) inbox.Class {
	if pg.Code != "0A000" {
		return classOf(pg)
	}
	if s.replan == nil {
		s.replan = pg
	}
	if s.replan == pg {
		return inbox.ClassConflict
	}
	return inbox.ClassRoute
}

// Class says what an error means that was met inside this transaction. Only what
// came over this transaction's connection is judged by its SQLSTATE; errors of a
// handler's other connections are the handler's. If a statement failed here and
// the handler hid its error, that statement decides.
func (t *inboxTx) Class(err error) inbox.Class {
	if class, ok := typed(err); ok {
		return class
	}
	var permanent *semel.PermanentError
	var outage *semel.OutageError
	switch {
	case errors.As(err, &permanent):
		return inbox.ClassPoison
	case errors.As(err, &outage):
		return inbox.ClassOutage
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code != "25P02" && t.ours(pg) {
		return t.store.classOf(pg)
	}
	switch {
	case t.status() == 'E' && t.failed != nil:
		return t.store.classOf(t.failed)
	case !t.ended && t.status() == 'I' && !t.conn.IsClosed():
		return inbox.ClassRoute // the handler's SQL ended the transaction
	case t.conn.IsClosed() && !t.cancelled && !cancelled(err):
		return inbox.ClassOutage
	}
	return inbox.ClassHandler
}

// ours says whether an error came over this connection: it was seen coming, or
// the transaction has failed by an error that wasn't seen (the handler used the
// connection itself).
func (t *inboxTx) ours(pg *pgconn.PgError) bool {
	for _, seen := range t.seen {
		if seen == pg {
			return true
		}
	}
	return t.failed == nil && (t.status() == 'E' || t.conn.IsClosed())
}

// cancelled says whether an error comes of a context that ended. pgx closes the
// connection then; that is the doing of whoever gave the context, no outage.
func cancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// note remembers an error that came over this connection.
func (t *inboxTx) note(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.cancelled = t.cancelled || cancelled(err)
		return err
	}
	if len(t.seen) < cap(t.seen) {
		t.seen = append(t.seen, pg)
	} else {
		t.seen[t.next%cap(t.seen)] = pg
	}
	t.next++
	if pg.Code != "25P02" {
		t.failed = pg
	}
	return err
}
