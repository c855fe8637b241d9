// Command watermill is a handler of a Watermill router, here on Kafka: one call of
// Admit inside the transaction of the effect, instead of a deduplicator beside it.
// Acked is what was committed; an error is delivered again.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./watermill
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/postgres"
)

type handler struct {
	pool  *pgxpool.Pool
	store *postgres.InboxStore
}

func (h handler) pay(m *message.Message) error {
	id := m.Metadata.Get("message-id") // m.UUID does as well, if every producer is Watermill
	if id == "" {
		return errors.New("no message-id")
	}
	return pgx.BeginFunc(m.Context(), h.pool, func(tx pgx.Tx) error {
		fresh, err := h.store.Admit(m.Context(), tx, "watermill", semel.IDOf([]byte(id)))
		if err != nil || !fresh {
			return err
		}
		var p struct {
			Account string
			Amount  int64
		}
		if err := json.Unmarshal(m.Payload, &p); err != nil {
			return err
		}
		_, err = tx.Exec(m.Context(), `INSERT INTO account (id, balance) VALUES ($1, $2)
			ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
		return err
	})
}

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
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance bigint NOT NULL)`); err != nil {
		return err
	}
	logger := watermill.NewStdLogger(false, false)
	cfg := kafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Group.Session.Timeout = 6 * time.Second // a killed process lives on at the broker until then
	cfg.Consumer.Group.Heartbeat.Interval = time.Second
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		ConsumerGroup:         "watermill",
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: cfg,
	}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	h := handler{pool: pool, store: postgres.NewInboxStore(pool, postgres.InboxConfig{})}
	router.AddConsumerHandler("payments", "payments", subscriber, h.pay)
	return router.Run(ctx)
}
