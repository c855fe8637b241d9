package postgres_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// A redrive holds the row of its partition from the lock of its letter on, so that a claim finds it, ends it if it doesn't
// give way, and goes on.
func TestClaimEndsARedriveThatHoldsTheRow(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	zombie, row := lane(t, url)
	tx := begin(t, zombie, span(row, 1))
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadHandler, Error: "why", Attempts: 1}}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: span(row, 1)}}))
	exec1(t, c, "UPDATE semel.dead_letter SET state = 'redrive'")
	redrive, err := zombie.Redrive(t.Context(), []semel.Partition{p0}, 0)
	must(t, err)
	if redrive == nil {
		t.Fatal("no letter")
	}
	t.Cleanup(func() { redrive.Rollback(t.Context()) })

	heir := opened(t, url, "billing")
	claim(t, heir, p0)
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.event WHERE kind = 'zombie-ended'"); n != 1 {
		t.Errorf("%d sessions were ended", n)
	}
	if err := redrive.Close(t.Context(), inbox.Applied); err == nil {
		t.Error("its letter is closed")
	}
	again, err := heir.Redrive(t.Context(), []semel.Partition{p0}, 0)
	must(t, err)
	if again == nil {
		t.Fatal("the letter is still locked")
	}
	must(t, again.Close(t.Context(), inbox.Applied))
}
