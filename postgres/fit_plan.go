package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/sink"
)

// PlanTable is what the table lacks, as SQL for somebody to run; "" if nothing. Of
// a table that is there that is a column that the route maps, or any if it may add
// columns. It does nothing itself, and takes no lock on the table, but tries what is
// missing on a temporary table. There are the mistakes of [FitTable], but for
// privileges: see [FitRights].
func PlanTable(ctx context.Context, cfg TableConfig, types []sink.Types) (sql string, err error) {
	f, err := newFitter(cfg, types)
	if err != nil {
		return "", err
	}
	tx, err := cfg.Fit.DB.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	info, err := f.look(ctx, tx)
	if err != nil || info != nil && cfg.Columns == nil && !cfg.Fit.Evolve {
		return "", err
	}
	sql, lacks, err := f.lacks(info)
	if err != nil || sql == "" {
		return "", err
	}
	return sql + ";\n", f.try(ctx, tx, info, lacks)
}

// try makes the route's plan with the columns that are missing.
func (f *fitter) try(ctx context.Context, tx pgx.Tx, info *introspectTable, lacks ddlTable) error {
	name := TableName{Schema: "pg_temp", Name: "semel_trial"}
	if _, err := tx.Exec(ctx, lacks.create(name)); err != nil {
		return f.refused(err)
	}
	made, err := introspect(ctx, tx, TableName{Name: name.Name})
	if err != nil {
		return err
	}
	if made.name = f.name; info != nil {
		info.columns = append(info.columns, made.columns...)
		made = info
	}
	_, err = newTablePlan(made, f.cfg)
	return err
}

// FitRights says whether this role may do what [FitTable] would: a *TableError if
// it may not, or if there is no place for a new table.
func FitRights(ctx context.Context, db Querier, table string) error {
	name, err := ParseTableName(table)
	if err != nil {
		return err
	}
	var schema *string
	var there, may bool
	err = introspectOne(ctx, db, `
		SELECT t.oid IS NOT NULL, n.nspname,
		       coalesce(CASE WHEN t.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE') ELSE pg_has_role(c.relowner, 'USAGE') END, false)
		FROM (SELECT to_regclass($1)::oid AS oid) t
		LEFT JOIN pg_class c ON c.oid = t.oid
		LEFT JOIN pg_namespace n ON n.oid = coalesce(c.relnamespace, (SELECT m.oid FROM pg_namespace m WHERE m.nspname = coalesce(nullif($2, ''), current_schema())))`,
		[]any{name.sql(), name.Schema}, &there, &schema, &may)
	e := &TableError{Table: name.String()}
	switch {
	case err != nil:
		return err
	case may:
		return nil
	case schema == nil:
		e.Why, e.Hint = "there is no schema "+name.Schema, fitNoSchema
	case there:
		e.Why, e.Hint = "this role may not add columns: it is not the table's owner", fitRights
	default:
		e.Why, e.Hint = fmt.Sprintf("this role may not make it in schema %s", *schema), fitRights
	}
	return e
}

// TableMissing says whether an error of [NewTable] is that there is no table.
func TableMissing(err error) bool {
	var e *TableError
	return errors.As(err, &e) && e.Missing && e.Column == ""
}
