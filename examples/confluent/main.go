// Command confluent keeps a loop of its own on confluent-kafka-go (librdkafka, so
// it needs cgo) and database/sql, with both memories: the watermark for what the
// broker delivers again, Admit for what producers send again. A batch is one
// transaction.
//
//	KAFKA_BROKERS=… DATABASE_URL=… go run ./confluent
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
	"syscall"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"; another one does as well

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sqldb"
)

const consumer = "confluent"

type loop struct {
	db     *sql.DB
	memory *sqldb.InboxStore
	mark   *sqldb.Watermark
	places map[semel.Partition]inbox.Span // the claim, and in To where we stand
	batch  []*kafka.Message
}

// assigned is called inside Poll. It throws away what was fetched under older
// claims, claims, and reads from where the claims say.
func (l *loop) assigned(c *kafka.Consumer, e kafka.Event) error {
	l.batch = nil
	clear(l.places)
	a, ok := e.(kafka.AssignedPartitions)
	if !ok {
		return c.Unassign()
	}
	for i := range a.Partitions {
		p := semel.Partition{Topic: *a.Partitions[i].Topic, Number: a.Partitions[i].Partition}
		claim, next, err := l.mark.Claim(context.Background(), l.db, p, semel.TopicID{}, 0)
		if err != nil {
			log.Fatal(err) // out of the group; who starts us again begins here
		}
		l.places[p] = inbox.Span{Claim: claim, To: next}
		a.Partitions[i].Offset = kafka.Offset(next)
	}
	return c.Assign(a.Partitions)
}

// settle is one transaction: the watermarks, the fresh ones, their effects.
func (l *loop) settle(ctx context.Context) ([]kafka.TopicPartition, error) {
	spans, fresh := map[semel.Partition]inbox.Span{}, map[semel.ID]bool{}
	var ids []semel.ID
	for _, m := range l.batch {
		p := semel.Partition{Topic: *m.TopicPartition.Topic, Number: m.TopicPartition.Partition}
		spans[p] = inbox.Span{Claim: l.places[p].Claim, From: l.places[p].To, To: int64(m.TopicPartition.Offset) + 1}
		ids = append(ids, messageID(m))
	}
	var list []inbox.Span
	var offsets []kafka.TopicPartition
	for p, s := range spans {
		list = append(list, s)
		offsets = append(offsets, kafka.TopicPartition{Topic: &p.Topic, Partition: p.Number, Offset: kafka.Offset(s.To)})
	}
	tx, err := l.db.BeginTx(ctx, nil) // READ COMMITTED, the default, is what Admit needs
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	if err := l.mark.Advance(ctx, tx, list...); err != nil { // before any effect
		return nil, err
	}
	admitted, err := l.memory.AdmitBatch(ctx, tx, consumer, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range admitted {
		fresh[id] = true
	}
	for i, m := range l.batch {
		if fresh[ids[i]] {
			if err := pay(ctx, tx, m.Value); err != nil {
				return nil, err
			}
		}
		fresh[ids[i]] = false // a repeat in the same batch
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	for p, s := range spans {
		l.places[p] = s
	}
	return offsets, nil
}

func pay(ctx context.Context, tx *sql.Tx, value []byte) error {
	var p struct {
		Account string
		Amount  int64
	}
	if err := json.Unmarshal(value, &p); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO account (id, balance) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance`, p.Account, p.Amount)
	return err
}

func messageID(m *kafka.Message) semel.ID {
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			return semel.IDOf(h.Value)
		}
	}
	return semel.IDOf(m.Value) // no better identity than what it says
}

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
	c, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": os.Getenv("KAFKA_BROKERS"), "group.id": consumer, "session.timeout.ms": 6000,
		"enable.auto.commit": false,
		"auto.offset.reset":  "error", // a place that is gone is for us to decide about
	})
	if err != nil {
		return err
	}
	defer c.Close()
	l := &loop{
		db: db, memory: sqldb.NewInboxStore(sqldb.Config{}), mark: sqldb.NewWatermark(sqldb.WatermarkConfig{Consumer: consumer}),
		places: map[semel.Partition]inbox.Span{},
	}
	if err := c.Subscribe("payments", l.assigned); err != nil {
		return err
	}
	for ctx.Err() == nil {
		wait := 100
		if len(l.batch) > 0 {
			wait = 0
		}
		switch e := c.Poll(wait).(type) {
		case *kafka.Message:
			if l.batch = append(l.batch, e); len(l.batch) < 500 {
				continue
			}
		case kafka.Error:
			if e.IsFatal() || e.Code() == kafka.ErrAutoOffsetReset {
				return e
			}
		}
		if len(l.batch) == 0 {
			continue
		}
		offsets, err := l.settle(ctx)
		if err != nil {
			return err // fenced or not: who starts us again claims again
		}
		l.batch = nil
		if _, err := c.CommitOffsets(offsets); err != nil {
			log.Print(err) // a hint, no more
		}
	}
	return nil
}
