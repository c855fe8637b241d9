package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/sink"
)

// Fit lets a route make its table by the schemas of its topics. Without it nothing
// is ever made or altered.
type Fit struct {
	// DB is where it happens: in transactions of their own, beside those of the
	// lanes. Required.
	DB interface {
		Beginner
		Querier
	}
	// Create makes a table that isn't there.
	Create bool
	// Evolve adds columns that a schema has and the table hasn't. It never drops or
	// retypes one: where a type doesn't fit any more, the route halts.
	Evolve bool
	// Types asks what the newest schemas of a topic say; "": of all of the route's.
	// Only *TableError are the route's mistakes.
	Types func(ctx context.Context, topic string) ([]sink.Types, error)
	// Order is that of mapped columns in a new table. nil: by name.
	Order []string
}

// fitLock bounds how long DDL waits for a lock. Those who want the table after it
// wait as long, and a transaction of the same lane may be what holds it.
const fitLock = "500ms"

// FitTable makes the table of a route, or adds columns to it, as far as cfg.Fit
// allows and the schemas ask for. What others do at the same time is waited for and
// looked at. The route's mistakes are *TableError; nothing is done then.
func FitTable(ctx context.Context, cfg TableConfig, types []sink.Types) error {
	f, err := newFitter(cfg, types)
	if err != nil {
		return err
	}
	return f.fit(ctx)
}

// FittedTable is [NewTable] after [FitTable]. Where it can't be known what the
// schemas say, the table may need nothing: then it is taken as it is.
func FittedTable(ctx context.Context, cfg TableConfig, topic string) (*Table, error) {
	types, err := cfg.Fit.Types(ctx, topic)
	var wrong *TableError
	switch {
	case err == nil:
		if err := FitTable(ctx, cfg, types); err != nil {
			return nil, err
		}
	case errors.As(err, &wrong):
		return nil, err
	}
	table, missing := NewTable(ctx, cfg.Fit.DB, cfg)
	if missing != nil && err != nil {
		return nil, err
	}
	return table, missing
}

func (f *fitter) fit(ctx context.Context) (err error) {
	for range 3 {
		err = pgx.BeginFunc(ctx, f.cfg.Fit.DB, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", fitLock); err != nil {
				return err
			}
			info, err := f.look(ctx, tx)
			if err != nil {
				return err
			}
			sql, err := f.missing(info)
			if err != nil || sql == "" {
				return err
			}
			return f.make(ctx, tx)
		})
		switch sqlState(err) {
		case "42P07", "42701", "23505", "40P01": // somebody who doesn't take our lock was faster
			continue
		}
		break
	}
	return err
}

// fitter is a route's table as it should be.
type fitter struct {
	cfg  TableConfig
	name TableName
	want ddlTable
}

func newFitter(cfg TableConfig, types []sink.Types) (*fitter, error) {
	name, err := ParseTableName(cfg.Table)
	if err != nil {
		return nil, err
	}
	want, err := wanted(cfg, types)
	return &fitter{cfg, name, want}, err
}

// look is nil where the table isn't there.
func (f *fitter) look(ctx context.Context, db Querier) (*introspectTable, error) {
	var there bool
	if err := introspectOne(ctx, db, "SELECT to_regclass($1) IS NOT NULL", []any{f.name.sql()}, &there); err != nil {
		return nil, f.refused(err)
	}
	if !there {
		return nil, nil
	}
	return introspect(ctx, db, f.name)
}

// missing is the statement that the table lacks, "" if there is none that the
// route allows; a type that doesn't fit is a mistake.
func (f *fitter) missing(info *introspectTable) (sql string, err error) {
	if info == nil && !f.cfg.Fit.Create || info != nil && !f.cfg.Fit.Evolve {
		return "", nil
	}
	sql, _, err = f.lacks(info)
	return sql, err
}

// lacks is the statement, and its columns, whatever the route allows.
func (f *fitter) lacks(info *introspectTable) (sql string, lacks ddlTable, err error) {
	lacks, err = f.want.without(info)
	switch {
	case err != nil:
		return "", lacks, err
	case info == nil:
		return lacks.create(f.name), lacks, nil
	case f.cfg.Fit.Evolve:
		err = f.compare(info)
	}
	return lacks.add(info.name), lacks, err
}

// compare finds columns that can't hold what the schema says.
func (f *fitter) compare(info *introspectTable) error {
	var errs []error
	for _, c := range f.want.columns {
		has := info.column(c.name)
		if has == nil || has.holds(c.of, f.cfg) {
			continue
		}
		errs = append(errs, &TableError{
			Table: info.name.String(), Column: c.name,
			Why:  fmt.Sprintf("it is %s, and by the schema values are %s", has.typ, c.of),
			Hint: fmt.Sprintf("semel retypes no column: ALTER TABLE %s ALTER COLUMN %s TYPE %s, or map the field to another column; then resume the route", info.name, pgx.Identifier{c.name}.Sanitize(), c.typ),
		})
	}
	return errors.Join(errs...)
}

// make does what is missing, alone among those who ask for this lock, and tries
// the route's plan on it before anybody sees it.
func (f *fitter) make(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('semel table ' || $1, 0))", f.name.sql()); err != nil {
		return err
	}
	info, err := f.look(ctx, tx) // who had the lock before may have done it
	if err != nil {
		return err
	}
	sql, err := f.missing(info)
	if err != nil {
		return err
	}
	if sql != "" {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return f.refused(err)
		}
	}
	if info, err = introspect(ctx, tx, f.name); err != nil {
		return err
	}
	_, err = newTablePlan(info, f.cfg)
	return err
}

// refused makes a mistake of what no other attempt can cure.
func (f *fitter) refused(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	e := &TableError{Table: f.name.String(), Why: "it can't be made as the schema asks for: " + pg.Message}
	switch {
	case pg.Code == insufficientPrivilege:
		e.Why, e.Hint = "this role may not make it or add columns: "+pg.Message, fitRights
	case pg.Code == "3F000":
		e.Why, e.Hint = "there is no schema "+f.name.Schema, fitNoSchema
	case pg.Code == "42P07" || pg.Code == "42701":
		return err
	case !strings.HasPrefix(pg.Code, "42") && !strings.HasPrefix(pg.Code, "54") && !strings.HasPrefix(pg.Code, "0A") && !strings.HasPrefix(pg.Code, "22"):
		return err
	}
	return e
}

const (
	insufficientPrivilege = "42501"
	fitNoSchema           = "semel makes tables and no schemas: CREATE SCHEMA"
	fitRights             = "GRANT CREATE ON its SCHEMA (a new column: by the table's owner), or somebody who may runs what semel check --plan prints"
)
