package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
)

// Reset hands decide all rows of a consumer, under their locks, and writes those that
// it answers with a new generation and token and without an owner: whoever works on
// them is fenced. forget gives the consumer an inbox that knows no ID yet. All of it
// is one transaction; an error of decide is answered, and nothing was written. A
// batch that holds a row past the lock time-out is ended, as by a claim.
func (s *InboxStore) Reset(ctx context.Context, consumer string, forget bool, decide func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) (rows []inbox.Row, err error) {
	s.consumer, s.who = inbox.Record{Name: consumer}, nameSessions(consumer)
	for range 3 {
		rows, err = s.reset(ctx, forget, decide)
		if sqlState(err) != "55P03" {
			return rows, err
		}
		look, lookErr := s.Look(ctx, nil)
		if lookErr != nil {
			return nil, lookErr
		}
		for _, r := range look.Rows {
			if _, err := s.endBlockers(ctx, r.Partition); err != nil {
				return nil, err
			}
		}
	}
	return rows, err
}

func (s *InboxStore) reset(ctx context.Context, forget bool, decide func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) (moved []inbox.Row, err error) {
	var known []inbox.Row
	lock := func(b *pgx.Batch) {
		b.Queue(s.sql.lockAll, s.consumer.Name).Query(func(rows pgx.Rows) (err error) {
			known, err = collect(rows)
			return err
		})
	}
	err = s.short(ctx, lock, func(tx pgx.Tx) error {
		var events []inbox.Event
		var err error
		if moved, events, err = decide(slices.Clone(known)); err != nil {
			return err
		}
		var b pgx.Batch
		for i := range moved {
			r := &moved[i]
			r.Generation++
			r.Owner = nil
			rand.Read(r.Token[:])
			var place string
			b.Queue(s.sql.claimRow, append([]any{s.consumer.Name, r.Topic, r.Partition.Number}, written(*r)...)...).
				QueryRow(func(row pgx.Row) error { return row.Scan(&r.Updated, &place) })
		}
		if forget {
			events = append(events, inbox.Event{Kind: "ids-forgotten"})
		}
		s.queueEvents(&b, events)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil || !forget {
			return err
		}
		return s.forgetIDs(ctx, tx)
	})
	if err != nil {
		return nil, err
	}
	return moved, nil
}

// forgetIDs moves the consumer to a new scope, and drops what the old one knew.
func (s *InboxStore) forgetIDs(ctx context.Context, tx pgx.Tx) error {
	var was, is int32
	err := tx.QueryRow(ctx, s.schema.sql(`SELECT scope FROM semel.consumer WHERE name = $1 FOR UPDATE`), s.consumer.Name).Scan(&was)
	if err != nil {
		return err
	}
	err = tx.QueryRow(ctx, s.schema.sql(`UPDATE semel.consumer SET scope = DEFAULT WHERE name = $1 RETURNING scope`), s.consumer.Name).Scan(&is)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.schema.sql(`SELECT semel.make_inbox($1)`), is); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, s.schema.sql(`SELECT relation::regclass::text FROM semel.generation WHERE scope = $1 ORDER BY slot`), was)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, t := range tables { // quoted by the server
		if _, err := tx.Exec(ctx, `DROP TABLE `+t); err != nil {
			return err
		}
	}
	for _, table := range []string{"generation", "ring"} {
		if _, err := tx.Exec(ctx, s.schema.sql(fmt.Sprintf(`DELETE FROM semel.%s WHERE scope = $1`, table)), was); err != nil {
			return err
		}
	}
	return nil
}

// IsNotOwner says whether an error is that a role may not change a table or a schema.
func IsNotOwner(err error) bool { return sqlState(err) == "42501" }
