package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// fewIDs is up to how many admissions go in by one INSERT in one round trip;
// more are probed and the rest goes in by COPY, which is faster by far.
const fewIDs = 64

// racedBatches is for how many batches after a race COPY is not tried: another
// session that admits the same IDs right now makes a whole batch fail.
const racedBatches = 16

// Admit records IDs in ascending order, so that two sessions with the same IDs
// wait for one another and never in a circle.
func (t *inboxTx) Admit(ctx context.Context, ids []inbox.Admission) ([]inbox.Verdict, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if t.ring == nil {
		panic("postgres: consumer " + t.store.consumer.Name + " has no inbox to admit to")
	}
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(ids[a].ID[:], ids[b].ID[:]) })
	sorted := make([]pgtype.UUID, len(ids))
	for n, i := range order {
		// Valid also when it is all zero bytes, which is an ID like any other.
		sorted[n] = pgtype.UUID{Bytes: ids[i].ID, Valid: true}
	}
	if len(ids) <= fewIDs || t.store.raced > 0 {
		t.store.raced = max(0, t.store.raced-1)
		return t.admitByInsert(ctx, ids, order, sorted)
	}
	return t.admitByCopy(ctx, ids, order, sorted)
}

// known is what the inbox holds of an ID.
type known map[[16]byte]pgtype.UUID

func (k known) take(rows pgx.Rows) error {
	var id, digest pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&id, &digest}, func() error {
		k[id.Bytes] = digest
		return nil
	})
	return err
}

// verdict compares digests where both are there.
func (k known) verdict(a inbox.Admission) inbox.Verdict {
	digest, ok := k[a.ID]
	switch {
	case !ok:
		return inbox.Fresh
	case digest.Valid && a.Digest != inbox.Digest{} && digest.Bytes != a.Digest:
		return inbox.Collision
	}
	return inbox.Duplicate
}

// One look-up for each ID: with `id = ANY` the planner would read a table of some
// 100,000 rows whole.
const probeInbox = `SELECT i.id, i.digest FROM unnest($1::uuid[]) u(id) CROSS JOIN LATERAL (SELECT * FROM semel.INBOX i WHERE i.id = u.id LIMIT 1) i`

// suspects are the IDs, in order, that a frozen table may hold.
func suspects(f *bloom, sorted []pgtype.UUID) []pgtype.UUID {
	if f == nil {
		return sorted
	}
	var ask []pgtype.UUID
	for i := range sorted {
		if f.has(sorted[i].Bytes[:]) {
			ask = append(ask, sorted[i])
		}
	}
	return ask
}

// queueFrozen asks the frozen tables about IDs that their filters don't exclude.
func (t *inboxTx) queueFrozen(b *pgx.Batch, sorted []pgtype.UUID, k known) {
	frozen := t.ring.frozen()
	for i, f := range t.store.rings.of(t.store.scope, frozen) {
		if ask := suspects(f, sorted); len(ask) > 0 {
			b.Queue(t.store.inTable(frozen[i], probeInbox), ask).Query(k.take)
		}
	}
}

// admitByCopy asks all tables of the list first. While two are hot an ID goes into
// both: it is fresh if it went into each.
func (t *inboxTx) admitByCopy(ctx context.Context, ids []inbox.Admission, order []int, sorted []pgtype.UUID) ([]inbox.Verdict, error) {
	k := known{}
	var probes pgx.Batch
	t.queueFrozen(&probes, sorted, k)
	for _, g := range t.ring.hot() {
		probes.Queue(t.store.inTable(g, probeInbox), sorted).Query(k.take)
	}
	if err := t.tx.SendBatch(ctx, &probes).Close(); err != nil {
		return nil, t.note(err)
	}
	verdicts := make([]inbox.Verdict, len(ids))
	fresh := make([]semel.ID, 0, len(ids)-len(k))
	b := append(t.store.buf[:0], "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	for _, i := range order {
		if verdicts[i] = k.verdict(ids[i]); verdicts[i] == inbox.Fresh {
			b = appendInbox(b, t.now, ids[i])
			fresh = append(fresh, ids[i].ID)
		}
	}
	b = append(b, 0xff, 0xff)
	t.store.buf = b
	if len(fresh) == 0 {
		return verdicts, nil
	}
	for _, g := range t.ring.hot() {
		tag, err := t.conn.PgConn().CopyFrom(ctx, bytes.NewReader(b), t.store.inTable(g, "COPY semel.INBOX (at, id, digest, how) FROM STDIN BINARY"))
		if sqlState(err) == "23505" {
			t.note(err)
			t.store.raced = racedBatches
			return nil, &classedError{inbox.ClassConflict, "another session admitted the same message IDs", err}
		}
		if err == nil && tag.RowsAffected() != int64(len(fresh)) {
			err = &classedError{inbox.ClassRoute, fmt.Sprintf("the inbox took %d rows of %d", tag.RowsAffected(), len(fresh)), nil}
		}
		if err != nil {
			return nil, t.note(err)
		}
	}
	t.fresh = append(t.fresh, fresh)
	return verdicts, nil
}

