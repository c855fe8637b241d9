package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// BenchmarkTable compares Apply, with rows decoded before, with binary COPY of the
// same bytes from memory into the same table with its primary key; batches of
// 5,000, in turn. The ratio is that of the rates, ours to COPY's.
func BenchmarkTable(b *testing.B) {
	for name, cfg := range map[string]postgres.TableConfig{
		"watermark": {Table: "ours", Write: postgres.WriteAppend},
		"target":    {Table: "ours", Write: postgres.WriteInsert, ID: []string{"value.id"}},
		"upsert":    {Table: "ours", Write: postgres.WriteUpsert},
	} {
		b.Run(name, func(b *testing.B) { benchTable(b, cfg) })
	}
}

func benchTable(b *testing.B, cfg postgres.TableConfig) {
	const batch = 5000
	ctx := context.Background()
	conn := tableConnect(b, testenv.Postgres(b))
	exec := func(sql string) {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			b.Fatal(err)
		}
	}
	const columns = "(id uuid PRIMARY KEY, account text, amount bigint, at timestamptz, doc jsonb)"
	exec("CREATE TABLE ours " + columns + "; CREATE TABLE raw " + columns + "; CREATE TABLE model " + columns + "; CREATE TABLE mark (next bigint); INSERT INTO mark VALUES (0)")
	table, err := postgres.NewTable(ctx, conn, cfg)
	if err != nil {
		b.Fatal(err)
	}
	model, err := postgres.NewTable(ctx, conn, postgres.TableConfig{Table: "model", Write: postgres.WriteAppend})
	if err != nil {
		b.Fatal(err)
	}
	again, fill := make([]inbox.Item, batch), make([]*inbox.Item, batch)
	pad := bytes.Repeat([]byte("x"), 250)
	items := make([]inbox.Item, batch)
	fresh := make([]*inbox.Item, batch)
	var decode, ours, raw time.Duration
	n := 0
	var stream bytes.Buffer
	transaction := func(f func(tx pgx.Tx) error) {
		tx, err := conn.Begin(ctx)
		if err == nil {
			err = f(tx)
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for i := range items {
			n++
			id := semel.IDOf(fmt.Appendf(nil, "%d", n))
			items[i] = inbox.Item{Load: items[i].Load, Message: semel.Message{Offset: int64(n), Value: fmt.Appendf(nil,
				`{"id":"%s","account":"account-%d","amount":%d,"at":"2026-03-29T02:30:00.123Z","doc":{"n":%d,"pad":"%s"}}`, id, n%1000, n, n, pad)}}
			fresh[i] = &items[i]
		}
		begin := time.Now()
		table.Decode(items)
		decode += time.Since(begin)
		if items[0].Err != nil {
			b.Fatal(items[0].Err)
		}
		apply := func() {
			begin := time.Now()
			transaction(func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "UPDATE mark SET next = $1", n); err != nil {
					return err
				}
				return table.Apply(ctx, tableTx{tx: tx}, fresh)
			})
			ours += time.Since(begin)
		}
		copied := func() {
			begin := time.Now()
			transaction(func(tx pgx.Tx) error {
				_, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(stream.Bytes()), "COPY raw FROM STDIN (FORMAT binary)")
				return err
			})
			raw += time.Since(begin)
		}
		// The batch, byte for byte as COPY gives it.
		stream.Reset()
		for i := range items {
			again[i] = inbox.Item{Message: items[i].Message}
			fill[i] = &again[i]
		}
		model.Decode(again)
		transaction(func(tx pgx.Tx) error {
			if err := model.Apply(ctx, tableTx{tx: tx}, fill); err != nil {
				return err
			}
			_, err := tx.Conn().PgConn().CopyTo(ctx, &stream, "COPY model TO STDOUT (FORMAT binary)")
			return err
		})
		exec("TRUNCATE model")
		exec("CHECKPOINT")
		if n/batch%2 == 0 {
			apply()
			copied()
		} else {
			copied()
			apply()
		}
		if n%100_000 == 0 {
			exec("TRUNCATE ours, raw")
		}
	}
	b.ReportMetric(float64(raw)/float64(ours), "ratio")
	b.ReportMetric(float64(raw.Nanoseconds())/float64(n), "copy-ns/row")
	b.ReportMetric(float64(ours.Nanoseconds())/float64(n), "apply-ns/row")
	b.ReportMetric(float64(decode.Nanoseconds())/float64(n), "decode-ns/row")
}
