// Command sarama keeps a loop of its own on IBM/sarama with the watermark alone:
// what the broker delivers again is recognised by its place, at one row for each
// partition, and a database that goes back in time is read up again. Take Admit
// besides (see ../confluent) where producers may send twice.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./sarama
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
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

type loop struct {
	pool   *pgxpool.Pool
	mark   *postgres.Watermark
	places map[semel.Partition]inbox.Span // the claim, and in To where we stand
}

// Setup is called after each rebalance, before any message: claim, and seek to
// what the claim says, whatever the group's offset is.
func (l *loop) Setup(s sarama.ConsumerGroupSession) error {
	l.places = map[semel.Partition]inbox.Span{}
	for topic, numbers := range s.Claims() {
		for _, n := range numbers {
			p := semel.Partition{Topic: topic, Number: n}
			claim, next, err := l.mark.Claim(s.Context(), p, semel.TopicID{}, 0)
			if err != nil {
				return err
			}
			s.ResetOffset(topic, n, next, "") // only lowers
			s.MarkOffset(topic, n, next, "")  // only raises
			l.places[p] = inbox.Span{Claim: claim, To: next}
		}
	}
	return nil
}

func (l *loop) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim runs for each partition. Its error ends the session, and the next
// one claims again: fenced or not, there is no other answer.
func (l *loop) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	at := l.places[semel.Partition{Topic: c.Topic(), Number: c.Partition()}]
	for m := range c.Messages() {
		batch := []*sarama.ConsumerMessage{m}
		for len(batch) < 500 && len(c.Messages()) > 0 {
			if m, ok := <-c.Messages(); ok {
				batch = append(batch, m)
			}
		}
		at.From, at.To = at.To, batch[len(batch)-1].Offset+1
		err := pgx.BeginFunc(s.Context(), l.pool, func(tx pgx.Tx) error {
			if err := l.mark.Advance(s.Context(), tx, at); err != nil { // before any effect
				return err
			}
			return pay(s.Context(), tx, batch)
		})
		if err != nil {
			log.Print(err)
			return err
		}
		s.MarkOffset(c.Topic(), c.Partition(), at.To, "") // for lag displays
	}
	return nil
}

func pay(ctx context.Context, tx pgx.Tx, batch []*sarama.ConsumerMessage) error {
	var b pgx.Batch
	for _, m := range batch {
		var p struct {
			Account string
			Amount  int64
		}
		if err := json.Unmarshal(m.Value, &p); err != nil {
			return err
		}
		b.Queue(`INSERT INTO account (id, balance) VALUES ($1, $2)
			ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
	}
	return tx.SendBatch(ctx, &b).Close()
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
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Consumer.Group.ResetInvalidOffsets = false // a place that is gone is for us to decide about
	cfg.Consumer.Group.Session.Timeout = 6 * time.Second
	cfg.Consumer.Group.Heartbeat.Interval = time.Second
	group, err := sarama.NewConsumerGroup(strings.Split(os.Getenv("KAFKA_BROKERS"), ","), "sarama", cfg)
	if err != nil {
		return err
	}
	defer group.Close()
	l := &loop{pool: pool, mark: postgres.NewWatermark(pool, postgres.WatermarkConfig{Consumer: "sarama"})}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{"payments"}, l); errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return err
		} else if err != nil {
			log.Print(err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}
