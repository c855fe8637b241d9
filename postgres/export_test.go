package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Refusals counts the batches that the server refused for keys that weren't suspected.
func (t *Table) Refusals() int { return t.guess.refused }

// NameSessions is what SQL must agree with.
var NameSessions = nameSessions

// Built waits until nothing is being built.
func (r *Rings) Built() { r.wait.Wait() }

// Build reads the list of a store's consumer, and has what is missing built.
func (r *Rings) Build(ctx context.Context, s *InboxStore, c *pgx.Conn) error {
	var list ring
	var b pgx.Batch
	s.queueRing(&b, &list)
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	r.of(s.scope, list.frozen())
	return nil
}
