package postgres_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// The inbox in a loop of your own: one call inside the transaction of the effect.
func ExampleInboxStore_Admit() {
	pay := func(ctx context.Context, pool *pgxpool.Pool, store *postgres.InboxStore, m semel.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			fresh, err := store.Admit(ctx, tx, "billing", semel.IDOf(m.Key))
			if err != nil || !fresh {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE account SET balance = balance + 1 WHERE id = $1`, m.Value)
			return err
		})
	}
	_ = pay
}

// Rows without a handler: the table is the effect of an inbox.
func ExampleTable() {
	consume := func(ctx context.Context, pool *pgxpool.Pool, source inbox.Source) error {
		table, err := postgres.NewTable(ctx, pool, postgres.TableConfig{
			Table: "public.orders", Write: postgres.WriteUpsert, Version: "value.version",
			Identified: true, // by the header
		})
		if err != nil {
			return err
		}
		orders, err := inbox.New(inbox.Config[pgx.Tx]{
			Consumer: "orders",
			Source:   source,
			Store:    postgres.NewInboxStore(pool, postgres.InboxConfig{}),
			ID:       semel.HeaderID("message-id"),
			Effect:   table,
			Memory:   table.Memory(),
		})
		if err != nil {
			return err
		}
		return orders.Run(ctx)
	}
	_ = consume
}
