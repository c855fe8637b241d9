// Package postgres keeps the memory in PostgreSQL: watermarks, inbox, dead
// letters, events, and the tables that hold them. All SQL of the project lives
// here. It knows no broker.
//
// # The tables
//
// [Migrate] makes them, as the command semel migrate does, in a schema of their
// own. It may be called at each start:
//
//	_, err := postgres.Migrate(ctx, conn, postgres.MigrateConfig{})
//
// # Admit, in your own loop
//
// The inbox alone needs one call inside your transaction. It says whether the
// message is fresh; if the transaction is rolled back it never was:
//
//	store := postgres.NewInboxStore(pool, postgres.InboxConfig{})
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		fresh, err := store.Admit(ctx, tx, "billing", semel.IDOf(m.Key))
//		if err != nil || !fresh {
//			return err
//		}
//		_, err = tx.Exec(ctx, `UPDATE account SET …`)
//		return err
//	})
//	// Acknowledge only now, and only if err is nil.
//
// # The whole loop
//
// The same [InboxStore] is the store of an inbox.Inbox, one for each: it holds a
// connection. What that gives beyond Admit is the watermark: many messages in a
// transaction, fences against zombies, and a database that may go back in time.
//
//	billing, err := inbox.New(inbox.Config[pgx.Tx]{
//		Consumer: "billing", Source: source, Store: store, ID: semel.HeaderID("message-id"),
//		Handler: func(ctx context.Context, tx pgx.Tx, m semel.Message) error { … },
//	})
//
// # Rows without a handler
//
// A [Table] is an inbox.Effect that writes messages as rows, exactly or not at
// all: it refuses what a column would round. It sends rows by COPY in binary form.
//
//	table, err := postgres.NewTable(ctx, pool, postgres.TableConfig{
//		Table: "public.orders", Write: postgres.WriteUpsert, Version: "value.version",
//		Identified: true, // by the header
//	})
//	orders, err := inbox.New(inbox.Config[pgx.Tx]{ …, Effect: table, Memory: table.Memory()})
//
// # What it asks of a server
//
// PostgreSQL 14 or later. Every statement is safe behind a transaction pooler:
// what a session needs is set with SET LOCAL in each transaction, and no lock
// outlives one. What an error means is decided by its SQLSTATE alone
// ([SQLStates]).
//
// # Reading the code
//
// schema/ has the tables, store.go claims and looks, tx.go is a transaction from fence
// to COMMIT, handler.go what of it a handler is given, admit.go the inbox, classify.go what errors mean. The table writer:
// introspect.go reads the catalog, table_plan.go decides how to write, encode*.go
// turn values into fields, table.go and copy.go send rows, table_conflict.go and
// table_key.go are for keys that exist. status.go and facts.go answer commands.
package postgres
