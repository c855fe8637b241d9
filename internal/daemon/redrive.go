package daemon

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
)

// Redrive handles the marked dead letters of routes in this process, without joining
// their groups: for routes that don't run. Where one does, both may be at it; each
// letter is handled once.
func Redrive(ctx context.Context, cfg Config) error {
	routes, err := chosen(cfg.File, cfg.Routes)
	if err != nil {
		return err
	}
	p, err := open(ctx, cfg.File, cfg.Logger)
	if err != nil {
		return err
	}
	defer p.close()
	d := &daemon{cfg: cfg, routes: routes, parts: p, metrics: newMetrics(cfg.Build), log: cfg.Logger}
	d.board = newBoard(time.Now, func(Standing) {})
	for _, r := range routes {
		d.board.add(r.Name, 1)
		l, err := d.lane(ctx, r, 0, nil)
		if err == nil {
			err = l.(*inbox.Inbox[pgx.Tx]).Redrive(ctx)
		}
		if err != nil {
			return &StartError{What: "route " + r.Name, Err: Plain(err)}
		}
	}
	return nil
}

// InOrder says whether messages of a route may be applied late: they put no state over
// another, or only a newer one over an older. What SQL makes of a late message is for
// who wrote it to know.
func InOrder(r config.Route) bool {
	state := r.To.Write == config.Upsert || r.To.Write == config.Mirror
	return !state || r.To.Version.String() != "" || len(r.To.Combine) > 0
}
