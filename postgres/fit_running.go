package postgres

import (
	"context"
	"errors"
	"slices"

	"github.com/semelhq/semel/sink"
)

// fit sees to it that the table fits messages of a schema, once for each schema. Its
// error is the route's mistake, or an outage.
func (t *Table) fit(value *sink.Type) error {
	if verdict, ok := t.fits.Load(value); ok {
		err, _ := verdict.(error)
		return err
	}
	err := t.refit(value)
	var wrong *TableError
	if err == nil || errors.As(err, &wrong) {
		t.fits.Store(value, err)
	}
	return err
}

// refit asks the server only where something is missing: nearly all schemas have
// nothing new. It is not done in a transaction of the lane, which may hold the table.
func (t *Table) refit(value *sink.Type) error {
	f, err := newFitter(t.cfg, []sink.Types{{Value: value}})
	if err != nil {
		return err
	}
	// What isn't the value's to say was there when the route began.
	f.want.columns = slices.DeleteFunc(f.want.columns, func(c ddlColumn) bool { return c.why != nil })
	if sql, err := f.missing(t.plan.Load().info); err != nil || sql == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tablesWithin)
	defer cancel()
	if err := f.fit(ctx); err != nil {
		return err
	}
	return t.Reload(ctx, t.cfg.Fit.DB)
}
