package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/inbox"
)

// queryFills are the tables that SQL inserts into, by schema and name, and of each the
// columns in which a null may be a message's. In all others it is one for every
// message, as in a column that was added since.
type queryFills map[[2]string]map[string]bool

// queryPlan is what is needed of EXPLAIN.
type queryPlan struct {
	Operation string
	Relation  string `json:"Relation Name"`
	Schema    string
	Parent    string `json:"Parent Relationship"`
	Output    []string
	Plans     []queryPlan
}

// fillsOf has plans made of the SQL's statements. One that has none, or that needs what an
// earlier one makes, tells nothing.
func fillsOf(ctx context.Context, tx pgx.Tx, sql string) (queryFills, error) {
	f := queryFills{}
	for _, statement := range queryStatements(sql) {
		part, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		results, err := tx.Conn().PgConn().Exec(ctx, "EXPLAIN (VERBOSE, FORMAT JSON) "+statement).ReadAll()
		if e := part.Rollback(ctx); e != nil {
			return nil, e
		}
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
			continue
		} else if err != nil {
			return nil, err
		}
		var plans []struct{ Plan queryPlan }
		if len(results) != 1 || len(results[0].Rows) != 1 || json.Unmarshal(results[0].Rows[0][0], &plans) != nil {
			continue
		}
		for _, p := range plans {
			if err := f.add(ctx, tx, &p.Plan); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// add notes what a plan inserts. What it selects for that has a place for each column
// of the table, a constant null where the statement says nothing.
func (f queryFills) add(ctx context.Context, tx pgx.Tx, p *queryPlan) error {
	for i := range p.Plans {
		child := &p.Plans[i]
		if err := f.add(ctx, tx, child); err != nil {
			return err
		}
		if child.Parent != "Outer" || p.Operation != "Insert" && p.Operation != "Merge" {
			continue
		}
		rows, err := tx.Query(ctx, queryTarget, p.Schema, p.Relation)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			var schema, name, column, otherwise string
			var number int
			var anyway bool
			if err := row.Scan(&schema, &name, &column, &number, &otherwise, &anyway); err != nil {
				return struct{}{}, err
			}
			table := [2]string{schema, name}
			if f[table] == nil {
				f[table] = map[string]bool{}
			}
			said := anyway || p.Operation == "Merge" || number > len(child.Output)
			if !said {
				out := child.Output[number-1]
				said = !strings.HasPrefix(out, "NULL::") && out != otherwise
			}
			f[table][column] = f[table][column] || said
			return struct{}{}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// queryTarget answers the columns of a table and its partitions, what is in one of
// which a statement says nothing, and whether something else may fill it: an
// expression over others, or a trigger.
const queryTarget = `
	SELECT n.nspname, c.relname, a.attname, (SELECT b.attnum FROM pg_attribute b WHERE b.attrelid = r.oid AND b.attname = a.attname)::int,
	       coalesce(pg_get_expr(d.adbin, d.adrelid), ''), a.attgenerated <> '' OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgtype & 7 = 7)
	FROM pg_class r JOIN pg_namespace s ON s.oid = r.relnamespace AND s.nspname = $1
	CROSS JOIN LATERAL (SELECT r.oid UNION SELECT relid FROM pg_partition_tree(r.oid)) t
	JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = (SELECT b.attnum FROM pg_attribute b WHERE b.attrelid = r.oid AND b.attname = a.attname)
	WHERE r.relname = $2`

// unfilled halts where the server misses a column that the SQL puts nothing into: that
// is no message's fault, and would bury every one.
func (f queryFills) unfilled(err error) *inbox.HaltError {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "23502" || pg.ColumnName == "" {
		return nil
	}
	filled, ok := f[[2]string{pg.SchemaName, pg.TableName}]
	if !ok || filled[pg.ColumnName] {
		return nil
	}
	name := TableName{Schema: pg.SchemaName, Name: pg.TableName}.String()
	why := "it is NOT NULL without a default, and the SQL puts nothing into it"
	return &inbox.HaltError{
		Kind: inbox.HaltTableChanged, Why: fmt.Sprintf("column %q of %s: %s", pg.ColumnName, name, why),
		Hint: "give it a default, or fill it in the SQL, then restart the route",
		Err:  &TableError{Table: name, Column: pg.ColumnName, Why: why},
	}
}

// querySkipped are what a semicolon may stand in, the opening of a dollar quote, and
// the semicolon.
var querySkipped = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|\\.|'')*'|'[^']*'|"[^"]*"|\$(?:[A-Za-z_]\w*)?\$|;`)

// queryStatements cuts SQL at its semicolons.
func queryStatements(sql string) (out []string) {
	from, at := 0, 0
	for {
		token := querySkipped.FindStringIndex(sql[at:])
		if token == nil {
			return append(out, sql[from:])
		}
		text := sql[at+token[0] : at+token[1]]
		at += token[1]
		switch {
		case text == ";":
			out = append(out, sql[from:at-1])
			from = at
		case text[0] == '$':
			if end := strings.Index(sql[at:], text); end >= 0 {
				at += end + len(text)
			}
		}
	}
}
