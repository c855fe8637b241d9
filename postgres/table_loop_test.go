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

// tableMember runs a table as the effect of a whole inbox.
func tableMember(t *testing.T, url string, b *inboxtest.Broker, cfg postgres.TableConfig, batch int) *inbox.Inbox[pgx.Tx] {
	t.Helper()
	table, err := postgres.NewTable(t.Context(), newPool(t, url), cfg)
	must(t, err)
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: "table", Source: b.NewSource("table", inboxtest.StartGroup, "t"),
		Store:  postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{LockTimeout: 200 * time.Millisecond, Table: table}),
		Effect: table, OwnIDs: table.OwnIDs(), Memory: table.Memory(), Batch: inbox.BatchLimits{Messages: batch}, Reread: 50 * time.Millisecond,
		OnError: inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, InARow: -1, Share: -1},
	})
	must(t, err)
	return in
}

func TestTheLoopWritesATableOnceWhileSessionsAreCut(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE flights (carrier text, flight int, origin text, distance int, time_hour timestamptz, PRIMARY KEY (time_hour, carrier, flight, origin))`)
	exec1(t, c, `CREATE TABLE raw (j jsonb)`)
	b := inboxtest.NewBroker()
	b.CreateTopic("t", 3)
	sent, i := 0, 0
	send := func(line []byte) {
		exec1(t, c, "INSERT INTO raw VALUES ($1::text::jsonb)", string(line))
		b.Send(semel.Message{Topic: "t", Partition: int32(i % 3), Value: line})
		if sent++; i%5 == 0 { // sent again by its producer, here or there
			b.Send(semel.Message{Topic: "t", Partition: int32(i / 5 % 3), Value: line})
			sent++
		}
		i++
	}
	lines := tableLines(t, "testdata/flights.jsonl.gz")
	for _, line := range lines[:600] {
		send(line)
	}
	rest := lines[600:]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	done := make(chan error)
	var members []*inbox.Inbox[pgx.Tx]
	for range 2 {
		in := tableMember(t, url, b, postgres.TableConfig{
			Table: "flights", Write: postgres.WriteInsert,
			ID: []string{"value.time_hour", "value.carrier", "value.flight", "value.origin"},
		}, 20)
		members = append(members, in)
		go func() { done <- in.Run(ctx) }()
	}
	cuts := 0
	for settled := 0; settled < sent || len(rest) > 0; {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d settled", settled, sent)
		}
		if cuts < 10 {
			cuts += ask[int](t, c, `SELECT count(pg_terminate_backend(pid))::int FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'semel/table/%' AND random() < 0.3`)
		}
		if len(rest) > 0 && cuts > 0 { // the others after the first cut
			send(rest[0])
			rest = rest[1:]
		}
		settled = ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.001)")
	}
	for _, in := range members {
		in.Drain()
	}
	for range members {
		must(t, <-done)
	}
	if n := ask[int](t, c, `SELECT count(*)::int FROM raw FULL JOIN flights f ON f.time_hour = (j->>'time_hour')::timestamptz AND f.carrier = j->>'carrier'
		AND f.flight = (j->>'flight')::int AND f.origin = j->>'origin' AND f.distance = (j->>'distance')::int WHERE raw.j IS NULL OR f.flight IS NULL`); n != 0 {
		t.Errorf("%d lines without their row, or rows without their line", n)
	}
	if a, d := ask[int](t, c, "SELECT sum(applied)::int FROM semel.watermark"), ask[int](t, c, "SELECT sum(duplicate)::int FROM semel.watermark"); a != len(lines) || d != sent-len(lines) {
		t.Errorf("%d applied, %d duplicates; want %d, %d", a, d, len(lines), sent-len(lines))
	}
}

func TestTheLoopBuriesDifficultLines(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE hard(n integer primary key, what text, big bigint, num numeric, txt text, at timestamptz, doc jsonb)`)
	b := inboxtest.NewBroker()
	b.CreateTopic("t", 1)
	lines := tableLines(t, "testdata/hard.jsonl.gz")
	for _, line := range lines {
		b.Send(semel.Message{Topic: "t", Value: line})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	in := tableMember(t, url, b, postgres.TableConfig{Table: "hard", Write: postgres.WriteInsert, ID: []string{"value.n"}, Zone: time.UTC}, 20)
	done := make(chan error)
	go func() { done <- in.Run(ctx) }()
	for ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.01)") < len(lines) {
		if ctx.Err() != nil {
			t.Fatal("not settled")
		}
	}
	in.Drain()
	must(t, <-done)
	if got := ask[string](t, c, `SELECT string_agg(class || ' ' || n, ', ' ORDER BY class) FROM (SELECT class, count(*) n FROM semel.dead_letter GROUP BY 1) x`); got != "decode 10, value 12" {
		t.Error(got)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM hard"); n != len(lines)-22 {
		t.Errorf("%d rows", n)
	}
}

