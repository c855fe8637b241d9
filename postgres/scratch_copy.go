package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// scratchCopier finds out what a route touches, and copies it.
type scratchCopier struct {
	*Scratch
	relations []scratchRelation
	needed    []uint32             // what the route names itself
	named     map[TableName]uint32 // what the test names
	path      string
}

// scratchRelation is something to copy.
type scratchRelation struct {
	OID      uint32
	Schema   string
	Name     string
	Kind     string   // pg_class.relkind
	Visible  bool     // under its name alone
	SQL      string   // makes the copy
	Defaults []string // give it the copies of its sequences
	Lacks    []string
}

// plan looks at the originals while their names still mean them. It is rolled back at
// once: the server locks what the SQL writes when it reads it.
func (c *scratchCopier) plan(ctx context.Context) error {
	part, err := c.tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer part.Rollback(ctx)
	var function uint32
	if q := c.cfg.Query; q == nil {
		oid, err := scratchOID(ctx, part, c.cfg.Table)
		if err != nil {
			return err
		}
		c.needed = []uint32{oid}
	} else {
		checked, err := NewQuery(ctx, part, *q)
		if err != nil {
			return err
		}
		if _, err := part.Conn().PgConn().Exec(ctx, checked.create).ReadAll(); err != nil {
			return err
		}
		if function, err = scratchFunction(ctx, part, q.SQL); err != nil {
			return err
		}
		if c.needed, err = scratchUses(ctx, part, nil, []uint32{function}, true); err != nil {
			return err
		}
	}
	c.named = map[TableName]uint32{}
	var others []uint32
	for _, name := range c.cfg.Named {
		oid, err := scratchOID(ctx, part, name)
		if err != nil {
			return err
		}
		c.named[name], others = oid, append(others, oid)
	}
	all, err := scratchClosure(ctx, part, c.needed, function)
	if err != nil {
		return err
	}
	parents, err := scratchList[uint32](ctx, part, `SELECT confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY($1::text::oid[])`, scratchOIDs(all))
	if err != nil {
		return err
	}
	if all, err = scratchClosure(ctx, part, slices.Concat(all, parents, others), function); err != nil {
		return err
	}
	if err := c.describe(ctx, part, all, function); err != nil {
		return err
	}
	if err := part.Rollback(ctx); err != nil {
		return err
	}
	_, err = c.tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, c.path)
	return err
}

