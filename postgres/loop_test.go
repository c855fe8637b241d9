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

func TestStoreSuite(t *testing.T) {
	t.Parallel()
	inboxtest.TestStore(t, func(t *testing.T) inboxtest.StoreWorld[pgx.Tx] {
		url := migrated(t)
		c := connect(t, url)
		exec1(t, c, "CREATE TABLE effect (key text CHECK (key <> 'refused')); CREATE TABLE late (key text REFERENCES late DEFERRABLE INITIALLY DEFERRED, id text PRIMARY KEY)")
		return inboxtest.StoreWorld[pgx.Tx]{
			New: func() inbox.Store[pgx.Tx] {
				return postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{LockTimeout: 200 * time.Millisecond})
			},
			Effect: func(ctx context.Context, tx pgx.Tx, key string) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", key)
				return err
			},
			Refuse: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ('refused')")
				return err
			},
			RefuseLate: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO late VALUES ('nobody', gen_random_uuid())")
				return err
			},
			Effects: func() []string {
				return ask[[]string](t, c, "SELECT coalesce(array_agg(key), '{}') FROM effect")
			},
			Letters: func() int { return ask[int](t, c, "SELECT count(*)::int FROM semel.dead_letter") },
			Mark:    func() { exec1(t, c, "UPDATE semel.dead_letter SET state = 'redrive' WHERE state = 'buried'") },
			LetterStates: func() []string {
				return ask[[]string](t, c, "SELECT array_agg(concat_ws(' ', state, outcome) ORDER BY number) FROM semel.dead_letter")
			},
		}
	})
}

// TestEachMessageTakesEffectOnceWhileSessionsAreCut runs two members over
// messages some of which are sent twice and some of which the database refuses,
// while sessions are ended at any moment.
func TestEachMessageTakesEffectOnceWhileSessionsAreCut(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE account (id int PRIMARY KEY, total int NOT NULL); INSERT INTO account VALUES (0, 0), (1, 0), (2, 0)")
	exec1(t, c, "CREATE TABLE entry (id text, n int CHECK (n <> 13))")

	b := inboxtest.NewBroker()
	b.CreateTopic("t", 3)
	const sent = 600
	var last int
	for i := range sent {
		m := semel.Message{Topic: "t", Partition: int32(i % 3), Value: fmt.Append(nil, i%100), Headers: []semel.Header{{Name: "message-id", Value: fmt.Append(nil, i)}}}
		b.Send(m)
		if last++; i%7 == 0 {
			m.Partition = int32((i + 1) % 3)
			b.Send(m)
			last++
		}
	}
	handler := func(ctx context.Context, tx pgx.Tx, m semel.Message) error {
		id, _ := m.Header("message-id")
		if _, err := tx.Exec(ctx, "INSERT INTO entry VALUES ($1, $2::text::int)", string(id), string(m.Value)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE account SET total = total + 1 WHERE id = $1", m.Partition)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var members []*inbox.Inbox[pgx.Tx]
	done := make(chan error)
	for range 2 {
		in, err := inbox.New(inbox.Config[pgx.Tx]{
			Consumer: "billing", Source: b.NewSource("billing", inboxtest.StartGroup, "t"),
			Store: postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{LockTimeout: 200 * time.Millisecond}),
			ID:    semel.HeaderID("message-id"), Handler: handler, Batch: inbox.BatchLimits{Messages: 20}, Reread: 50 * time.Millisecond,
			OnError: inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond},
		})
		must(t, err)
		members = append(members, in)
		go func() { done <- in.Run(ctx) }()
	}
	cuts := 0
	for settled := 0; settled < last; {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d settled", settled, last)
		}
		if cuts < 40 {
			cuts += ask[int](t, c, `SELECT count(pg_terminate_backend(pid))::int FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'semel/billing/%' AND random() < 0.3`)
		}
		settled = ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.02)")
	}
	for _, in := range members {
		in.Drain()
	}
	for range members {
		must(t, <-done)
	}
	if cuts == 0 {
		t.Error("no session was cut")
	}
	const bad = sent / 100
	if n := ask[int](t, c, "SELECT count(*)::int FROM entry"); n != sent-bad {
		t.Errorf("%d entries, want %d", n, sent-bad)
	}
	if n := ask[int](t, c, "SELECT count(DISTINCT id)::int FROM entry"); n != sent-bad {
		t.Errorf("%d distinct entries, want %d", n, sent-bad)
	}
	if n := ask[int](t, c, "SELECT sum(total)::int FROM account"); n != sent-bad {
		t.Errorf("total %d, want %d", n, sent-bad)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.dead_letter WHERE class = 'constraint' AND sqlstate = '23514'"); n != bad {
		t.Errorf("%d dead letters, want %d", n, bad)
	}
	ws, err := postgres.NewStatus(c, "").Watermarks(t.Context(), "billing")
	must(t, err)
	for _, w := range ws {
		if d, ok := w.Accounts.Check(); !ok {
			t.Errorf("%s: the accounts differ by %+v", w.Partition, d)
		}
		if w.Owner != nil {
			t.Errorf("%s is still owned after a clean stop", w.Partition)
		}
	}
}

func TestMessageThatCostsTheSessionEachTimeIsBuried(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE entry (id text)")
	b := inboxtest.NewBroker()
	b.CreateTopic("t", 2)
	for i := range 20 {
		b.Send(semel.Message{Topic: "t", Partition: int32(i % 2), Headers: []semel.Header{{Name: "message-id", Value: fmt.Append(nil, i)}}})
	}
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: "billing", Source: b.NewSource("billing", inboxtest.StartGroup, "t"),
		Store: postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{}), ID: semel.HeaderID("message-id"),
		BatchHandler: func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
			for _, m := range ms {
				id, _ := m.Header("message-id")
				if string(id) == "7" {
					tx.Conn().PgConn().Conn().Close() // as if the server had died of it
				}
				if _, err := tx.Exec(ctx, "INSERT INTO entry VALUES ($1)", string(id)); err != nil {
					return err
				}
			}
			return nil
		},
	})
	must(t, err)
	done := make(chan error)
	go func() { done <- in.Run(t.Context()) }()
	for end := time.Now().Add(60 * time.Second); ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.02)") < 20; {
		if time.Now().After(end) {
			t.Fatal("it isn't found")
		}
	}
	in.Drain()
	must(t, <-done)
	if n := ask[int](t, c, "SELECT count(DISTINCT id)::int FROM entry WHERE id <> '7'"); n != 19 {
		t.Errorf("%d entries", n)
	}
	if got := ask[[]int64](t, c, `SELECT array_agg("offset") FROM semel.dead_letter WHERE class = 'crash'`); len(got) != 1 || got[0] != 3 {
		t.Errorf("buried: %v", got)
	}
}