// Where the table is the memory it judges every repeat, those inside a batch too:
// what is stored may be of a message before the batch, and equal in another form.
func TestRepeatsInsideABatchAreComparedWithTheRowWhereTheTableIsTheMemory(t *testing.T) {
	t.Parallel()
	for batch := 1; batch <= 12; batch++ {
		t.Run(fmt.Sprint("batches of ", batch), func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			c := connect(t, url)
			exec1(t, c, `CREATE TABLE orders (id int PRIMARY KEY, doc jsonb, at timestamptz);
				INSERT INTO orders VALUES (7, '{"a": 1}')`)
			b := inboxtest.NewBroker()
			b.CreateTopic("t", 1)
			values := []string{
				`{"id": 1, "doc": {"a": 1, "b": 2}}`, `{"id": 1, "doc": {"b": 2, "a": 1.0}}`, `{"id": 1, "doc": {"a": 2}}`, `{"id": 2, "doc": null}`,
				// A collision with a row from before, the same again, then an honest repeat of the row.
				`{"id": 7, "doc": {"a": 2}}`, `{"id": 7, "doc": {"a": 2}}`, `{"id": 7, "doc": {"a": 1}}`,
				// The same moment in two zones.
				`{"id": 3, "at": "2026-01-01T12:00:00Z"}`, `{"id": 3, "at": "2026-01-01T13:00:00+01:00"}`,
				"", "", // no memory knows a tombstone
			}
			for _, v := range values {
				m := semel.Message{Topic: "t", Key: []byte("k"), Value: []byte(v)}
				if v == "" {
					m.Value = nil
				}
				b.Send(m)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			in := tableMember(t, url, b, postgres.TableConfig{Table: "orders", Write: postgres.WriteInsert, ID: []string{"value.id"}}, batch)
			done := make(chan error)
			go func() { done <- in.Run(ctx) }()
			for ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.01)") < len(values) {
				if ctx.Err() != nil {
					t.Fatal("not settled")
				}
			}
			in.Drain()
			must(t, <-done)
			if got := ask[string](t, c, `SELECT concat_ws(' ', applied, duplicate, skipped, dead, (SELECT string_agg("offset" || class, ' ' ORDER BY "offset") FROM semel.dead_letter)) FROM semel.watermark`); got != "3 3 2 3 2collision 4collision 5collision" {
				t.Errorf("applied, duplicate, skipped, dead: %s", got)
			}
		})
	}
}

// ltree, jsonpath and tsquery answer syntax error, as if the statement were wrong: it
// is the message that is.
func TestAValueThatATypeCallsASyntaxErrorIsTheMessagesFault(t *testing.T) {
	t.Parallel()
	for _, write := range []postgres.WriteMode{postgres.WriteAppend, postgres.WriteInsert, postgres.WriteUpsert} {
		t.Run(string(write), func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			c := connect(t, url)
			exec1(t, c, `CREATE TABLE s (id int PRIMARY KEY, q tsquery, j jsonpath)`)
			b := inboxtest.NewBroker()
			b.CreateTopic("t", 1)
			values := []string{`{"id": 1, "q": "a & b"}`, `{"id": 2, "q": "a & &"}`, `{"id": 3, "j": "$.a"}`, `{"id": 4, "j": "$$$"}`, `{"id": 5}`}
			for _, v := range values {
				b.Send(semel.Message{Topic: "t", Value: []byte(v)})
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			in := tableMember(t, url, b, postgres.TableConfig{Table: "s", Write: write}, 20)
			done := make(chan error, 1)
			go func() { done <- in.Run(ctx) }()
			for ask[int](t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.01)") < len(values) {
				select {
				case err := <-done:
					t.Fatalf("it ends: %v", err)
				default:
				}
			}
			in.Drain()
			must(t, <-done)
			if got := ask[string](t, c, `SELECT (SELECT string_agg(id::text, ' ' ORDER BY id) FROM s) || ', ' || (SELECT string_agg("offset" || ' ' || class || ' ' || sqlstate, ', ' ORDER BY "offset") FROM semel.dead_letter)`); got != "1 3 5, 1 value 42601, 3 value 42601" {
				t.Errorf("rows, dead letters: %s", got)
			}
		})
	}
}
