package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/internal/nearest"
	"github.com/semelhq/semel/internal/sqlname"
)

// TableError says that a route and its table don't fit each other. It is found
// before anything runs.
type TableError struct {
	Table  string
	Column string // "" if it is about the table
	Why    string // one line
	Hint   string // what would help; may be empty

	// Missing: the table, or the column, isn't there.
	Missing bool
}

func (e *TableError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("table %s: %s", e.Table, e.Why)
	}
	return fmt.Sprintf("table %s, column %q: %s", e.Table, e.Column, e.Why)
}

// TableName is a table's name as SQL means it: folded or exact. Schema is empty
// if the search path decides.
type TableName struct{ Schema, Name string }

// String quotes what has to be quoted, and can be parsed again.
func (n TableName) String() string { return sqlname.Table(n).String() }

// sql is the name as statements write it: always quoted.
func (n TableName) sql() string {
	if n.Schema == "" {
		return pgx.Identifier{n.Name}.Sanitize()
	}
	return pgx.Identifier{n.Schema, n.Name}.Sanitize()
}

// ParseTableName reads a name as SQL does: unquoted parts fold to lower case,
// quoted ones are exact ("My.Schema"."Table").
func ParseTableName(s string) (TableName, error) {
	t, err := sqlname.ParseTable(s)
	if err != nil {
		return TableName{}, &TableError{Table: s, Why: err.Error(), Hint: `write schema.table; quote what has capitals, dots or spaces: "My.Schema"."Table"`}
	}
	return TableName(t), nil
}

// Querier is what introspection needs: a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// introspectTable is what the catalog says of a table.
type introspectTable struct {
	name        TableName // with its schema
	kind        string    // pg_class.relkind
	selects     bool      // we may read it, and that asks nobody else
	rls         bool      // row security applies to us: COPY is refused
	hides       bool      // and it may hide rows from us
	swallows    bool      // a BEFORE INSERT trigger for each row could drop or fill rows
	triggers    int
	foreignKeys int
	judges      bool // checks, foreign keys and the like look at each row
	others      bool // triggers or exclusions look at other rows as well
	deferrable  bool // a constraint may be looked at as late as at COMMIT
	itself      bool // so do foreign keys from the table to itself
	jumps       bool // so do unique indexes that are looked at when a statement has ended
	columns     []introspectColumn
	indexes     []introspectIndex // unique ones only
}

type introspectColumn struct {
	name          string
	typ           string             // as declared, for people and for noticing a change
	cast          string             // the type's name without a modifier, for casts
	base          string             // that of the base type
	oid           uint32             // of the base type, under all domains
	typname       string             // of the base type
	typtype       string             // of the base type: b, e (enum), c, r, ...
	mod           int32              // the modifier that applies
	elem          uint32             // of an array: its element's type; else 0
	elemType      string             // typtype of it
	bounds        uint32             // of a range, or of the elements of an array of them: the type of its bounds
	attributes    []introspectColumn // of a composite type, or of the elements of an array of one
	domain        bool
	notNull       bool
	hasDefault    bool
	identity      string // a: always, d: by default
	generated     bool
	deterministic bool // equal means equal bytes
}

type introspectIndex struct {
	oid     uint32
	name    string
	primary bool
	columns []string
	why     string // why it can't tell messages apart; "" if it can
}

func (t *introspectTable) column(name string) *introspectColumn {
	for i := range t.columns {
		if t.columns[i].name == name {
			return &t.columns[i]
		}
	}
	return nil
}

// primaryKey is nil if there is none.
func (t *introspectTable) primaryKey() []string {
	for _, ix := range t.indexes {
		if ix.primary {
			return ix.columns
		}
	}
	return nil
}

// uniqueOver finds an index over exactly these columns, in any order, that
// nothing exempts a row from. If there is none, why says what is wrong with the
// nearest, and oid is 0.
func (t *introspectTable) uniqueOver(columns []string) (oid uint32, why string) {
	for _, ix := range t.indexes {
		if !introspectSameSet(ix.columns, columns) {
			continue
		}
		if ix.why == "" {
			return ix.oid, ""
		}
		why = fmt.Sprintf("unique index %s is %s", ix.name, ix.why)
	}
	return 0, why
}

// tableOrder says how much of the order of messages a table can tell.
type tableOrder uint8

const (
	// orderFree: nobody judges a row but the client, so that a state which another
	// overtakes in its batch needs not be written.
	orderFree tableOrder = iota
	// orderKey: each state of a key is judged, so that each is written.
	orderKey
	// orderArrival: a row is judged by what other keys hold at that moment.
	orderArrival
	// orderAlone: and only when its statement has ended.
	orderAlone
)