func scratchOID(ctx context.Context, tx pgx.Tx, name TableName) (oid uint32, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(to_regclass($1), 0)::oid`, name.sql()).Scan(&oid)
	if err == nil && oid == 0 {
		err = &TableError{Table: name.String(), Why: "it isn't there", Missing: true}
	}
	return oid, err
}

func scratchOIDs(oids []uint32) string {
	return "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(oids), " ", ","), "[]") + "}"
}

// scratchFunction has the server read SQL as the body of a temporary function, which
// keeps what it depends on and can write it anew.
func scratchFunction(ctx context.Context, tx pgx.Tx, sql string) (oid uint32, err error) {
	// One statement and no more, whatever the text says of where it ends.
	r := tx.Conn().PgConn().ExecParams(ctx, "CREATE FUNCTION pg_temp.semel_scratch() RETURNS void LANGUAGE sql BEGIN ATOMIC "+sql+"\n; END", nil, nil, nil, nil).Read()
	var pg *pgconn.PgError
	if errors.As(r.Err, &pg) {
		return 0, &TableError{Table: queryName, Why: "the SQL can't be tried on copies: " + pg.Message, Hint: "SELECT, INSERT, UPDATE, DELETE and MERGE can, one or several"}
	}
	if r.Err != nil {
		return 0, r.Err
	}
	return oid, tx.QueryRow(ctx, `SELECT 'pg_temp.semel_scratch'::regproc::oid`).Scan(&oid)
}

// scratchUses are relations that lead from others, and from functions: what views
// are made of, the sequences of defaults, what functions depend on; and, unless only
// what the server knows is asked for, what has a name that stands in the text of a
// function that triggers, defaults, views or other functions call. A word too much
// costs an empty copy.
func scratchUses(ctx context.Context, tx pgx.Tx, relations, functions []uint32, known bool) ([]uint32, error) {
	return scratchList[uint32](ctx, tx, `
		WITH direct AS (
			SELECT d.refclassid, d.refobjid FROM pg_depend d
			WHERE d.classid = 'pg_proc'::regclass AND d.objid = ANY($2::text::oid[])
			   OR d.classid = 'pg_attrdef'::regclass AND d.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = ANY($1::text::oid[]))
			   OR d.classid = 'pg_rewrite'::regclass AND d.objid IN (SELECT r.oid FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class AND c.relkind = 'v' WHERE c.oid = ANY($1::text::oid[]))
		), called AS (
			SELECT refobjid AS oid FROM direct WHERE refclassid = 'pg_proc'::regclass
			UNION SELECT tgfoid FROM pg_trigger WHERE tgrelid = ANY($1::text::oid[]) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
		), word AS (
			SELECT coalesce(m[1], lower(m[2])) AS name
			FROM pg_proc p JOIN called USING (oid), regexp_matches(p.prosrc, '"([^"]+)"|([[:alpha:]_][[:alnum:]_$]*)', 'g') m
			WHERE NOT $3
		)
		SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE (c.oid IN (SELECT refobjid FROM direct WHERE refclassid = 'pg_class'::regclass)
		       OR c.relname IN (SELECT name FROM word) AND pg_table_is_visible(c.oid))
		  AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
		  AND n.oid <> pg_my_temp_schema() AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`,
		scratchOIDs(relations), scratchOIDs(functions), known)
}

// scratchClosure adds all that relations and the function lead to.
func scratchClosure(ctx context.Context, tx pgx.Tx, from []uint32, function uint32) ([]uint32, error) {
	all := slices.Compact(slices.Sorted(slices.Values(from)))
	for {
		more, err := scratchUses(ctx, tx, all, []uint32{function}, false)
		if err != nil {
			return nil, err
		}
		before := len(all)
		all = slices.Compact(slices.Sorted(slices.Values(slices.Concat(all, more))))
		if len(all) == before {
			return all, nil
		}
	}
}

// describe has the server write what makes the copies, with names that have no schema:
// they mean copies, once there are any.
func (c *scratchCopier) describe(ctx context.Context, tx pgx.Tx, all []uint32, function uint32) error {
	oids := scratchOIDs(all)
	err := tx.QueryRow(ctx, `
		SELECT 'pg_temp, ' || string_agg(quote_ident(s), ', ' ORDER BY first) FROM (
			SELECT s, min(i) AS first FROM (
				SELECT s, i FROM unnest(current_schemas(false)) WITH ORDINALITY u(s, i) WHERE s NOT LIKE 'pg\_temp\_%'
				UNION ALL SELECT relnamespace::regnamespace::text, 1000 FROM pg_class WHERE oid = ANY($1::text::oid[])) u
			GROUP BY s) u`, oids).Scan(&c.path)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, c.path); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, pg_table_is_visible(c.oid) AS visible,
		       CASE c.relkind
		       WHEN 'v' THEN format('CREATE TEMP VIEW %I AS %s', c.relname, pg_get_viewdef(c.oid))
		       WHEN 'S' THEN (
		           SELECT format('CREATE TEMP SEQUENCE %I AS %s INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s %s',
		                         c.relname, format_type(seqtypid, NULL), seqincrement, seqmin, seqmax, seqstart, CASE WHEN seqcycle THEN 'CYCLE' ELSE '' END)
		           FROM pg_sequence WHERE seqrelid = c.oid)
		       ELSE format('CREATE TEMP TABLE %I (LIKE %I.%I INCLUDING ALL)', c.relname, n.nspname, c.relname)
		       END AS sql,
		       ARRAY(
		           SELECT format('ALTER TABLE pg_temp.%I ALTER COLUMN %I SET DEFAULT %s', c.relname, a.attname, pg_get_expr(d.adbin, d.adrelid))
		           FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = ''
		           WHERE d.adrelid = c.oid AND c.relkind <> 'v' AND EXISTS (
		               SELECT FROM pg_depend p JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
		               WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass)) AS defaults,
		       array_remove(ARRAY[
		           CASE c.relkind WHEN 'p' THEN 'partitions' WHEN 'f' THEN 'another server' WHEN 'm' THEN 'rows of its own' END,
		           CASE WHEN row_security_active(c.oid) THEN 'row security' END,
		           CASE WHEN c.relkind <> 'v' AND EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid AND rulename <> '_RETURN') THEN 'rules' END], NULL) AS lacks
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1::text::oid[])
		ORDER BY c.relkind <> 'S', c.oid`, oids) // sequences first; a view after what it is made of
	if err != nil {
		return err
	}
	if c.relations, err = pgx.CollectRows(rows, pgx.RowToStructByName[scratchRelation]); err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `
		SELECT format('foreign key %I of %I', k.conname, r.relname) AS name,
		       format('ALTER TABLE pg_temp.%I ADD CONSTRAINT %I %s', r.relname, k.conname, pg_get_constraintdef(k.oid)) AS sql
		FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid
		WHERE k.contype = 'f' AND k.conparentid = 0 AND k.conrelid = ANY($1::text::oid[]) AND k.confrelid = ANY($1::text::oid[]) ORDER BY k.oid`, oids)
	if err != nil {
		return err
	}
	if c.keys, err = pgx.CollectRows(rows, pgx.RowToStructByName[scratchPart]); err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `
		SELECT format('trigger %I of %I', t.tgname, r.relname) AS name, pg_get_triggerdef(t.oid, true) AS sql
		FROM pg_trigger t JOIN pg_class r ON r.oid = t.tgrelid
		WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgrelid = ANY($1::text::oid[]) ORDER BY t.oid`, oids)
	if err != nil {
		return err
	}
	if c.hooks, err = pgx.CollectRows(rows, pgx.RowToStructByName[scratchPart]); err != nil || function == 0 {
		return err
	}
	if err := tx.QueryRow(ctx, `SELECT pg_get_function_sqlbody($1)`, function).Scan(&c.sql); err != nil {
		return err
	}
	c.sql = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(c.sql), "BEGIN ATOMIC"), "END")
	return nil
}

