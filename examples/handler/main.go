// Command handler is the smallest whole program on semel: it adds what each
// payment says to an account. Adding twice would be wrong, and nothing here
// guards against it but the transaction that the handler is given.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./handler
package main

import (
	"context"
	"encoding/json"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

type payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

func pay(ctx context.Context, tx pgx.Tx, m semel.Message) error {
	var p payment
	if err := json.Unmarshal(m.Value, &p); err != nil {
		return semel.Permanent(err) // no further attempt would read it: a dead letter
	}
	if p.Amount == 0 {
		return semel.Skip("nothing to add")
	}
	_, err := tx.Exec(ctx, `INSERT INTO account (id, balance) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
	return err
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return err
	}
	source, err := kafka.NewSource(kafka.SourceConfig{
		Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		Topics:  []string{"payments"},
		Group:   "billing",
	})
	if err != nil {
		return err
	}
	billing, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: "billing",
		Source:   source,
		Store:    postgres.NewInboxStore(pool, postgres.InboxConfig{}),
		ID:       semel.HeaderID("message-id"),
		Handler:  pay,
		Logger:   slog.Default(),
	})
	if err != nil {
		return err
	}
	// A signal finishes the batch in flight; nothing is delivered again after it.
	signals, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(signals, billing.Drain)
	return billing.Run(ctx)
}

// prepare makes Semel's tables, as `semel migrate` does, and the example's own.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if _, err := postgres.Migrate(ctx, c.Conn(), postgres.MigrateConfig{}); err != nil {
		return err
	}
	_, err = c.Exec(ctx, `CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance bigint NOT NULL)`)
	return err
}