func (t *introspectTable) order(columns []tableColumn) tableOrder {
	read := func(c tableColumn) bool { return c.domain || c.typtype != "b" || c.elemType != "" && c.elemType != "b" }
	generated := func(c introspectColumn) bool { return c.generated }
	switch {
	case t.jumps || t.itself:
		return orderAlone
	case t.others || len(t.indexes) > 1:
		return orderArrival
	case t.judges || t.rls || slices.ContainsFunc(t.columns, generated) || slices.ContainsFunc(columns, read):
		return orderKey
	}
	return orderFree
}

func introspectSameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

func introspect(ctx context.Context, db Querier, name TableName) (*introspectTable, error) {
	t, oid, err := introspectRelation(ctx, db, name)
	if err != nil {
		return nil, err
	}
	if t.columns, err = introspectColumns(ctx, db, oid); err != nil {
		return nil, err
	}
	if err := t.readIndexes(ctx, db, oid); err != nil {
		return nil, err
	}
	return t, nil
}

func introspectRelation(ctx context.Context, db Querier, name TableName) (*introspectTable, uint32, error) {
	t := &introspectTable{}
	var oid uint32
	// tgtype & 7: for each row (1), before (2), insert (4).
	err := introspectOne(ctx, db, `
		SELECT c.oid, n.nspname, c.relname, c.relkind::text, row_security_active(c.oid),
		       c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'SELECT'),
		       (SELECT count(*) FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'),
		       EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND (g.tgtype & 7) = 7),
		       (SELECT count(*) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'),
		       row_security_active(c.oid) AND (
		           NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', 'r') AND pg_get_expr(p.polqual, p.polrelid) = 'true'
		               AND EXISTS (SELECT FROM unnest(p.polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE')))
		           OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive AND p.polcmd IN ('*', 'r') AND pg_get_expr(p.polqual, p.polrelid) <> 'true')),
		       c.relkind <> 'r' OR c.relhasrules
		       OR EXISTS (SELECT FROM pg_constraint k WHERE (k.conrelid = c.oid AND k.contype IN ('c', 'f')) OR (k.confrelid = c.oid AND k.contype = 'f'))
		       OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indpred IS NOT NULL OR i.indexprs IS NOT NULL)),
		       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisexclusion)
		       OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND (g.tgtype & 1) = 1),
		       EXISTS (SELECT FROM pg_constraint k WHERE c.oid IN (k.conrelid, k.confrelid) AND k.condeferrable),
		       EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid = c.oid),
		       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
		  AND CASE WHEN $2 = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname = $2 END`,
		[]any{name.Name, name.Schema},
		&oid, &t.name.Schema, &t.name.Name, &t.kind, &t.rls, &t.selects, &t.triggers, &t.swallows, &t.foreignKeys, &t.hides, &t.judges, &t.others, &t.deferrable, &t.itself, &t.jumps)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, introspectMissing(ctx, db, name)
	}
	if err != nil {
		return nil, 0, err
	}
	if what, no := map[string]string{"v": "a view", "m": "a materialised view"}[t.kind]; no {
		return nil, 0, &TableError{Table: name.String(), Why: "it is " + what, Hint: "name the table under it"}
	}
	return t, oid, nil
}

func introspectOne(ctx context.Context, db Querier, sql string, args []any, into ...any) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(into...)
	})
	return err
}

