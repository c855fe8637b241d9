package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/inbox"
)

// QueryConfig is a route whose effect is SQL of the user's own.
type QueryConfig struct {
	// TableConfig says how messages become rows of the relation: ID, Identified,
	// SeveralTopics, KeyFormat, Raw, Open, OnCollision, Tombstone, Absent, StripNUL,
	// HaltUnknown, Zone and Epoch count, and Columns has an expression for each
	// column.
	TableConfig
	// Relation are the columns, in order. n is taken: the message's number.
	Relation []QueryColumn
	// SQL is what is run for each batch, over the relation named batch.
	SQL string
	// Each: it returns, as n, the numbers of the messages that took effect; one
	// without is dead.
	Each bool
}

// QueryColumn is a column of the relation; Type is written as in SQL.
type QueryColumn struct{ Name, Type string }

// Query runs SQL over batches: their messages are the rows of a temporary table
// named batch, with their number n in order. It is an inbox.Effect for one lane.
type Query struct {
	*Table
	sql    string
	each   bool
	single bool   // it is one statement
	create string // makes the empty relation
	fills  queryFills
	list   string
}

var _ inbox.Effect[pgx.Tx] = (*Query)(nil)

// Beginner is a connection, or a pool of them.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// queryName is what the relation is called.
const queryName = "batch"

// NewQuery has the server look at the types and at the SQL, in a transaction that
// is rolled back. The route's mistakes are *TableError.
func NewQuery(ctx context.Context, db Beginner, cfg QueryConfig) (*Query, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	q := &Query{Table: &Table{name: TableName{Name: queryName}, guess: newGuess()}, sql: cfg.SQL, each: cfg.Each}
	q.scratch.New = func() any { return new(tableScratch) }
	declared, names := []string{"n integer"}, []string{"n"}
	for _, c := range cfg.Relation {
		if c.Name == "n" {
			return nil, &TableError{Table: queryName, Column: c.Name, Why: "it is the message's number in the batch", Hint: "choose another name"}
		}
		if err := queryType(ctx, tx, c); err != nil {
			return nil, err
		}
		names = append(names, pgx.Identifier{c.Name}.Sanitize())
		declared = append(declared, names[len(names)-1]+" "+c.Type)
	}
	// One transaction may hold several batches, if it only tries them.
	q.create = fmt.Sprintf("CREATE TEMP TABLE IF NOT EXISTS %[1]s (%[2]s) ON COMMIT DROP; TRUNCATE pg_temp.%[1]s", queryName, strings.Join(declared, ", "))
	q.list = strings.Join(names, ", ")
	cfg.Write, cfg.PrimaryKey, cfg.Version = WriteAppend, nil, ""
	q.cfg = cfg.TableConfig
	if err := q.look(ctx, tx.Conn()); err != nil {
		return nil, err
	}
	q.fills, err = fillsOf(ctx, tx, q.sql)
	if err != nil {
		return nil, err
	}
	return q, q.check(ctx, tx)
}

// look makes the relation in a transaction, and the plan for it.
func (q *Query) look(ctx context.Context, c *pgx.Conn) error {
	if _, err := c.PgConn().Exec(ctx, q.create).ReadAll(); err != nil {
		return queryRefused(err, "the relation")
	}
	var oid uint32
	if err := c.QueryRow(ctx, "SELECT 'pg_temp."+queryName+"'::regclass::oid").Scan(&oid); err != nil {
		return err
	}
	columns, err := introspectColumns(ctx, c, oid)
	if err != nil {
		return err
	}
	info := &introspectTable{name: q.name, kind: "r", columns: columns[1:]} // without n
	if was := q.plan.Load(); was != nil && reflect.DeepEqual(info, was.info) {
		return nil
	}
	p, err := newTablePlan(info, q.cfg)
	if err != nil {
		return err
	}
	if p.memory == inbox.MemoryInbox {
		p.why = "the effect is SQL"
	}
	q.plan.Store(p)
	return nil
}

// Renew looks at the relation's types: those of the database's own don't change.
func (q *Query) Renew(ctx context.Context, tx inbox.Tx[pgx.Tx], _ string) error {
	own := func(c introspectColumn) bool { return !introspectBuiltin(c.oid) || c.domain }
	if !slices.ContainsFunc(q.plan.Load().info.columns, own) {
		return nil
	}
	return changedTable(q.look(ctx, tx.DB().Conn()))
}

// queryType refuses what is no type, before it gets near any statement.
func queryType(ctx context.Context, tx pgx.Tx, c QueryColumn) error {
	part, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer part.Rollback(ctx)
	var is bool
	err = part.QueryRow(ctx, "SELECT to_regtype($1) IS NOT NULL", c.Type).Scan(&is)
	var pg *pgconn.PgError
	if err != nil && !errors.As(err, &pg) {
		return err
	}
	if err != nil || !is {
		return &TableError{Table: queryName, Column: c.Name, Why: fmt.Sprintf("there is no type %q", c.Type), Hint: "types are written as in SQL: bigint, numeric(12,2), text[]"}
	}
	return nil
}

// queryRefused is the server's no to what a route says; other errors stay what
// they are.
func queryRefused(err error, what string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || SQLStateClass(pg.Code) != inbox.ClassRoute && SQLStateClass(pg.Code) != inbox.ClassPoison {
		return err
	}
	why := fmt.Sprintf("%s: %s (%s)", what, pg.Message, pg.Code)
	if pg.Position > 0 {
		why += fmt.Sprintf(", at character %d", pg.Position)
	}
	return &TableError{Table: queryName, Why: why, Hint: pg.Hint}
}

