package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// WatermarkConfig says whose watermark it is.
type WatermarkConfig struct {
	Schema   string // of Semel's tables; "": DefaultSchema
	Consumer string // not one that a route or an [inbox.Inbox] runs
}

// Watermark is a consumer's place in each partition, for a loop of your own on any
// client for Kafka. What an [inbox.Inbox] does by itself is then yours to do, in
// this order:
//
//  1. When the group assigns a partition: throw away what was fetched of it before,
//     Claim it, and seek to what that answers.
//  2. For each batch: begin a transaction, Advance first, then the effects, COMMIT.
//  3. Then commit the offset to the group, for lag displays.
//  4. On [semel.ErrFenced], and after every transaction that wasn't committed or
//     whose COMMIT wasn't answered: back to 1 for the partitions of the batch.
//
// Safe for use by many goroutines.
type Watermark struct {
	pool           *pgxpool.Pool
	consumer       string
	claim, advance string
}

// NewWatermark makes one.
func NewWatermark(pool *pgxpool.Pool, cfg WatermarkConfig) *Watermark {
	n := nameOf(cfg.Schema)
	return &Watermark{
		pool: pool, consumer: cfg.Consumer,
		claim:   n.sql(`SELECT token, next_offset, generation FROM semel.claim($1::text, $2::text, $3::integer, $4::bigint, $5::uuid)`),
		advance: n.sql(`SELECT semel.advance($1::text, $2::text, $3::integer, $4::uuid, $5::bigint, $6::bigint)`),
	}
}

// Claim takes the partition from whoever had it and answers where to seek, whatever
// the group's offset is. A consumer without a row begins at start: say the same
// every time, such as the beginning of the log, because a database that is put back
// to before the first claim asks again. The topic ID may be zero if your client
// doesn't tell; else a topic that was deleted and made again is an error, SM005.
//
// A session of an older claim that holds the row for longer than two seconds, as
// that of a stopped process does, is ended.
func (w *Watermark) Claim(ctx context.Context, p semel.Partition, topic semel.TopicID, start int64) (c inbox.Claim, next int64, err error) {
	c = inbox.Claim{Partition: p, TopicID: topic}
	var token pgtype.UUID
	err = w.pool.QueryRow(ctx, w.claim, w.consumer, p.Topic, p.Number, start, uuidOf(topic)).Scan(&token, &next, &c.Generation)
	if err != nil {
		return inbox.Claim{}, 0, fmt.Errorf("claim %s for %s: %w", p, w.consumer, err)
	}
	c.Token = token.Bytes
	return c, next, nil
}

// Advance locks the rows of the spans, compares token and place, and moves them
// from From to To, in one round trip. It comes first in the transaction, before any
// effect. From is what the claim answered, or To of the span committed before; not
// the offset of the first message, as logs have holes. To is the last message's
// offset + 1. A claim that doesn't hold is [semel.ErrFenced], and no statement of
// this transaction takes effect any more. So is a row that another session holds
// for two seconds: perhaps a dead one of your own, which a claim ends.
//
// Any isolation level does.
func (w *Watermark) Advance(ctx context.Context, tx pgx.Tx, spans ...inbox.Span) error {
	if len(spans) == 0 {
		return nil
	}
	// In one order, so that two transactions never wait in a circle.
	spans = slices.SortedFunc(slices.Values(spans), func(a, b inbox.Span) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition.Number, b.Partition.Number))
	})
	var b pgx.Batch
	for _, s := range spans {
		b.Queue(w.advance, w.consumer, s.Topic, s.Partition.Number, uuidOf(s.Token), s.From, s.To)
	}
	err := tx.SendBatch(ctx, &b).Close()
	if err == nil {
		return nil
	}
	if state := sqlState(err); state == "SM004" || state == "55P03" {
		err = fmt.Errorf("%w: %w", semel.ErrFenced, err)
	}
	return fmt.Errorf("advance %s: %w", w.consumer, err)
}