// appendInbox writes a row in the binary form of COPY: at, id, digest, how.
func appendInbox(b []byte, now time.Time, a inbox.Admission) []byte {
	b = append(b, 0, 4, 0, 0, 0, 8)
	b = binary.BigEndian.AppendUint64(b, uint64(now.UnixMicro()-epoch2000))
	b = append(b, 0, 0, 0, 16)
	b = append(b, a.ID[:]...)
	if (a.Digest == inbox.Digest{}) {
		b = append(b, 0xff, 0xff, 0xff, 0xff)
	} else {
		b = append(b, 0, 0, 0, 16)
		b = append(b, a.Digest[:]...)
	}
	return append(b, 0, 0, 0, 1, how(a)[0])
}

// epoch2000 is where PostgreSQL counts microseconds from.
var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func how(a inbox.Admission) string {
	if a.Dead {
		return "d"
	}
	return "a"
}

// admitByInsert can't fail by a race: an ID that another transaction holds is
// waited for. Frozen tables are asked before anything is inserted, or this and those
// who carry IDs forward could wait for one another.
func (t *inboxTx) admitByInsert(ctx context.Context, ids []inbox.Admission, order []int, sorted []pgtype.UUID) ([]inbox.Verdict, error) {
	k := known{}
	var probes pgx.Batch
	if t.queueFrozen(&probes, sorted, k); probes.Len() > 0 {
		if err := t.tx.SendBatch(ctx, &probes).Close(); err != nil {
			return nil, t.note(err)
		}
	}
	verdicts := make([]inbox.Verdict, len(ids))
	left := make([]int, 0, len(order)) // places in ids, by ID
	for _, i := range order {
		if verdicts[i] = k.verdict(ids[i]); verdicts[i] == inbox.Fresh {
			left = append(left, i)
		}
	}
	hot := t.ring.hot()
	for n, g := range hot {
		tried := left
		var err error
		if left, err = t.insert(ctx, g, ids, tried, verdicts); err != nil {
			return nil, err
		}
		if n > 0 && len(left) < len(tried) {
			if err := t.lose(ctx, hot[:n], ids, tried, left); err != nil {
				return nil, err
			}
		}
	}
	fresh := make([]semel.ID, len(left))
	for n, i := range left {
		fresh[n] = ids[i].ID
	}
	if len(fresh) > 0 {
		t.fresh = append(t.fresh, fresh)
	}
	return verdicts, nil
}

// insert puts IDs into a hot table, and answers which went in. The second statement
// has a snapshot of its own and so sees what a transaction committed that was waited
// for; an ID that is gone again by then was known all the same.
func (t *inboxTx) insert(ctx context.Context, g generation, ids []inbox.Admission, some []int, verdicts []inbox.Verdict) (fresh []int, err error) {
	if len(some) == 0 {
		return nil, nil
	}
	sorted, digests, hows := make([]pgtype.UUID, len(some)), make([]pgtype.UUID, len(some)), make([]string, len(some))
	for n, i := range some {
		sorted[n] = pgtype.UUID{Bytes: ids[i].ID, Valid: true}
		digests[n], hows[n] = uuidOf(ids[i].Digest), how(ids[i])
	}
	var in []semel.ID
	k := known{}
	var b pgx.Batch
	b.Queue(t.store.inTable(g, `
		INSERT INTO semel.INBOX (id, digest, how)
		SELECT n.id, n.digest, n.how::"char" FROM unnest($1::uuid[], $2::uuid[], $3::text[]) n(id, digest, how) ORDER BY n.id
		ON CONFLICT DO NOTHING RETURNING id`), sorted, digests, hows).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			in = append(in, id.Bytes)
			return nil
		})
		return err
	})
	b.Queue(t.store.inTable(g, probeInbox), sorted).Query(k.take)
	if err := t.tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, t.note(err)
	}
	for _, i := range some {
		if len(fresh) < len(in) && in[len(fresh)] == ids[i].ID {
			fresh = append(fresh, i)
			continue
		}
		verdicts[i] = max(k.verdict(ids[i]), inbox.Duplicate)
	}
	if len(fresh) != len(in) {
		return nil, errors.New("the inbox answered IDs out of order")
	}
	return fresh, nil
}

