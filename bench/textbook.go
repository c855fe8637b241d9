package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
)

// textbook is the consumer that tutorials show: per message a transaction with
// the message ID and the row, then the offset.
func (e *env) textbook(ctx context.Context, topic string, s *stream) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := e.exec(ctx, "DROP TABLE IF EXISTS textbook_inbox", "CREATE TABLE textbook_inbox (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"); err != nil {
		return run{}, err
	}
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return run{}, err
	}
	defer conn.Release()
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: e.brokers, Topic: topic, GroupID: e.name("textbook"), StartOffset: kafka.FirstOffset})
	defer reader.Close()
	c := e.clock(len(s.orders))
	for range s.orders {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return run{}, err
		}
		c.start()
		if err := e.textbookMessage(ctx, conn.Conn(), m); err != nil {
			return run{}, err
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			return run{}, err
		}
		c.add(1)
	}
	return c.run, nil
}

func (e *env) textbookMessage(ctx context.Context, conn *pgx.Conn, m kafka.Message) error {
	var o struct {
		ID      string          `json:"id"`
		Account string          `json:"account"`
		Amount  int64           `json:"amount"`
		At      time.Time       `json:"at"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return err
	}
	id := ""
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			id = string(h.Value)
		}
	}
	if id == "" {
		return errors.New("a message without ID")
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	tag, err := tx.Exec(ctx, "INSERT INTO textbook_inbox (id) VALUES ($1) ON CONFLICT DO NOTHING", id)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 1 {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, account, amount, at, payload) VALUES ($1, $2, $3, $4, $5)",
			o.ID, o.Account, o.Amount, o.At, o.Payload); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}
