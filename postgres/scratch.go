package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/nearest"
)

// Scratch is an empty copy of a table: its columns, defaults, constraints and
// indexes, without triggers and foreign keys. It lives in the session's temporary
// schema and in one transaction that is rolled back, so that nothing of it is ever
// seen and nothing can be left over. Sequences of defaults are copied too: the
// table's own don't move.
type Scratch struct {
	tx    pgx.Tx
	name  TableName
	names []string // of the columns
	seen  map[semel.ID]inbox.Digest
}

// NewScratch copies a table. It holds the connection until Close.
func NewScratch(ctx context.Context, conn *pgx.Conn, table TableName) (_ *Scratch, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s := &Scratch{tx: tx, name: TableName{Name: table.Name}, seen: map[semel.ID]inbox.Digest{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	_, err = tx.Exec(ctx, `CREATE TEMPORARY TABLE `+pgx.Identifier{s.name.Name}.Sanitize()+` (LIKE `+table.sql()+` INCLUDING ALL)`)
	if err != nil {
		return nil, err
	}
	if err = tx.QueryRow(ctx, `SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()`).Scan(&s.name.Schema); err != nil {
		return nil, err
	}
	if s.names, err = scratchList(ctx, tx, `SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, s.name.sql()); err != nil {
		return nil, err
	}
	counted, err := scratchList(ctx, tx, `
		SELECT DISTINCT a.attname FROM pg_attrdef d
		JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
		JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
		JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
		WHERE d.adrelid = $1::regclass ORDER BY 1`, s.name.sql())
	if err != nil {
		return nil, err
	}
	for i, column := range counted {
		_, err := tx.Exec(ctx, fmt.Sprintf(`CREATE TEMPORARY SEQUENCE semel_scratch_%d; ALTER TABLE %s ALTER COLUMN %s SET DEFAULT nextval('pg_temp.semel_scratch_%[1]d')`,
			i, s.name.sql(), pgx.Identifier{column}.Sanitize()))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func scratchList(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]string, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Close rolls everything back.
func (s *Scratch) Close() { s.tx.Rollback(context.Background()) }

// Name is the copy's.
func (s *Scratch) Name() TableName { return s.name }

// DB is the transaction that the copy lives in.
func (s *Scratch) DB() Querier { return s.tx }

// Give puts a row into the copy, a JSON object of columns.
func (s *Scratch) Give(ctx context.Context, row string) error {
	columns, err := s.columns(row)
	if err != nil {
		return err
	}
	for i, c := range columns {
		columns[i] = pgx.Identifier{c}.Sanitize()
	}
	list := strings.Join(columns, ", ")
	_, err = s.tx.Exec(ctx, `INSERT INTO `+s.name.sql()+` (`+list+`) OVERRIDING SYSTEM VALUE SELECT `+list+
		` FROM jsonb_populate_record(NULL::`+s.name.sql()+`, $1::text::jsonb)`, row)
	return err
}

// columns are those of a row, which the table must have.
func (s *Scratch) columns(row string) ([]string, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(row), &values); err != nil {
		return nil, err
	}
	var columns []string
	for c := range values {
		if !slices.Contains(s.names, c) {
			e := &TableError{Table: s.name.Name, Column: c, Why: "there is no such column"}
			if near := nearest.Name(c, s.names); near != "" {
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
func (s *Scratch) Shape(ctx context.Context, row string) (map[string]json.RawMessage, error) {
	columns, err := s.columns(row)
	if err != nil {
		return nil, err
	}
	part, err := s.tx.Begin(ctx) // a value that the type doesn't take ends no more than this
	if err != nil {
		return nil, err
	}
	defer part.Rollback(ctx)
	var text []byte
	err = part.QueryRow(ctx, `SELECT to_jsonb(jsonb_populate_record(NULL::`+s.name.sql()+`, $1::text::jsonb))::text`, row).Scan(&text)
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

// Apply takes decoded items one by one, as a consumer would, and sets their
// outcomes. remembers: IDs are known when they come again. A message that would halt
// the route is an error.
func (s *Scratch) Apply(ctx context.Context, t *Table, remembers bool, items []inbox.Item) error {
	seen := s.seen
	if !remembers {
		seen = nil
	}
	for i := range items {
		if err := try(ctx, s.tx, t, seen, &items[i]); err != nil {
			return fmt.Errorf("%s: %w", items[i].Position(), err)
		}
	}
	return nil
}

// Rows are all that the copy holds.
func (s *Scratch) Rows(ctx context.Context) (rows []map[string]json.RawMessage, err error) {
	texts, err := scratchList(ctx, s.tx, `SELECT to_jsonb(t)::text FROM `+s.name.sql()+` t`)
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

// errOtherContent is why a message is a collision.
var errOtherContent = errors.New("a message with this ID and other content came before")
