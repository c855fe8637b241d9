package postgres_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// raw loads lines by the server's own means.
func (b *tableBench) raw(lines [][]byte) (values []string) {
	b.t.Helper()
	b.exec("CREATE TABLE raw (j jsonb)")
	batch := &pgx.Batch{}
	for _, l := range lines {
		values = append(values, string(l))
		batch.Queue("INSERT INTO raw VALUES ($1::text::jsonb)", string(l))
	}
	if err := b.conn.SendBatch(b.ctx, batch).Close(); err != nil {
		b.t.Fatal(err)
	}
	return values
}

func TestFlightsAreRowsAsTheyWereSent(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE flights (year smallint, month smallint, day smallint, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
		sched_arr_time int, arr_delay int, carrier text, flight int, tailnum text, origin text, dest varchar(3), air_time int, distance numeric,
		hour int, minute int, time_hour timestamptz, PRIMARY KEY (time_hour, carrier, flight, origin))`,
		postgres.TableConfig{Table: "flights", Write: postgres.WriteInsert, ID: []string{"value.time_hour", "value.carrier", "value.flight", "value.origin"}})
	if b.table.Memory() != inbox.MemoryTarget {
		t.Error(b.table.Memory())
	}
	values := b.raw(tableLines(t, "testdata/flights.jsonl.gz"))
	half := len(values) / 2
	b.want(b.settle(values[:half]...), strings.Repeat("a", half))
	var twice []string
	for _, v := range values[half:] {
		twice = append(twice, v, v)
	}
	b.want(b.settle(twice...), strings.Repeat("ad", len(values)-half))
	b.want(b.settle(values[:half]...), strings.Repeat("d", half))
	if got := b.ask(`SELECT (SELECT count(*) FROM raw) - count(*) || ' ' || count(*) - (SELECT count(*) FROM flights) FROM raw JOIN flights f
		ON to_jsonb(f) - 'time_hour' = j - 'time_hour' AND f.time_hour = (j->>'time_hour')::timestamptz`); got != "0 0" {
		t.Errorf("lines without their row, rows without their line: %s", got)
	}
}

func TestWebhooksAreKeptWhole(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE hooks (n bigint PRIMARY KEY, event text, action text, sender bigint, payload jsonb)`,
		postgres.TableConfig{Table: "hooks", Write: postgres.WriteInsert, Columns: map[string]string{
			"n": "offset", "event": "value.event",
			"action": "value.payload.action", "sender": "value.payload.sender.id", "payload": "value.payload",
		}})
	values := b.raw(tableLines(t, "testdata/webhooks.jsonl.gz"))
	b.want(b.settle(values...), strings.Repeat("a", len(values)))
	if got := b.ask(`SELECT (SELECT count(*) FROM raw) - count(*) || ' ' || (SELECT count(*) FROM hooks) - count(*) FROM
		(SELECT j->>'event', j->'payload', j->'payload'->>'action', (j->'payload'->'sender'->>'id')::bigint FROM raw
		 INTERSECT ALL SELECT event, payload, action, sender FROM hooks) same`); got != "0 0" {
		t.Errorf("lines without their row, rows without their line: %s", got)
	}
}

// Two writers of the same keys in opposite orders wait for one another, never in
// a circle.
func TestWritersOfTheSameKeysDontDeadlock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{100, 1000} {
		url := testenv.Postgres(t)
		first := tableConnect(t, url)
		if _, err := first.Exec(t.Context(), "CREATE TABLE s (id int PRIMARY KEY, v int)"); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for writer := range 2 {
			b := &tableBench{t: t, ctx: t.Context(), conn: tableConnect(t, url)}
			var err error
			if b.table, err = postgres.NewTable(b.ctx, b.conn, postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert}); err != nil {
				t.Fatal(err)
			}
			values := tableValuesOf(n, func(i int) string {
				if writer == 1 {
					i = n - 1 - i
				}
				return `{"id":` + strconv.Itoa(i) + `,"v":1}`
			})
			wg.Go(func() {
				for range 20 {
					if err := b.once(b.items(values...)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		var deadlocks int
		if err := first.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks); err != nil || deadlocks != 0 {
			t.Errorf("%d deadlocks, %v", deadlocks, err)
		}
	}
}
