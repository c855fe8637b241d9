// Package sqldb admits message IDs through database/sql, with any driver for
// PostgreSQL. It is for programs that have a loop of their own: one call inside
// your transaction says whether a message is fresh.
//
//	tx, err := db.BeginTx(ctx, nil)
//	fresh, err := inbox.Admit(ctx, tx, "billing", semel.IDOf(m.Key))
//	if fresh { … the effect, with tx … }
//	err = tx.Commit()
//
// [Watermark] is the other memory, for what a broker delivers again.
//
// The tables are made by `semel migrate` or postgres.Migrate.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// Config says where the tables are.
type Config struct {
	Schema string // "": semel
}

// InboxStore admits message IDs. It holds nothing and is safe for use by many
// goroutines.
type InboxStore struct{ admit, batch, remember, forget string }

// NewInboxStore makes one.
func NewInboxStore(cfg Config) *InboxStore {
	schema := quoted(cfg.Schema)
	return &InboxStore{
		// IDs go as text, which every driver can send.
		admit: `SELECT ` + schema + `.admit(CAST($1 AS text), CAST(CAST($2 AS text) AS uuid))`,
		batch: `SELECT CAST(u AS text) FROM ` + schema + `.admit_batch(CAST($1 AS text), CAST(string_to_array(CAST($2 AS text), ',') AS uuid[])) u`,

		remember: `SELECT ` + schema + `.remember(CAST($1 AS text), CAST(string_to_array(CAST($2 AS text), ',') AS uuid[]))`,
		forget:   `CALL ` + schema + `.forget(CAST($1 AS text), make_interval(secs => CAST($2 AS float8)))`,
	}
}

func quoted(schema string) string {
	if schema == "" {
		schema = "semel"
	}
	return `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`
}

// IsolationError says that the inbox was asked under another level than READ
// COMMITTED: with an older snapshot a repeat would be an error, not an answer.
type IsolationError struct{ Err error }

func (e *IsolationError) Error() string { return e.Err.Error() }
func (e *IsolationError) Unwrap() error { return e.Err }

// Admit records an ID in the inbox of the consumer, inside your transaction, and
// says whether it is fresh: make the effect in the same transaction only then. A
// consumer without an inbox gets one if the role may make tables; else the error
// names the command. The transaction must be READ COMMITTED, PostgreSQL's
// default, else it is an [*IsolationError].
func (s *InboxStore) Admit(ctx context.Context, tx *sql.Tx, consumer string, id semel.ID) (fresh bool, err error) {
	err = tx.QueryRowContext(ctx, s.admit, consumer, id.String()).Scan(&fresh)
	return fresh, admitError(consumer, err)
}

// AdmitBatch does the same for many IDs, in one round trip, and answers the
// fresh ones in the order given. An ID that is given twice is fresh once. IDs that
// another transaction holds are waited for, in one order, so that two batches with
// the same IDs never wait in a circle.
func (s *InboxStore) AdmitBatch(ctx context.Context, tx *sql.Tx, consumer string, ids []semel.ID) (fresh []semel.ID, err error) {
	texts := textsOf(ids)
	rows, err := tx.QueryContext(ctx, s.batch, consumer, strings.Join(texts, ","))
	if err != nil {
		return nil, admitError(consumer, err)
	}
	defer rows.Close()
	isFresh := make(map[string]bool, len(ids))
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, admitError(consumer, err)
		}
		isFresh[text] = true
	}
	if err := rows.Err(); err != nil {
		return nil, admitError(consumer, err)
	}
	for i, id := range ids {
		if isFresh[texts[i]] {
			fresh = append(fresh, id)
			isFresh[texts[i]] = false
		}
	}
	return fresh, nil
}

// Remember records IDs as applied whose effects were made before Semel came, or
// without it: a repeat of their messages is a duplicate from then on, for the
// window. It says how many were new. Some 10,000 at a time is a good size.
func (s *InboxStore) Remember(ctx context.Context, tx *sql.Tx, consumer string, ids []semel.ID) (added int64, err error) {
	err = tx.QueryRowContext(ctx, s.remember, consumer, strings.Join(textsOf(ids), ",")).Scan(&added)
	return added, admitError(consumer, err)
}

// ForgetOlder removes the consumer's IDs that are older than keep, counted back
// from where it last moved, in small transactions of its own: the daily chore of
// a consumer that calls Admit. Keep must cover the topic's retention, or a replay
// of what the topic holds takes effect again.
func (s *InboxStore) ForgetOlder(ctx context.Context, db *sql.DB, consumer string, keep time.Duration) error {
	_, err := db.ExecContext(ctx, s.forget, consumer, keep.Seconds())
	if err != nil {
		err = fmt.Errorf("forget old message IDs of %s: %w", consumer, err)
	}
	return err
}

func textsOf(ids []semel.ID) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	return texts
}

// admitError knows the inbox's own SQLSTATE from any driver whose errors tell
// theirs, as those of pgx and lib/pq do.
func admitError(consumer string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the inbox of %s: %w", consumer, err)
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) && coded.SQLState() == "SM001" {
		return &IsolationError{Err: err}
	}
	return err
}
