// Command own-loop-sql is own-loop with database/sql: any driver for PostgreSQL,
// any client for Kafka (here segmentio/kafka-go), one call of Admit inside the
// transaction of the effect.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./own-loop-sql
//
// The tables are made beforehand, by `semel migrate`.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"; another one does as well
	kafkago "github.com/segmentio/kafka-go"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sqldb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance bigint NOT NULL)`); err != nil {
		return err
	}
	store := sqldb.NewInboxStore(sqldb.Config{})
	reader := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers:     strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		GroupID:     "own-loop-sql",
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
		if err := once(ctx, db, store, m); err != nil {
			return err // the offset stays: the message comes again
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

// once is one transaction: admit, then the effect if the message is fresh.
func once(ctx context.Context, db *sql.DB, store *sqldb.InboxStore, m kafkago.Message) error {
	tx, err := db.BeginTx(ctx, nil) // READ COMMITTED, the default, is what Admit needs
	if err != nil {
		return err
	}
	defer tx.Rollback()
	fresh, err := store.Admit(ctx, tx, "own-loop-sql", messageID(m))
	if err != nil {
		return err
	}
	if fresh {
		if err := pay(ctx, tx, m.Value); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func messageID(m kafkago.Message) semel.ID {
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			return semel.IDOf(h.Value)
		}
	}
	return semel.IDOf(m.Value) // no better identity than what it says
}

func pay(ctx context.Context, tx *sql.Tx, value []byte) error {
	var p struct {
		Account string `json:"account"`
		Amount  int64  `json:"amount"`
	}
	if err := json.Unmarshal(value, &p); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO account (id, balance) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
	return err
}
