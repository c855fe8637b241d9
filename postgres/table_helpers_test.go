package postgres_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// tableTx is all of an inbox transaction that a table needs.
type tableTx struct {
	inbox.Tx[pgx.Tx]
	tx pgx.Tx
}

func (t tableTx) DB() pgx.Tx { return t.tx }

// tableBench is a table, and an inbox reduced to what a table sees of it: repeats
// inside a batch taken out, what the database refuses isolated by halving.
type tableBench struct {
	t      testing.TB
	ctx    context.Context
	conn   *pgx.Conn
	table  *postgres.Table
	effect inbox.Effect[pgx.Tx] // nil: the table
	known  map[semel.ID]bool    // the inbox
	offset int64
}

func newTableBench(t testing.TB, ddl string, cfg postgres.TableConfig) *tableBench {
	t.Helper()
	conn := tableConnect(t, testenv.Postgres(t))
	b := &tableBench{t: t, ctx: context.Background(), conn: conn, known: map[semel.ID]bool{}}
	b.exec(ddl)
	var err error
	if b.table, err = postgres.NewTable(b.ctx, conn, cfg); err != nil {
		t.Fatal(err)
	}
	return b
}

func tableConnect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (b *tableBench) exec(sql string) {
	b.t.Helper()
	if _, err := b.conn.PgConn().Exec(b.ctx, sql).ReadAll(); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

func (b *tableBench) ask(sql string, args ...any) string {
	b.t.Helper()
	var s *string
	if err := b.conn.QueryRow(b.ctx, sql, args...).Scan(&s); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return "NULL"
	}
	return *s
}

// settle sends values as one batch.
func (b *tableBench) settle(values ...string) []inbox.Item {
	b.t.Helper()
	items := b.items(values...)
	if err := b.attempt(items); err != nil {
		b.t.Fatal(err)
	}
	return items
}

func (b *tableBench) items(values ...string) []inbox.Item {
	items := make([]inbox.Item, len(values))
	for i, v := range values {
		items[i].Message = semel.Message{Topic: "t", Offset: b.offset, Value: []byte(v)}
		if v == "tombstone" {
			items[i].Value = nil
			items[i].Key = []byte("k")
		}
		b.offset++
	}
	b.table.Decode(items)
	return items
}

func (b *tableBench) attempt(items []inbox.Item) error {
	err := b.once(items)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code[:2] != "22" && pg.Code[:2] != "23" {
		return err
	}
	if len(items) == 1 {
		items[0].Err, items[0].Class, items[0].Outcome = err, inbox.DeadConstraint, inbox.Dead
		if pg.Code[:2] == "22" {
			items[0].Class = inbox.DeadValue
		}
		return nil
	}
	for _, half := range [][]inbox.Item{items[:len(items)/2], items[len(items)/2:]} {
		if err := b.attempt(half); err != nil {
			return err
		}
	}
	return nil
}

func (b *tableBench) once(items []inbox.Item) (err error) {
	var fresh []*inbox.Item
	defer func() {
		if err != nil { // verdicts of an attempt are no other's
			for _, it := range fresh {
				it.Err, it.Class, it.Outcome = nil, "", inbox.Applied
			}
		}
	}()
	seen := map[semel.ID]bool{}
	for i := range items {
		it := &items[i]
		if it.Outcome == inbox.Dead && it.Err != nil {
			continue
		}
		it.Outcome = inbox.Applied
		switch {
		case it.Err != nil:
			it.Outcome = inbox.Dead
		case b.table.Memory() != inbox.MemoryTarget && !it.ID.IsZero() && (seen[it.ID] || b.known[it.ID]):
			it.Outcome = inbox.DuplicateID
		default:
			seen[it.ID] = true
			fresh = append(fresh, it)
		}
	}
	tx, err := b.conn.Begin(b.ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(b.ctx)
	if len(fresh) > 0 {
		effect := b.effect
		if effect == nil {
			effect = b.table
		}
		if err := effect.Apply(b.ctx, tableTx{tx: tx}, fresh); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(b.ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return err
	}
	if err := tx.Commit(b.ctx); err != nil {
		return err
	}
	for _, it := range fresh {
		if it.Err != nil {
			it.Outcome = inbox.Dead
		}
		if b.table.Memory() == inbox.MemoryInbox {
			b.known[it.ID] = true
		}
	}
	return nil
}

// tableOutcomes are letters: a(pplied), d(uplicate), s(tale), o(vertaken),
// x (dead), - (skipped).
func tableOutcomes(items []inbox.Item) string {
	out := make([]byte, len(items))
	for i, it := range items {
		out[i] = "adsox-"[it.Outcome]
	}
	return string(out)
}

func (b *tableBench) want(items []inbox.Item, outcomes string) {
	b.t.Helper()
	if got := tableOutcomes(items); got != outcomes {
		b.t.Errorf("outcomes %s, want %s", got, outcomes)
		for i, it := range items {
			if it.Err != nil {
				b.t.Logf("item %d: %s: %v", i, it.Class, it.Err)
			}
		}
	}
}

// tableLines reads a compressed file of lines.
func tableLines(t testing.TB, file string) [][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]byte
	for s := bufio.NewReader(z); ; {
		line, err := s.ReadBytes('\n')
		if err != nil {
			return lines
		}
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
	}
}
