package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// WatermarkConfig says whose watermark it is.
type WatermarkConfig struct {
	Schema   string // of Semel's tables; "": semel
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
// It holds nothing and is safe for use by many goroutines.
type Watermark struct{ consumer, claim, advance string }

// NewWatermark makes one.
func NewWatermark(cfg WatermarkConfig) *Watermark {
	schema := quoted(cfg.Schema)
	return &Watermark{
		consumer: cfg.Consumer,
		claim: `SELECT CAST(token AS text), next_offset, generation FROM ` + schema +
			`.claim(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST($4 AS bigint), CAST(CAST($5 AS text) AS uuid))`,
		advance: `SELECT ` + schema +
			`.advance(CAST($1 AS text), CAST($2 AS text), CAST($3 AS integer), CAST(CAST($4 AS text) AS uuid), CAST($5 AS bigint), CAST($6 AS bigint))`,
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
func (w *Watermark) Claim(ctx context.Context, db *sql.DB, p semel.Partition, topic semel.TopicID, start int64) (c inbox.Claim, next int64, err error) {
	c = inbox.Claim{Partition: p, TopicID: topic}
	id := sql.NullString{String: semel.ID(topic).String(), Valid: topic != semel.TopicID{}}
	var token string
	err = db.QueryRowContext(ctx, w.claim, w.consumer, p.Topic, p.Number, start, id).Scan(&token, &next, &c.Generation)
	if err != nil {
		return inbox.Claim{}, 0, fmt.Errorf("claim %s for %s: %w", p, w.consumer, err)
	}
	c.Token = inbox.Token(semel.IDOf([]byte(token)))
	return c, next, nil
}

// Advance locks the rows of the spans, compares token and place, and moves them
// from From to To. It comes first in the transaction, before any effect. From is
// what the claim answered, or To of the span committed before; not the offset of
// the first message, as logs have holes. To is the last message's offset + 1. A
// claim that doesn't hold is [semel.ErrFenced], and no statement of this transaction
// takes effect any more. So is a row that another session holds for two seconds:
// perhaps a dead one of your own, which a claim ends.
//
// Any isolation level does.
func (w *Watermark) Advance(ctx context.Context, tx *sql.Tx, spans ...inbox.Span) error {
	// In one order, so that two transactions never wait in a circle.
	for _, s := range slices.SortedFunc(slices.Values(spans), func(a, b inbox.Span) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition.Number, b.Partition.Number))
	}) {
		_, err := tx.ExecContext(ctx, w.advance, w.consumer, s.Topic, s.Partition.Number, semel.ID(s.Token).String(), s.From, s.To)
		var coded interface{ SQLState() string }
		if errors.As(err, &coded) && (coded.SQLState() == "SM004" || coded.SQLState() == "55P03") {
			err = fmt.Errorf("%w: %w", semel.ErrFenced, err)
		}
		if err != nil {
			return fmt.Errorf("advance %s: %w", w.consumer, err)
		}
	}
	return nil
}
