// Command own-loop keeps a loop of its own, on another client library
// (segmentio/kafka-go): fetch, then one call of Admit inside the transaction of
// the effect, then commit the offset. The inbox alone makes it once; without
// the watermark each message costs a transaction.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./own-loop
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	kafkago "github.com/segmentio/kafka-go"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
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
	store := postgres.NewInboxStore(pool, postgres.InboxConfig{})
	reader := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers:     strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		GroupID:     "own-loop",
		Topic:       "payments",
		StartOffset: kafkago.FirstOffset,
		// A killed process lives on at the broker until its session ends.
		SessionTimeout: 6 * time.Second,
	})
	defer reader.Close()
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		// READ COMMITTED, the default, is what Admit needs.
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			fresh, err := store.Admit(ctx, tx, "own-loop", messageID(m))
			if err != nil || !fresh {
				return err
			}
			return pay(ctx, tx, m.Value)
		})
		if err != nil {
			return err // the offset stays: the message comes again
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

func messageID(m kafkago.Message) semel.ID {
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			return semel.IDOf(h.Value)
		}
	}
	return semel.IDOf(m.Value) // no better identity than what it says
}

func pay(ctx context.Context, tx pgx.Tx, value []byte) error {
	var p struct {
		Account string `json:"account"`
		Amount  int64  `json:"amount"`
	}
	if err := json.Unmarshal(value, &p); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO account (id, balance) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
	return err
}

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