// copy makes the copies. What the route names itself has to be copied, what stands in
// the text of functions may fail.
func (c *scratchCopier) copy(ctx context.Context) error {
	names := map[uint32]*scratchTable{}
	for _, r := range c.relations {
		t := &scratchTable{name: TableName{Name: r.Name}}
		err := pgx.BeginFunc(ctx, c.tx, func(part pgx.Tx) error {
			if !r.Visible {
				return &TableError{Table: TableName{r.Schema, r.Name}.String(), Why: "another table has its name, and copies have no schemas"}
			}
			for _, sql := range append([]string{r.SQL}, r.Defaults...) {
				if _, err := part.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return part.QueryRow(ctx, `SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()`).Scan(&t.name.Schema)
		})
		var pg *pgconn.PgError
		var mistake *TableError
		switch {
		case err == nil:
		case slices.Contains(c.needed, r.OID) || !errors.As(err, &pg) && !errors.As(err, &mistake):
			return err
		case pg != nil:
			c.lacks = append(c.lacks, fmt.Sprintf("table %s (%s)", r.Name, pg.Message))
			continue
		default:
			c.lacks = append(c.lacks, mistake.Error())
			continue
		}
		for _, l := range r.Lacks {
			c.lacks = append(c.lacks, l+" of "+TableName{Name: r.Name}.String())
		}
		if t.columns, err = scratchList[string](ctx, c.tx, `SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, t.name.sql()); err != nil {
			return err
		}
		names[r.OID] = t
	}
	for name, oid := range c.named {
		if t := names[oid]; t != nil {
			c.tables[name] = t
		}
	}
	if len(c.needed) == 1 {
		c.main = names[c.needed[0]]
	}
	return nil
}

// alone looks whether the SQL uses copies alone, now that its names mean them.
func (s *Scratch) alone(ctx context.Context) error {
	part, err := s.tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer part.Rollback(ctx)
	function, err := scratchFunction(ctx, part, s.sql)
	if err != nil {
		return err
	}
	originals, err := scratchUses(ctx, part, nil, []uint32{function}, true)
	if err != nil || len(originals) == 0 {
		return err
	}
	var names string
	err = part.QueryRow(ctx, `SELECT string_agg(oid::regclass::text, ', ' ORDER BY oid) FROM pg_class WHERE oid = ANY($1::text::oid[])`, scratchOIDs(originals)).Scan(&names)
	if err != nil {
		return err
	}
	return &TableError{Table: queryName, Why: "the SQL would use the real " + names}
}
