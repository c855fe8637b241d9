package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// Try applies decoded items, one by one and in order, as a consumer would, in a
// transaction that it rolls back. It answers what the table would hold of them,
// a row as JSON each, and sets their Outcome; a dead one has its Err and Class. Nothing is locked beyond the rows that are written, no claim is
// needed and none is disturbed. It reads the whole table to find the rows.
func (t *Table) Try(ctx context.Context, conn *pgx.Conn, schema, consumer string, items []inbox.Item) (made []string, err error) {
	return tryItems(ctx, conn, schema, consumer, items, t, func(tx pgx.Tx) ([]string, error) { return t.made(ctx, tx) })
}

// Try is that of [Table]; each row stands under its table's name.
func (t *Tables) Try(ctx context.Context, conn *pgx.Conn, schema, consumer string, items []inbox.Item) ([]string, error) {
	return tryItems(ctx, conn, schema, consumer, items, t, func(tx pgx.Tx) (all []string, err error) {
		for _, table := range t.sorted() {
			rows, err := table.made(ctx, tx)
			if err != nil {
				return nil, err
			}
			for _, row := range rows {
				all = append(all, table.name.String()+" "+row)
			}
		}
		return all, nil
	})
}

// tried is an effect that can be tried.
type tried interface {
	inbox.Effect[pgx.Tx]
	onCollision() inbox.CollisionPolicy
}

func (t *Table) onCollision() inbox.CollisionPolicy  { return t.cfg.OnCollision }
func (t *Tables) onCollision() inbox.CollisionPolicy { return t.cfg.OnCollision }

func tryItems(ctx context.Context, conn *pgx.Conn, schema, consumer string, items []inbox.Item, effect tried, made func(tx pgx.Tx) ([]string, error)) ([]string, error) {
	// One snapshot: what others commit meanwhile must not look like ours.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	seen, err := remembered(ctx, tx, nameOf(schema), consumer, items)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if err := try(ctx, tx, effect, seen, &items[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", items[i].Position(), err)
		}
	}
	return made(tx)
}

// made are the rows that the transaction has written.
func (t *Table) made(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT to_jsonb(t)::text FROM `+t.name.sql()+` t WHERE age(t.xmin) <= age(pg_current_xact_id()::xid)`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// try takes one item in a savepoint of its own. seen are the IDs that are known, with
// their digests; nil: none are kept.
func try(ctx context.Context, tx pgx.Tx, effect tried, seen map[semel.ID]inbox.Digest, it *inbox.Item) error {
	if it.Skip {
		it.Outcome = inbox.Skipped
		return nil
	}
	if digest, known := seen[it.ID]; known && !it.ID.IsZero() {
		it.Outcome = inbox.DuplicateID
		var none inbox.Digest
		if effect.onCollision() != inbox.CollisionDuplicate && digest != none && it.Digest != none && digest != it.Digest {
			it.Outcome, it.Class, it.Err = inbox.Dead, inbox.DeadCollision, errOtherContent
		}
		return nil
	}
	if seen != nil && !it.ID.IsZero() {
		seen[it.ID] = it.Digest // also of what will be dead
	}
	if it.Err != nil {
		it.Outcome = inbox.Dead
		return nil
	}
	part, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	err = effect.Apply(ctx, tryTx{part}, []*inbox.Item{it})
	if err == nil {
		_, err = part.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`)
	}
	if err == nil {
		if it.Err != nil { // the effect itself judged it
			it.Outcome = inbox.Dead
		}
		return part.Commit(ctx)
	}
	if err := part.Rollback(ctx); err != nil {
		return err
	}
	class, dead := tryDeath(err)
	if !dead {
		return err
	}
	it.Outcome, it.Err, it.Class = inbox.Dead, err, class
	return nil
}

// tryDeath says whether an error buries the message, once its attempts are spent, and
// as what.
func tryDeath(err error) (inbox.DeadClass, bool) {
	var halt *inbox.HaltError
	var pg *pgconn.PgError
	if errors.As(err, &halt) || !errors.As(err, &pg) {
		return "", false
	}
	var permanent *semel.PermanentError
	switch class := classOf(pg); {
	case errors.As(err, &permanent) && pg.Code == "42601":
		return inbox.DeadValue, true
	case class == inbox.ClassPoison && strings.HasPrefix(pg.Code, "22"):
		return inbox.DeadValue, true
	case class == inbox.ClassPoison && strings.HasPrefix(pg.Code, "23"):
		return inbox.DeadConstraint, true
	default:
		return inbox.DeadHandler, class == inbox.ClassPoison || class == inbox.ClassHandler
	}
}

// remembered are the items' IDs that the inbox knows; none without an inbox.
func remembered(ctx context.Context, tx pgx.Tx, n schemaName, consumer string, items []inbox.Item) (map[semel.ID]inbox.Digest, error) {
	seen := map[semel.ID]inbox.Digest{}
	state, _, err := SchemaState(ctx, tx, string(n))
	if err != nil || state == SchemaMissing {
		return seen, err
	}
	var ids []pgtype.UUID
	for _, it := range items {
		if !it.ID.IsZero() {
			ids = append(ids, pgtype.UUID{Bytes: it.ID, Valid: true})
		}
	}
	rows, err := tx.Query(ctx, n.sql(`SELECT id FROM semel.inbox WHERE consumer = $1 AND id = ANY($2)`), consumer, ids)
	if err != nil {
		return nil, err
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
	for _, id := range known {
		seen[id.Bytes] = inbox.Digest{}
	}
	return seen, err
}

// tryTx is a transaction for effects alone: what else a batch does in one isn't
// tried.
type tryTx struct{ pgx.Tx }

var errTried = errors.New("not in a dry run")

func (t tryTx) DB() pgx.Tx { return t.Tx }

func (tryTx) Admit(context.Context, []inbox.Admission) ([]inbox.Verdict, error) { return nil, errTried }
func (tryTx) Bury(context.Context, []inbox.DeadLetter) error                    { return errTried }
func (tryTx) Commit(context.Context, []inbox.Settled) error                     { return errTried }
func (tryTx) Rollback(context.Context)                                          {}
func (t tryTx) Failed() bool                                                    { return t.Conn().PgConn().TxStatus() == 'E' }

func (tryTx) Class(err error) inbox.Class { return SQLStateClass(sqlState(err)) }

func (tryTx) Describe(err error) (string, string) { return sqlState(err), err.Error() }
