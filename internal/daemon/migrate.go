package daemon

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
)

// MigrateConfig says what to do beside making the tables.
type MigrateConfig struct {
	Grant       string // a role
	NewIdentity bool
}

// Migrate makes or upgrades Semel's tables; it needs no broker.
func Migrate(ctx context.Context, f *config.File, cfg MigrateConfig) (done postgres.MigrateResult, err error) {
	pc, err := poolConfig(f)
	if err != nil {
		return done, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return done, &StartError{What: "database", Err: Plain(err)}
	}
	defer pool.Close()
	p := &parts{file: f, pool: pool}
	if err := p.reachDatabase(ctx); err != nil {
		return done, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return done, &StartError{What: "database", Err: Plain(err)}
	}
	defer conn.Release()
	schema := f.Database.Schema
	if done, err = postgres.Migrate(ctx, conn.Conn(), postgres.MigrateConfig{Schema: schema}); err != nil {
		return done, err
	}
	for _, r := range f.Routes {
		if r.Inbox.Window == 0 {
			continue
		}
		if err := postgres.Register(ctx, conn.Conn(), schema, r.Consumer); err != nil {
			return done, err
		}
	}
	if cfg.Grant != "" {
		if _, err := conn.Exec(ctx, postgres.GrantSQL(schema, cfg.Grant)); err != nil {
			return done, err
		}
	}
	if cfg.NewIdentity {
		done.Database, err = postgres.NewIdentity(ctx, conn.Conn(), schema)
	}
	return done, err
}
