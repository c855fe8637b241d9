package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
)

// BenchmarkAdmit is a transaction with 5,000 fresh IDs.
func BenchmarkAdmit(b *testing.B) {
	url := migrated(b)
	s := opened(b, url, "billing")
	introduce(b, s, p0)
	row := claim(b, s, p0)
	as := admissions(5000, 1)
	for n := 0; b.Loop(); n++ {
		for i := range as {
			as[i].ID[14], as[i].ID[15] = byte(n>>8), byte(n)
		}
		sp := span(row, 5000)
		tx := begin(b, s, sp)
		_, err := tx.Admit(b.Context(), as)
		must(b, err)
		must(b, tx.Commit(b.Context(), []inbox.Settled{{Span: sp}}))
		row.Next = sp.To
	}
}

// BenchmarkCommit is a transaction that only moves the watermark.
func BenchmarkCommit(b *testing.B) {
	url := migrated(b)
	s := opened(b, url, "billing")
	introduce(b, s, p0)
	row := claim(b, s, p0)
	for b.Loop() {
		sp := span(row, 1)
		tx := begin(b, s, sp)
		must(b, tx.Commit(b.Context(), []inbox.Settled{{Span: sp}}))
		row.Next = sp.To
	}
}

// BenchmarkCommitAndBegin is the same with the next transaction begun by COMMIT.
func BenchmarkCommitAndBegin(b *testing.B) {
	url := migrated(b)
	s := opened(b, url, "billing")
	introduce(b, s, p0)
	row := claim(b, s, p0)
	sp := span(row, 1)
	tx := begin(b, s, sp)
	for b.Loop() {
		row.Next = sp.To
		next := span(row, 1)
		then, err := tx.(inbox.Chainer[pgx.Tx]).CommitAndBegin(b.Context(), []inbox.Settled{{Span: sp}}, []inbox.Span{next})
		must(b, err)
		if tx, sp = then, next; tx == nil { // the first time nobody knows where the row lies
			tx = begin(b, s, sp)
		}
	}
}
