package sqldb_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sqldb"
)

func TestWatermarkHoldsWhileTheClaimDoes(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	w := sqldb.NewWatermark(sqldb.WatermarkConfig{Schema: schema, Consumer: "loop"})
	p0, p1 := semel.Partition{Topic: "orders"}, semel.Partition{Topic: "orders", Number: 1}
	claim := func(p semel.Partition, want int64) inbox.Claim {
		t.Helper()
		c, next, err := w.Claim(t.Context(), db, p, semel.TopicID{1}, 5)
		must(t, err)
		if next != want {
			t.Errorf("the claim says %d, want %d", next, want)
		}
		return c
	}
	advance := func(level sql.IsolationLevel, spans ...inbox.Span) error {
		tx := begin(t, db, level)
		defer tx.Rollback()
		if err := w.Advance(t.Context(), tx, spans...); err != nil {
			if tx.Commit() == nil {
				t.Error("a fenced transaction was committed")
			}
			return err
		}
		return tx.Commit()
	}
	a, b := claim(p0, 5), claim(p1, 5)
	must(t, advance(sql.LevelDefault, inbox.Span{Claim: b, From: 5, To: 9}, inbox.Span{Claim: a, From: 5, To: 8}))
	must(t, advance(sql.LevelSerializable, inbox.Span{Claim: a, From: 8, To: 10}))
	for _, wrong := range []inbox.Span{{Claim: a, From: 8, To: 12}, {Claim: a, From: 12, To: 13}, {Claim: b, From: 5, To: 9}} {
		if err := advance(sql.LevelDefault, wrong); !errors.Is(err, semel.ErrFenced) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	claim(p0, 10)
	if err := advance(sql.LevelDefault, inbox.Span{Claim: b, From: 9, To: 10}, inbox.Span{Claim: a, From: 10, To: 11}); !errors.Is(err, semel.ErrFenced) {
		t.Errorf("under the old claim: %v", err)
	}
	claim(p1, 9) // went back with the other
	if _, _, err := w.Claim(t.Context(), db, p0, semel.TopicID{2}, 0); err == nil || !strings.Contains(err.Error(), "SM005") {
		t.Errorf("another topic of that name: %v", err)
	}
}

func TestWatermarkWaitsTwoSecondsForARow(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	w := sqldb.NewWatermark(sqldb.WatermarkConfig{Schema: schema, Consumer: "loop"})
	c, _, err := w.Claim(t.Context(), db, semel.Partition{Topic: "orders"}, semel.TopicID{}, 0)
	must(t, err)
	first, second := begin(t, db, sql.LevelDefault), begin(t, db, sql.LevelDefault)
	must(t, w.Advance(t.Context(), first, inbox.Span{Claim: c, To: 1}))
	if err := w.Advance(t.Context(), second, inbox.Span{Claim: c, To: 1}); !errors.Is(err, semel.ErrFenced) {
		t.Errorf("got %v", err)
	}
	must(t, first.Commit())
}
