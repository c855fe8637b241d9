package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/nearest"
)

// ScratchConfig says what is copied.
type ScratchConfig struct {
	Table TableName    // the route's
	Query *QueryConfig // or its SQL: what that uses
	Named []TableName  // and others, that are given rows or looked at
}

// Scratch are empty copies of what a route touches: columns, defaults, constraints,
// indexes, triggers, and the foreign keys between them. Copied are the route's table,
// or what its SQL uses; tables that these refer to; and those whose names stand in the
// text of functions that triggers or the SQL call.
//
// All of it lives in the session's temporary schema, where names are looked for first,
// and in one transaction that is rolled back. Once it is ready that transaction is
// read-only, from which temporary tables and sequences alone are exempt: so the server
// itself keeps the real ones as they are, whatever SQL and triggers do.
type Scratch struct {
	tx    pgx.Tx
	cfg   ScratchConfig
	seen  map[semel.ID]inbox.Digest
	lacks []string

	sql    string // of the query, as the server writes it: no schema before what is copied
	query  *Query
	keys   []scratchPart // foreign keys
	hooks  []scratchPart // triggers
	main   *scratchTable // nil: the SQL uses several
	tables map[TableName]*scratchTable
}

// scratchPart is made when rows were given.
type scratchPart struct{ Name, SQL string }

// scratchTable is a copy that can be given rows.
type scratchTable struct {
	name    TableName
	columns []string
}

// NewScratch makes the copies. It holds the connection until Close.
func NewScratch(ctx context.Context, conn *pgx.Conn, cfg ScratchConfig) (_ *Scratch, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s := &Scratch{tx: tx, cfg: cfg, seen: map[semel.ID]inbox.Digest{}, tables: map[TableName]*scratchTable{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// What is copied is locked as by a reader. Who alters it meanwhile goes first.
	if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', '5s', true)"); err != nil {
		return nil, err
	}
	c := &scratchCopier{Scratch: s}
	if err := c.plan(ctx); err != nil {
		return nil, err
	}
	return s, c.copy(ctx)
}

// Close rolls everything back, and gives back what a trigger locked for longer.
func (s *Scratch) Close() {
	ctx := context.Background()
	const unlock = "SELECT pg_advisory_unlock_all()"
	_, err := s.tx.Exec(ctx, unlock)
	s.tx.Rollback(ctx)
	if err != nil { // the transaction had failed
		s.tx.Conn().Exec(ctx, unlock)
	}
}

// DB is the transaction that the copies live in.
func (s *Scratch) DB() Querier { return s.tx }

// Lacks are what the copies don't have and their originals do, in words. It is known
// when they are ready.
func (s *Scratch) Lacks() []string { return s.lacks }

// Name is that of the copy of the route's table.
func (s *Scratch) Name() TableName { return s.main.name }

// Query is the route's SQL over the copies.
func (s *Scratch) Query() *Query { return s.query }

// Ready adds foreign keys and triggers, which what was given before doesn't meet, and
// from then on has nothing written but copies.
func (s *Scratch) Ready(ctx context.Context) error {
	for _, part := range slices.Concat(s.keys, s.hooks) {
		if err := s.unless(ctx, part); err != nil {
			return err
		}
	}
	if s.cfg.Query != nil {
		cfg := *s.cfg.Query
		cfg.SQL = s.sql
		q, err := NewQuery(ctx, s.tx, cfg)
		if err != nil {
			return err
		}
		if _, err := s.tx.Conn().PgConn().Exec(ctx, q.create).ReadAll(); err != nil {
			return err
		}
		if err := s.alone(ctx); err != nil {
			return err
		}
		q.create = "DELETE FROM pg_temp." + queryName // nothing can be made any more
		s.query = q
	}
	_, err := s.tx.Exec(ctx, "SET TRANSACTION READ ONLY")
	return err
}

// unless makes a part; where the server refuses that, the copies lack it. Rows that
// were given and break a key are a mistake.
func (s *Scratch) unless(ctx context.Context, p scratchPart) error {
	err := pgx.BeginFunc(ctx, s.tx, func(part pgx.Tx) error {
		_, err := part.Exec(ctx, p.SQL)
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "23") {
		s.lacks = append(s.lacks, fmt.Sprintf("%s (%s)", p.Name, pg.Message))
		return nil
	}
	return err
}

// table is the copy of what the test names; of the route's table, where it names none.
func (s *Scratch) table(name TableName) (*scratchTable, error) {
	switch t := s.tables[name]; {
	case t != nil:
		return t, nil
	case name != TableName{}:
		return nil, &TableError{Table: name.String(), Why: "it could not be copied"}
	case s.main == nil:
		return nil, errors.New("the SQL uses several tables: say whose rows, {account: [{…}]}")
	}
	return s.main, nil
}

// Give puts a row into a copy, a JSON object of columns. An unnamed one is the route's.
func (s *Scratch) Give(ctx context.Context, name TableName, row string) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	columns, err := t.named(row)
	if err != nil {
		return err
	}
	for i, c := range columns {
		columns[i] = pgx.Identifier{c}.Sanitize()
	}
	list := strings.Join(columns, ", ")
	return pgx.BeginFunc(ctx, s.tx, func(part pgx.Tx) error {
		if _, err := part.Exec(ctx, "SET TRANSACTION READ ONLY"); err != nil { // defaults may be functions
			return err
		}
		_, err := part.Exec(ctx, `INSERT INTO `+t.name.sql()+` (`+list+`) OVERRIDING SYSTEM VALUE SELECT `+list+
			` FROM jsonb_populate_record(NULL::`+t.name.sql()+`, $1::text::jsonb)`, row)
		return err
	})
}

// named are the columns of a row, which the table must have.
func (t *scratchTable) named(row string) ([]string, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(row), &values); err != nil {
		return nil, err
	}
	var columns []string
	for c := range values {
		if !slices.Contains(t.columns, c) {
			e := &TableError{Table: t.name.Name, Column: c, Why: "there is no such column"}
			if near := nearest.Name(c, t.columns); near != "" {
				e.Hint = "did you mean " + near + "?"
			}
			return nil, e
		}
		columns = append(columns, c)
	}
	slices.Sort(columns)
	return columns, nil
}

