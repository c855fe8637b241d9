package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

func moveTo(next int64) func([]inbox.Row) ([]inbox.Row, []inbox.Event, error) {
	return func(rows []inbox.Row) ([]inbox.Row, []inbox.Event, error) {
		for i := range rows {
			rows[i].Next, rows[i].Accounts.Holes = next, next-rows[i].Start
		}
		return rows, nil, nil
	}
}

func TestResetFencesWhoClaimedBefore(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	// to where it stands: only the token tells
	_, err := newStore(t, url, postgres.InboxConfig{}).Reset(t.Context(), "billing", false, moveTo(row.Next))
	must(t, err)
	_, err = s.Begin(t.Context(), []inbox.Span{span(row, 1)})
	var fenced *inbox.FencedError
	if !errors.As(err, &fenced) {
		t.Errorf("a batch under the claim before the reset: %v", err)
	}
}

func TestResetForgetsIDsForWhoClaimsAgain(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	id := semel.IDOf([]byte("m-1"))
	admit := func(want inbox.Verdict) {
		t.Helper()
		tx := begin(t, s, span(row, 1))
		got, err := tx.Admit(t.Context(), []inbox.Admission{{ID: id}})
		must(t, err)
		if got[0] != want {
			t.Errorf("verdict %v, want %v", got[0], want)
		}
		must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: span(row, 1)}}))
	}
	admit(inbox.Fresh)
	row = claim(t, s, row.Partition)
	admit(inbox.Duplicate)

	_, err := newStore(t, url, postgres.InboxConfig{}).Reset(t.Context(), "billing", true, moveTo(0))
	must(t, err)
	row = claim(t, s, row.Partition)
	admit(inbox.Fresh)
	if n := ask[int](t, connect(t, url), `SELECT count(*) FROM semel.inbox WHERE consumer = 'billing'`); n != 1 {
		t.Errorf("%d IDs in the new inbox", n)
	}
	if n := ask[int](t, connect(t, url), `SELECT count(DISTINCT scope) FROM semel.generation`); n != 1 {
		t.Errorf("%d rings: the old one stayed", n)
	}
}

func TestResetEndsABatchThatHoldsARow(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	tx := begin(t, s, span(row, 1))
	_, err := newStore(t, url, postgres.InboxConfig{LockTimeout: 200 * time.Millisecond}).Reset(t.Context(), "billing", false, moveTo(0))
	must(t, err)
	if err := tx.Commit(t.Context(), []inbox.Settled{{Span: span(row, 1)}}); err == nil {
		t.Error("the batch is in")
	}
	if next := look(t, opened(t, url, "billing"), p0).Next; next != 0 {
		t.Errorf("the row stands at %d", next)
	}
}

func TestResetThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	refused := errors.New("refused")
	_, err := newStore(t, url, postgres.InboxConfig{}).Reset(t.Context(), "billing", true, func(rows []inbox.Row) ([]inbox.Row, []inbox.Event, error) {
		rows[0].Next = 100
		return rows, nil, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
	if got := look(t, s, p0); got.Token != row.Token || got.Next != row.Next {
		t.Errorf("row %+v, was %+v", got, row)
	}
}