// lose marks IDs that went into older tables and then not into the next one: somebody
// who works by the next list was faster. What he made of them stands in his row; that
// these were applied would be a lie, by which his dead letter was a duplicate.
func (t *inboxTx) lose(ctx context.Context, older []generation, ids []inbox.Admission, tried, fresh []int) error {
	var lost []pgtype.UUID
	for _, i := range tried {
		if len(fresh) > 0 && fresh[0] == i {
			fresh = fresh[1:]
			continue
		}
		lost = append(lost, pgtype.UUID{Bytes: ids[i].ID, Valid: true})
	}
	var b pgx.Batch
	for _, g := range older {
		b.Queue(t.store.inTable(g, `UPDATE semel.INBOX SET how = 'd' WHERE id = ANY($1::uuid[]) AND how <> 'd'`), lost)
	}
	return t.note(t.tx.SendBatch(ctx, &b).Close())
}

// admitted says whether this transaction admitted the ID.
func (t *inboxTx) admitted(id semel.ID) bool {
	for _, ids := range t.fresh {
		if _, ok := slices.BinarySearchFunc(ids, id, func(a, b semel.ID) int { return bytes.Compare(a[:], b[:]) }); ok {
			return true
		}
	}
	return false
}

// IsolationError says that the inbox was asked under another level than READ
// COMMITTED: with an older snapshot a repeat would be an error, not an answer.
type IsolationError struct{ Err error }

func (e *IsolationError) Error() string { return e.Err.Error() }
func (e *IsolationError) Unwrap() error { return e.Err }

// Admit records an ID in the inbox of the consumer, inside your transaction, and
// says whether it is fresh: make the effect in the same transaction only then. A
// consumer without an inbox gets one if the role may make tables; else the error
// names the command. The transaction must be READ COMMITTED, else it is an
// [*IsolationError]. Safe for use by many goroutines.
func (s *InboxStore) Admit(ctx context.Context, tx pgx.Tx, consumer string, id semel.ID) (fresh bool, err error) {
	err = tx.QueryRow(ctx, s.schema.sql(`SELECT semel.admit($1::text, $2::uuid)`), consumer, pgtype.UUID{Bytes: id, Valid: true}).Scan(&fresh)
	return fresh, admitError(consumer, err)
}

// AdmitBatch does the same for many IDs, in one round trip, and answers the
// fresh ones in the order given. An ID that is given twice is fresh once. IDs that
// another transaction holds are waited for, in one order, so that two batches with
// the same IDs never wait in a circle.
func (s *InboxStore) AdmitBatch(ctx context.Context, tx pgx.Tx, consumer string, ids []semel.ID) (fresh []semel.ID, err error) {
	args := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		args[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	rows, err := tx.Query(ctx, s.schema.sql(`SELECT semel.admit_batch($1::text, $2::uuid[])`), consumer, args)
	if err != nil {
		return nil, admitError(consumer, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
	if err != nil {
		return nil, admitError(consumer, err)
	}
	isFresh := make(map[semel.ID]bool, len(found))
	for _, u := range found {
		isFresh[u.Bytes] = true
	}
	for _, id := range ids {
		if isFresh[id] {
			fresh = append(fresh, id)
			isFresh[id] = false
		}
	}
	return fresh, nil
}

// Remember records IDs as applied whose effects were made before Semel came, or
// without it: a repeat of their messages is a duplicate from then on, for the
// window. It says how many were new. Some 10,000 at a time is a good size.
func (s *InboxStore) Remember(ctx context.Context, tx pgx.Tx, consumer string, ids []semel.ID) (added int64, err error) {
	args := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		args[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	err = tx.QueryRow(ctx, s.schema.sql(`SELECT semel.remember($1::text, $2::uuid[])`), consumer, args).Scan(&added)
	return added, admitError(consumer, err)
}

// ForgetOlder turns the consumer's inbox so that IDs which are older than keep go,
// counted back from where it last moved, in small transactions of its own: the chore
// of a consumer that calls Admit and has no [inbox.Inbox] to do it. IDs go together
// with the table that holds them, a sixth of keep: call it that often or more. Keep
// must cover the topic's retention, or a replay of what the topic holds takes effect
// again.
func (s *InboxStore) ForgetOlder(ctx context.Context, consumer string, keep time.Duration) error {
	_, err := s.pool.Exec(ctx, s.schema.sql(`CALL semel.forget($1::text, make_interval(secs => $2::float8))`), consumer, keep.Seconds())
	if err != nil {
		err = fmt.Errorf("forget old message IDs of %s: %w", consumer, err)
	}
	return err
}

func admitError(consumer string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the inbox of %s: %w", consumer, err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "SM001" {
		return &IsolationError{Err: err}
	}
	return err
}
