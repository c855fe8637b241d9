package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// sifted is a table in a whole inbox that takes all messages as one batch.
func sifted(t *testing.T, url, consumer string, ms []semel.Message, table *postgres.Table, effect inbox.Effect[pgx.Tx]) {
	t.Helper()
	b := inboxtest.NewBroker()
	b.CreateTopic("t", 1)
	b.Send(ms...)
	settled, drain := 0, func() {}
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: consumer, Source: b.NewSource(consumer, inboxtest.StartGroup, "t"),
		Store:  postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{Table: table}),
		Effect: effect, OwnIDs: table.OwnIDs(), Memory: table.Memory(), Batch: inbox.BatchLimits{Messages: len(ms)},
		OnError: inbox.ErrorPolicy{InARow: -1, Share: -1},
		Observe: inbox.Observer{Settled: func(_ semel.Partition, a inbox.Accounts) {
			if settled += int(a.Settled.Count); settled == len(ms) {
				drain()
			}
		}},
	})
	must(t, err)
	drain = in.Drain
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	must(t, in.Run(ctx))
	if settled != len(ms) {
		t.Fatalf("%d of %d settled", settled, len(ms))
	}
}

// watched looks at the server after each Apply.
type watched struct {
	*postgres.Table
	look func()
}

func (w watched) Apply(ctx context.Context, tx inbox.Tx[pgx.Tx], items []*inbox.Item) error {
	err := w.Table.Apply(ctx, tx, items)
	w.look()
	return err
}

// A session that has more than 64 subtransactions makes every other one look into a
// file for each row that it has written.
func TestManyBadRowsOverflowNoSession(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"autovacuum": "off"}) // others' transactions would be seen too
	migrate(t, server.URL(), "")
	c, other := connect(t, server.URL()), connect(t, server.URL())
	for write, ddl := range map[string]string{
		"append": "CREATE TABLE t_append (id int, v int CHECK (v > 0))",
		"insert": "CREATE TABLE t_insert (id int PRIMARY KEY, v int CHECK (v > 0))",
		"upsert": "CREATE TABLE t_upsert (id int PRIMARY KEY, v int CHECK (v > 0), UNIQUE (id, v))",
	} {
		t.Run(write, func(t *testing.T) {
			exec1(t, c, ddl)
			table, err := postgres.NewTable(t.Context(), c, postgres.TableConfig{Table: "t_" + write, Write: postgres.WriteMode(write), ID: []string{"value.id"}})
			if write != "insert" {
				table, err = postgres.NewTable(t.Context(), c, postgres.TableConfig{Table: "t_" + write, Write: postgres.WriteMode(write)})
			}
			must(t, err)
			const n = 450
			ms := make([]semel.Message, n)
			for i := range ms {
				ms[i] = semel.Message{Topic: "t", Value: fmt.Appendf(nil, `{"id":%d,"v":%d}`, i, min(i%3, 1))}
			}
			looks, most := 0, 0
			sifted(t, server.URL(), write, ms, table, watched{table, func() {
				count, overflowed := subtransactions(t, other)
				looks++
				if most = max(most, count); overflowed {
					t.Errorf("overflowed after %d looks", looks)
				}
			}})
			t.Logf("%d subtransactions at most in %d looks", most, looks)
			if most < 20 || most > 64 {
				t.Errorf("%d subtransactions at most", most)
			}
			if rows, dead := ask[int](t, c, "SELECT count(*)::int FROM t_"+write), ask[int](t, c, "SELECT count(*)::int FROM semel.dead_letter WHERE consumer = $1", write); rows != n*2/3 || dead != n/3 {
				t.Errorf("%d rows, %d dead", rows, dead)
			}
		})
	}
}

// subtransactions are those of all running transactions, as a snapshot that is written
// down has them.
func subtransactions(t *testing.T, c *pgx.Conn) (count int, overflowed bool) {
	t.Helper()
	exec1(t, c, "SELECT pg_current_xact_id()") // what is younger than the last one that ended isn't listed
	exec1(t, c, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	name := ask[string](t, c, "SELECT pg_export_snapshot()")
	snapshot := ask[string](t, c, "SELECT pg_read_file('pg_snapshots/' || $1)", name)
	exec1(t, c, "ROLLBACK")
	said := false
	for line := range strings.Lines(snapshot) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch field {
		case "sof":
			said, overflowed = true, value == "1"
		case "sxcnt":
			count, _ = strconv.Atoi(value)
		}
	}
	if !said {
		t.Fatalf("a snapshot that says nothing of overflow: %s", snapshot)
	}
	return count, overflowed
}

// What is found in one transaction is what is found one by one, whoever judges the rows.
func TestSiftingBuriesWhatOneByOneWouldBury(t *testing.T) {
	t.Parallel()
	first := firstSeed()
	url := migrated(t)
	number, dead := 0, 0
	for mode, cfg := range borderModes {
		for judge, ddl := range borderTables {
			if cfg.Write == postgres.WriteAppend && judge == "itself" || cfg.Deleted != "" && judge == "not null" {
				continue // refused
			}
			if number++; uint64(number)%4 != first%4 && os.Getenv("SEMEL_BORDER_SEED") == "" {
				continue // a part of them, others in another run
			}
			one, many := fmt.Sprintf("one%d", number), fmt.Sprintf("many%d", number)
			t.Run(mode+"/"+judge, func(t *testing.T) {
				b := tableBench{t: t, ctx: context.Background(), conn: tableConnect(t, url), known: map[semel.ID]bool{}}
				cfg := cfg
				cfg.Columns = map[string]string{"k": "value.k", "u": "value.u", "v": "value.v", "w": "value.w", "bal": "value.bal", "ver": "headers.ver"}
				if cfg.Write == postgres.WriteAppend {
					ddl = strings.ReplaceAll(ddl, "k int PRIMARY KEY", "k int")
				}
				var tables [2]*postgres.Table
				for i, name := range []string{one, many} {
					b.exec(strings.ReplaceAll(ddl, "{}", name))
					cfg.Table = name
					var err error
					tables[i], err = postgres.NewTable(b.ctx, b.conn, cfg)
					must(t, err)
				}
				ms := borderHistory(rand.New(rand.NewPCG(first, 11)), 30)
				b.table = tables[0]
				want := b.settleMessages(ms, func(int) int { return 1 })
				sifted(t, url, many, ms, tables[1], tables[1])
				letters := b.ask(`SELECT coalesce(string_agg("offset" || ' ' || class || ', ', '' ORDER BY "offset"), '') FROM semel.dead_letter WHERE consumer = $1`, many)
				if rows, wantRows := b.rows(many), b.rows(one); rows != wantRows || letters != want.letters {
					t.Errorf("seed %d\none by one %s\n%s\nsifted %s\n%s", first, want.letters, wantRows, letters, rows)
				}
				dead += len(want.letters)
			})
		}
	}
	if dead == 0 {
		t.Error("nothing was refused")
	}
}