// Shape is a row as the table would hold and show it, with the columns that it names
// alone.
func (s *Scratch) Shape(ctx context.Context, name TableName, row string) (map[string]json.RawMessage, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	columns, err := t.named(row)
	if err != nil {
		return nil, err
	}
	part, err := s.tx.Begin(ctx) // a value that the type doesn't take ends no more than this
	if err != nil {
		return nil, err
	}
	defer part.Rollback(ctx)
	var text []byte
	err = part.QueryRow(ctx, `SELECT to_jsonb(jsonb_populate_record(NULL::`+t.name.sql()+`, $1::text::jsonb))::text`, row).Scan(&text)
	if err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	shape := map[string]json.RawMessage{}
	for _, c := range columns {
		shape[c] = all[c]
	}
	return shape, nil
}

// Rows are all that a copy holds.
func (s *Scratch) Rows(ctx context.Context, name TableName) (rows []map[string]json.RawMessage, err error) {
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	texts, err := scratchList[string](ctx, s.tx, `SELECT to_jsonb(t)::text FROM `+t.name.sql()+` t`)
	if err != nil {
		return nil, err
	}
	slices.Sort(texts)
	for _, text := range texts {
		var row map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func scratchList[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// ErrNotCopied says that SQL or a trigger would have written to something real.
var ErrNotCopied = errors.New("it would write to what is no copy, as a function does that names a table with its schema")

// Apply takes decoded items one by one, as a consumer would, and sets their
// outcomes. remembers: IDs are known when they come again. A message that would halt
// the route is an error.
func (s *Scratch) Apply(ctx context.Context, effect ScratchEffect, remembers bool, items []inbox.Item) error {
	seen := s.seen
	if !remembers {
		seen = nil
	}
	for i := range items {
		err := try(ctx, s.tx, effect, seen, &items[i])
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "25006" {
			err = fmt.Errorf("%w: %s", ErrNotCopied, pg.Message)
			if pg.Where != "" {
				err = fmt.Errorf("%w (%s)", err, strings.ReplaceAll(pg.Where, "\n", "; "))
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", items[i].Position(), err)
		}
	}
	return nil
}

// ScratchEffect is a *Table or a *Query.
type ScratchEffect interface{ tried }

// errOtherContent is why a message is a collision.
var errOtherContent = errors.New("a message with this ID and other content came before")