// introspectMissing is the error for a table that isn't there, with the nearest
// name: another case or schema first, then a small slip.
func introspectMissing(ctx context.Context, db Querier, name TableName) error {
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
		ORDER BY (lower(c.relname) = lower($1)) DESC, n.nspname <> $2, n.nspname, c.relname LIMIT 5000`, name.Name, name.Schema)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TableName])
	if err != nil {
		return err
	}
	e := &TableError{Table: name.String(), Why: "it does not exist", Missing: true}
	if len(all) == 0 {
		return e
	}
	if strings.EqualFold(all[0].Name, name.Name) {
		e.Hint = "there is " + all[0].String()
		return e
	}
	names := make([]string, len(all))
	for i, n := range all {
		names[i] = n.Name
	}
	if near := nearest.Name(name.Name, names); near != "" {
		e.Hint = "there is " + all[slices.Index(names, near)].String()
	}
	return e
}

// introspectColumns reads the columns of a relation; composite types are relations too.
func introspectColumns(ctx context.Context, db Querier, relation uint32) ([]introspectColumn, error) {
	rows, err := db.Query(ctx, `
		WITH RECURSIVE under AS (
			SELECT a.attnum, a.atttypid AS typ, a.atttypmod AS mod, a.attnotnull AS filled
			FROM pg_attribute a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL
			SELECT u.attnum, d.typbasetype, d.typtypmod, u.filled OR d.typnotnull
			FROM under u JOIN pg_type d ON d.oid = u.typ WHERE d.typtype = 'd'
		)
		SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1), format_type(b.oid, -1),
		       b.oid, b.typname, b.typtype::text, u.mod,
		       CASE WHEN b.typcategory = 'A' AND b.typlen = -1 THEN b.typelem ELSE 0 END,
		       coalesce((SELECT e.typtype::text FROM pg_type e WHERE e.oid = b.typelem), ''),
		       coalesce((SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid IN (b.oid, b.typelem) OR r.rngmultitypid IN (b.oid, b.typelem)), 0),
		       a.atttypid <> b.oid, u.filled, a.atthasdef, a.attidentity::text, a.attgenerated <> '',
		       coalesce((SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), true)
		FROM under u JOIN pg_type b ON b.oid = u.typ AND b.typtype <> 'd'
		JOIN pg_attribute a ON a.attrelid = $1 AND a.attnum = u.attnum
		ORDER BY a.attnum`, relation)
	if err != nil {
		return nil, err
	}
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c introspectColumn, err error) {
		err = row.Scan(&c.name, &c.typ, &c.cast, &c.base, &c.oid, &c.typname, &c.typtype, &c.mod, &c.elem, &c.elemType, &c.bounds,
			&c.domain, &c.notNull, &c.hasDefault, &c.identity, &c.generated, &c.deterministic)
		return c, err
	})
	if err != nil {
		return nil, err
	}
	for i := range columns {
		c, typ := &columns[i], uint32(0)
		switch "c" {
		case c.typtype:
			typ = c.oid
		case c.elemType:
			typ = c.elem
		default:
			continue
		}
		var under uint32
		if err := introspectOne(ctx, db, "SELECT typrelid FROM pg_type WHERE oid = $1", []any{typ}, &under); err != nil {
			return nil, err
		}
		if c.attributes, err = introspectColumns(ctx, db, under); err != nil {
			return nil, err
		}
	}
	return columns, nil
}

func (t *introspectTable) readIndexes(ctx context.Context, db Querier, oid uint32) error {
	rows, err := db.Query(ctx, `
		SELECT c.oid, c.relname, i.indisprimary,
		       CASE WHEN NOT i.indisvalid THEN 'not valid'
		            WHEN NOT i.indimmediate THEN 'deferrable'
		            WHEN i.indpred IS NOT NULL THEN 'partial'
		            WHEN i.indexprs IS NOT NULL THEN 'over an expression'
		            WHEN EXISTS (SELECT FROM unnest(i.indcollation::oid[]) k JOIN pg_collation l ON l.oid = k AND NOT l.collisdeterministic)
		            THEN 'of a nondeterministic collation'
		            ELSE '' END,
		       (SELECT coalesce(array_agg(a.attname::text ORDER BY k.n), '{}')
		        FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(att, n)
		        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.att WHERE k.n <= i.indnkeyatts)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = $1 AND i.indisunique ORDER BY i.indisprimary DESC, c.relname`, oid)
	if err != nil {
		return err
	}
	t.indexes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (ix introspectIndex, err error) {
		err = row.Scan(&ix.oid, &ix.name, &ix.primary, &ix.why, &ix.columns)
		return ix, err
	})
	return err
}

// fingerprint asks for the declared types of columns by name, so that a table
// that changed under a running route is noticed: COPY in binary form would take
// the eight bytes of a bigint for a double.
func (t *introspectTable) fingerprint(columns []introspectColumn) (sql, want string) {
	var w strings.Builder
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = introspectLiteral(c.name)
	}
	sorted := slices.Clone(columns)
	slices.SortFunc(sorted, func(a, b introspectColumn) int { return strings.Compare(a.name, b.name) })
	for _, c := range sorted {
		fmt.Fprintf(&w, "%s %s;", c.name, c.typ)
	}
	return fmt.Sprintf(`SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod) || ';', '' ORDER BY attname COLLATE "C") `+
		`FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND NOT attisdropped AND attname IN (%s)`,
		introspectLiteral(t.name.sql()), strings.Join(names, ", ")), w.String()
}

func introspectLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return "'" + s + "'"
}

// introspectBuiltin says whether a type's number is the same in every database.
func introspectBuiltin(oid uint32) bool { return oid < 10000 }

// introspectComparable are types whose equality is that of their values.
var introspectComparable = map[uint32]bool{
	pgtype.BoolOID: true, pgtype.Int2OID: true, pgtype.Int4OID: true, pgtype.Int8OID: true, pgtype.NumericOID: true,
	pgtype.Float4OID: true, pgtype.Float8OID: true, pgtype.TextOID: true, pgtype.VarcharOID: true, pgtype.UUIDOID: true,
	pgtype.ByteaOID: true, pgtype.DateOID: true, pgtype.TimeOID: true, pgtype.TimestampOID: true,
	pgtype.TimestamptzOID: true, pgtype.JSONBOID: true,
}