// check has the server read the SQL, and a single statement's plan made: that
// looks for privileges. Several statements are run over no message at all, where
// nothing can be written; the first that would write ends that.
func (q *Query) check(ctx context.Context, tx pgx.Tx) error {
	part, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	pg := tx.Conn().PgConn()
	d, err := pg.Prepare(ctx, "", q.sql, nil)
	if q.single = err == nil; q.single {
		if len(d.ParamOIDs) > 0 {
			return &TableError{Table: queryName, Why: "the SQL has parameters", Hint: "messages are rows of batch"}
		}
		if q.each && queryNumber(d.Fields) < 0 {
			return &TableError{Table: queryName, Why: "the SQL returns no column n, and expect: each needs it", Hint: "… RETURNING batch.n"}
		}
		_, err = pg.Exec(ctx, "EXPLAIN "+q.sql).ReadAll()
		return queryRefused(err, "the SQL")
	}
	refused := queryRefused(err, "the SQL")
	if err := part.Rollback(ctx); err != nil {
		return err
	}
	if sqlState(err) != "42601" {
		return refused
	}
	if _, err := tx.Exec(ctx, "SET TRANSACTION READ ONLY"); err != nil {
		return err
	}
	if _, err = pg.Exec(ctx, q.sql).ReadAll(); err == nil || sqlState(err) == "25006" {
		return nil
	}
	return queryRefused(err, "the SQL")
}

// queryNumber finds the column n of a result; -1: there is none.
func queryNumber(fields []pgconn.FieldDescription) int {
	for i, f := range fields {
		if f.Name == "n" {
			return i
		}
	}
	return -1
}

// errQueryNoEffect is why a message is dead that the SQL doesn't name.
var errQueryNoEffect = errors.New("no effect: the SQL returned no n for it")

// Apply makes the items' rows the relation, and runs the SQL.
func (q *Query) Apply(ctx context.Context, tx inbox.Tx[pgx.Tx], items []*inbox.Item) error {
	p := q.plan.Load()
	rows, err := q.rows(p, nil, items)
	if err != nil || len(rows) == 0 {
		return err
	}
	w := q.writer(p, tx)
	if err = q.run(ctx, w, rows); err == nil {
		return nil
	}
	if halt := q.fills.unfilled(err); halt != nil {
		return halt
	}
	if w.tx != nil {
		return w.tx.note(err)
	}
	return err
}

func (q *Query) run(ctx context.Context, w *tableWriter, rows []*tableRow) error {
	if err := w.exec(ctx, q.create); err != nil {
		return err
	}
	numbered := make([]*tableRow, len(rows))
	for i, r := range rows {
		numbered[i] = &tableRow{tuple: w.p.numbered(r.tuple, i+1)}
	}
	took, err := copyInto(ctx, w.pg, "pg_temp."+queryName+" ("+q.list+")", numbered, w.p.text)
	if err != nil {
		return err
	}
	if err := w.complete(len(rows), took); err != nil {
		return err
	}
	named, returned, err := q.execute(ctx, w.pg, len(rows))
	switch {
	case err != nil || !q.each:
		return err
	case !returned:
		return &inbox.HaltError{Kind: "no-numbers", Why: "the SQL returned no column n", Hint: "expect: each needs … RETURNING batch.n"}
	}
	for i, r := range rows {
		if !named[i] {
			r.item.Err, r.item.Class = errQueryNoEffect, inbox.DeadHandler
		}
	}
	return nil
}

// numbered is a tuple with the message's number in front.
func (p *tablePlan) numbered(tuple []byte, n int) []byte {
	number := binary.BigEndian.AppendUint32(nil, uint32(n))
	if p.text {
		number = strconv.AppendInt(nil, int64(n), 10)
	}
	out := make([]byte, 0, len(tuple)+4+len(number))
	out = binary.BigEndian.AppendUint16(out, binary.BigEndian.Uint16(tuple)+1)
	out = binary.BigEndian.AppendUint32(out, uint32(len(number)))
	return append(append(out, number...), tuple[2:]...)
}

// execute runs the SQL; named are the messages that its results name as n.
func (q *Query) execute(ctx context.Context, pg *pgconn.PgConn, n int) (named []bool, returned bool, err error) {
	named = make([]bool, n)
	results := pg.Exec(ctx, q.sql)
	for results.NextResult() {
		rr := results.ResultReader()
		at := queryNumber(rr.FieldDescriptions())
		returned = returned || at >= 0
		for rr.NextRow() {
			if at < 0 || rr.Values()[at] == nil {
				continue
			}
			if i, e := strconv.Atoi(string(rr.Values()[at])); e == nil && 1 <= i && i <= n {
				named[i-1] = true
			} else if err == nil {
				err = &inbox.HaltError{Kind: "no-numbers", Why: fmt.Sprintf("the SQL returned %.20q as n, and the batch has %d messages", rr.Values()[at], n)}
			}
		}
		if _, e := rr.Close(); e != nil {
			err = e
		}
	}
	if e := results.Close(); e != nil {
		err = e
	}
	return named, returned, err
}

// Separable: several statements may leave more than rows, such as a temporary table
// that the next batch takes for new.
func (q *Query) Separable() bool { return q.single }

// Path says what is done with a batch, for explain.
func (q *Query) Path() string {
	form := "binary"
	if q.plan.Load().text {
		form = "text"
	}
	return fmt.Sprintf("COPY (%s) to a temporary table named %s, then the SQL", form, queryName)
}

// Try is that of [Table]; what the SQL has written is not shown.
func (q *Query) Try(ctx context.Context, conn *pgx.Conn, schema, consumer string, items []inbox.Item) ([]string, error) {
	return tryItems(ctx, conn, schema, consumer, items, q, func(pgx.Tx) ([]string, error) { return nil, nil })
}
