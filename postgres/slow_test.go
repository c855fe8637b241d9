package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/postgres"
)

// settleAll runs a consumer over n messages of one partition until all are settled.
func settleAll(t *testing.T, url string, n int, cfg postgres.InboxConfig, h func(context.Context, pgx.Tx, []semel.Message) error, attempts ...int) {
	t.Helper()
	policy := inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: time.Millisecond}
	for _, n := range attempts {
		policy.Attempts = n
	}
	b := inboxtest.NewBroker()
	b.CreateTopic("t", 1)
	for i := range n {
		b.Send(semel.Message{Topic: "t", Value: fmt.Append(nil, i), Headers: []semel.Header{{Name: "message-id", Value: fmt.Append(nil, i)}}})
	}
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: "billing", Source: b.NewSource("billing", inboxtest.StartGroup, "t"), Store: postgres.NewInboxStore(newPool(t, url), cfg),
		ID: semel.HeaderID("message-id"), BatchHandler: h, OnError: policy,
	})
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- in.Run(t.Context()) }()
	c := connect(t, url)
	for end := time.Now().Add(60 * time.Second); ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.02)") < n; {
		if time.Now().After(end) {
			t.Fatal("it stalls")
		}
	}
	in.Drain()
	must(t, <-done)
}

func TestOneSlowMessageIsIsolated(t *testing.T) {
	t.Parallel()
	for state, slow := range map[string]func(context.Context, pgx.Tx) error{
		"57014": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "SELECT pg_sleep(20)"); return err },
		"25P03": func(ctx context.Context, tx pgx.Tx) error { time.Sleep(400 * time.Millisecond); return nil },
	} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			c := connect(t, url)
			exec1(t, c, "CREATE TABLE entry (id text)")
			cfg := postgres.InboxConfig{StatementTimeout: 150 * time.Millisecond, IdleTimeout: 150 * time.Millisecond}
			settleAll(t, url, 20, cfg, func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
				for _, m := range ms {
					if string(m.Value) == "13" {
						if err := slow(ctx, tx); err != nil {
							return err
						}
					}
					if _, err := tx.Exec(ctx, "INSERT INTO entry VALUES ($1)", string(m.Value)); err != nil {
						return err
					}
				}
				return nil
			})
			if n := ask[int](t, c, "SELECT count(DISTINCT id)::int FROM entry WHERE id <> '13'"); n != 19 {
				t.Errorf("%d of the others", n)
			}
			if got := ask[string](t, c, `SELECT string_agg(concat_ws(' ', "offset", class, sqlstate, attempts), ',') FROM semel.dead_letter`); got != "13 handler "+state+" 10" {
				t.Errorf("dead: %s", got)
			}
		})
	}
}

func TestBatchThatIsTooSlowIsTakenInPieces(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE entry (id text)")
	settleAll(t, url, 40, postgres.InboxConfig{StatementTimeout: 400 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
		var ids []string
		for _, m := range ms {
			ids = append(ids, string(m.Value))
		}
		_, err := tx.Exec(ctx, "INSERT INTO entry SELECT u FROM unnest($1::text[]) u, pg_sleep(0.03 * cardinality($1))", ids)
		return err
	})
	if n := ask[int](t, c, "SELECT count(DISTINCT id)::int FROM entry"); n != 40 {
		t.Errorf("%d entries", n)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.dead_letter"); n != 0 {
		t.Errorf("%d buried, though none is too slow alone", n)
	}
}
