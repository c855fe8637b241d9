package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/inbox"
)

// generation is an inbox table in a ring.
type generation struct {
	slot  int16
	hot   bool
	token [16]byte // of its freezing
	ids   int64    // of a frozen one, as estimated
}

// ring is the list of a consumer's inbox tables by which a transaction works, the
// oldest first. The lock of its version, held until the transaction ends, keeps those
// who turn the ring from what this transaction may still do.
type ring struct {
	version int64
	held    bool // the lock of the version that was thought to be current
	tables  []generation
}

func (r *ring) frozen() []generation {
	for i, g := range r.tables {
		if g.hot {
			return r.tables[:i]
		}
	}
	return r.tables
}

func (r *ring) hot() []generation { return r.tables[len(r.frozen()):] }

const (
	holdRing = `SELECT semel.hold_ring($1, $2)`
	// The list and its version come from one snapshot.
	listRing = `SELECT r.version, g.slot, g.state = 'hot', g.token, coalesce(g.ids, 0)
		FROM semel.ring r JOIN semel.generation g ON g.scope = r.scope AND g.number IS NOT NULL
		WHERE r.scope = $1 ORDER BY g.number`
)

// ringRounds is how often a list is read before a batch gives way to those who turn
// the ring.
const ringRounds = 10

// queueRing tries the lock of the version that was read last, and then reads the list,
// in a statement of its own: who finds the lock free has published the next list
// before, so that it is this list that is read.
func (s *InboxStore) queueRing(b *pgx.Batch, r *ring) {
	b.Queue(s.sql.holdRing, s.scope, s.version).QueryRow(func(row pgx.Row) error { return row.Scan(&r.held) })
	b.Queue(s.sql.listRing, s.scope).Query(func(rows pgx.Rows) error {
		r.tables = r.tables[:0]
		var g generation
		var token pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&r.version, &g.slot, &g.hot, &token, &g.ids}, func() error {
			g.token = token.Bytes
			r.tables = append(r.tables, g)
			return nil
		})
		return err
	})
}

// holdsRing says whether the list is the one whose lock is held.
func (s *InboxStore) holdsRing(r *ring) bool { return r == nil || r.held && r.version == s.version }

// settleRing reads the list until it is the one whose lock is held. What counts is
// the content that was read last, never that of a version seen before: a database
// that went back gives version numbers out again.
func (s *InboxStore) settleRing(ctx context.Context, tx pgx.Tx, r *ring) error {
	for range ringRounds {
		if s.holdsRing(r) {
			if len(r.hot()) == 0 {
				return &classedError{inbox.ClassRoute, "consumer " + s.consumer.Name + " has no inbox table to write to", nil}
			}
			return nil
		}
		s.version = r.version
		var b pgx.Batch
		s.queueRing(&b, r)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
	}
	return &classedError{inbox.ClassConflict, "the list of inbox tables has changed under every look", nil}
}

// hasInbox says whether the consumer keeps message IDs.
func (s *InboxStore) hasInbox() bool { return s.scope != 0 && s.consumer.Memory == inbox.MemoryInbox }

// inTable renders a statement about one of the consumer's inbox tables.
func (s *InboxStore) inTable(g generation, text string) string {
	return s.schema.sql(strings.ReplaceAll(text, "INBOX", fmt.Sprintf("inbox_%d_%d", s.scope, g.slot)))
}
