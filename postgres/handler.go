package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrManaged is the answer to Commit and Rollback of a transaction that was
// handed out: it ends with the batch. Begin gives a savepoint, which may be
// released and rolled back to.
var ErrManaged = errors.New("this transaction belongs to the inbox: return an error to roll it back")

// handlerTx is the transaction as a handler gets it.
type handlerTx struct {
	pgx.Tx
	of *inboxTx
}

func (h *handlerTx) Commit(context.Context) error   { return ErrManaged }
func (h *handlerTx) Rollback(context.Context) error { return ErrManaged }

// Begin opens a savepoint; its errors are seen too.
func (h *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := h.Tx.Begin(ctx)
	if err != nil {
		return nil, h.of.note(err)
	}
	return &savepoint{handlerTx{Tx: tx, of: h.of}}, nil
}

// savepoint is a nested transaction, which the handler ends itself.
type savepoint struct{ handlerTx }

func (s *savepoint) Commit(ctx context.Context) error   { return s.of.note(s.Tx.Commit(ctx)) }
func (s *savepoint) Rollback(ctx context.Context) error { return s.of.note(s.Tx.Rollback(ctx)) }

func (h *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := h.Tx.Exec(ctx, sql, args...)
	return tag, h.of.note(err)
}

func (h *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	d, err := h.Tx.Prepare(ctx, name, sql)
	return d, h.of.note(err)
}

func (h *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	n, err := h.Tx.CopyFrom(ctx, table, columns, src)
	return n, h.of.note(err)
}

func (h *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := h.Tx.Query(ctx, sql, args...)
	return &seenRows{rows, h.of}, h.of.note(err)
}

func (h *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return &seenRow{h.Tx.QueryRow(ctx, sql, args...), h.of}
}

func (h *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return &seenBatch{h.Tx.SendBatch(ctx, b), h.of}
}

type seenRows struct {
	pgx.Rows
	of *inboxTx
}

func (r *seenRows) Err() error { return r.of.note(r.Rows.Err()) }

// Next notes the error that ends the rows: a handler may never ask for it.
func (r *seenRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.of.note(r.Rows.Err())
	}
	return more
}

type seenRow struct {
	pgx.Row
	of *inboxTx
}

func (r *seenRow) Scan(dest ...any) error { return r.of.note(r.Row.Scan(dest...)) }

type seenBatch struct {
	pgx.BatchResults
	of *inboxTx
}

func (b *seenBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.of.note(err)
}

func (b *seenBatch) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	return &seenRows{rows, b.of}, b.of.note(err)
}

func (b *seenBatch) QueryRow() pgx.Row { return &seenRow{b.BatchResults.QueryRow(), b.of} }
func (b *seenBatch) Close() error      { return b.of.note(b.BatchResults.Close()) }
