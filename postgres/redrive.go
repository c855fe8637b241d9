package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// redriveTx is the transaction of a dead letter that is handled again.
type redriveTx struct {
	*inboxTx
	letter inbox.Letter
}

var _ inbox.Redrive[pgx.Tx] = (*redriveTx)(nil)

// redriving stands in application_name in place of a token: a claim may end such a
// session, which holds the row of a partition.
const redriving = "redrive"

// Redrive locks a letter and then the row of its partition, as a batch locks rows
// before anything else: whoever counts on that row waits here, not in the middle of
// effects.
func (s *InboxStore) Redrive(ctx context.Context, ps []semel.Partition, after int64) (inbox.Redrive[pgx.Tx], error) {
	tx, now, err := s.begin(ctx, redriving, nil)
	if err != nil {
		return nil, err
	}
	letter, err := s.markedLetter(ctx, tx, ps, after)
	if err == nil && letter.Class == inbox.DeadCrash {
		if tx, now, err = s.unmark(ctx, tx, letter.Number); errors.Is(err, pgx.ErrNoRows) {
			s.rollback(tx)
			return s.Redrive(ctx, ps, letter.Number) // somebody else was faster
		}
	}
	f := &fence{}
	if err == nil {
		var b pgx.Batch
		b.Queue(s.schema.sql(`SELECT FROM semel.watermark WHERE consumer = $1 AND topic = $2 AND partition = $3 FOR UPDATE`),
			s.consumer.Name, letter.Message.Topic, letter.Message.Partition)
		if s.hasInbox() {
			f.ring = new(ring)
			s.queueRing(&b, f.ring)
		}
		if err = tx.SendBatch(ctx, &b).Close(); err == nil && f.ring != nil {
			err = s.settleRing(ctx, tx, f.ring)
		}
	}
	if err != nil {
		s.rollback(tx)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		s.spent(err)
		return nil, err
	}
	return &redriveTx{s.opened(tx, now, f), letter}, nil
}

// unmark takes the mark of a letter away, for good, and locks it again.
func (s *InboxStore) unmark(ctx context.Context, tx pgx.Tx, number int64) (_ pgx.Tx, now time.Time, err error) {
	if _, err = tx.Exec(ctx, s.schema.sql(`UPDATE semel.dead_letter SET state = 'buried', attempts = attempts + 1 WHERE number = $1`), number); err != nil {
		return tx, now, err
	}
	if err = tx.Commit(ctx); err != nil {
		return tx, now, err
	}
	if tx, now, err = s.begin(ctx, redriving, nil); err != nil {
		return nil, now, err
	}
	err = tx.QueryRow(ctx, s.schema.sql(`SELECT number FROM semel.dead_letter WHERE number = $1 AND state = 'buried' FOR UPDATE`), number).Scan(&number)
	return tx, now, err
}

// markedLetter locks the next one. Who owns a partition is looked at only to leave
// work to its lane; the lock is what counts.
func (s *InboxStore) markedLetter(ctx context.Context, tx pgx.Tx, ps []semel.Partition, after int64) (l inbox.Letter, err error) {
	var at pgtype.Timestamptz
	var id pgtype.UUID
	var headers []byte
	topics, numbers := split(ps)
	err = tx.QueryRow(ctx, s.schema.sql(`
		SELECT number, topic, partition, "offset", message_time, coalesce(message_id, ''), id, key, value, headers, class,
		       coalesce(sqlstate, ''), error, attempts
		FROM semel.dead_letter d
		WHERE consumer = $1 AND state = 'redrive' AND number > $2
		  AND ($3::boolean
		       OR EXISTS (SELECT FROM unnest($4::text[], $5::integer[]) k(topic, partition) WHERE k.topic = d.topic AND k.partition = d.partition)
		       OR NOT EXISTS (SELECT FROM semel.watermark w WHERE w.consumer = d.consumer AND w.topic = d.topic
		                      AND w.partition = d.partition AND w.owner IS NOT NULL))
		ORDER BY number LIMIT 1 FOR UPDATE OF d SKIP LOCKED`), s.consumer.Name, after, ps == nil, topics, numbers).
		Scan(&l.Number, &l.Message.Topic, &l.Message.Partition, &l.Message.Offset, &at, &l.SentID, &id, &l.Message.Key, &l.Message.Value,
			&headers, &l.Class, &l.SQLState, &l.Error, &l.Attempts)
	if err != nil {
		return l, err
	}
	l.Message.Timestamp, l.ID = at.Time, id.Bytes
	l.Message.Headers, err = headersFrom(headers)
	return l, err
}

func (r *redriveTx) Letter() inbox.Letter { return r.letter }

// Readmit waits for a transaction that holds the same ID. Frozen tables are asked
// first, and stay as they are: that a letter of theirs was applied is recorded in the
// hot one.
func (r *redriveTx) Readmit(ctx context.Context, a inbox.Admission) (inbox.Verdict, error) {
	id := pgtype.UUID{Bytes: a.ID, Valid: true}
	for _, g := range r.ring.frozen() {
		var applied bool
		err := r.tx.QueryRow(ctx, r.store.inTable(g, `SELECT EXISTS (SELECT FROM semel.INBOX WHERE id = $1 AND how = 'a')`), id).Scan(&applied)
		if err != nil {
			return 0, r.note(err)
		}
		if applied {
			return inbox.Duplicate, nil
		}
	}
	for _, g := range r.ring.hot() {
		tag, err := r.tx.Exec(ctx, r.store.inTable(g, `
			INSERT INTO semel.INBOX AS i (id, digest) VALUES ($1, $2)
			ON CONFLICT (id) DO UPDATE SET how = 'a', digest = excluded.digest, at = excluded.at WHERE i.how = 'd'`),
			id, uuidOf(a.Digest))
		if err != nil {
			return 0, r.note(err)
		}
		if tag.RowsAffected() == 0 {
			return inbox.Duplicate, nil
		}
	}
	return inbox.Fresh, nil
}

// Close closes the letter and commits.
func (r *redriveTx) Close(ctx context.Context, how inbox.Outcome) error {
	if err := r.unfit(); err != nil {
		return err
	}
	var b pgx.Batch
	b.Queue(r.store.schema.sql(`UPDATE semel.dead_letter SET state = 'redriven', outcome = $2, closed_at = now() WHERE number = $1`),
		r.letter.Number, how.String())
	if how == inbox.Applied {
		b.Queue(r.store.schema.sql(`UPDATE semel.watermark SET redriven = redriven + 1 WHERE consumer = $1 AND topic = $2 AND partition = $3`),
			r.store.consumer.Name, r.letter.Message.Topic, r.letter.Message.Partition)
	}
	if err := r.tx.SendBatch(ctx, &b).Close(); err != nil {
		return r.note(err)
	}
	return r.Commit(ctx, nil)
}

// Rebury takes the mark away.
func (s *InboxStore) Rebury(ctx context.Context, number int64, why inbox.DeadLetter) error {
	return s.short(ctx, nil, func(tx pgx.Tx) error {
		utf := tx.Conn().PgConn().ParameterStatus("server_encoding") == "UTF8"
		_, err := tx.Exec(ctx, s.schema.sql(`
			UPDATE semel.dead_letter SET state = 'buried', class = $3, sqlstate = nullif($4::text, ''), error = $5, attempts = attempts + 1
			WHERE number = $1 AND consumer = $2 AND state IN ('buried', 'redrive')`),
			number, s.consumer.Name, string(why.Class), cleanText(why.SQLState, 5, utf), cleanText(why.Error, 2000, utf))
		return err
	})
}
