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
	"github.com/semelhq/semel/postgres"
)

// lanesPartitions is how many partitions a stream has; there may be as many lanes.
const lanesPartitions = 8

// lanesDDL is a table that judges each row by itself. {} is its name.
const lanesDDL = `CREATE TABLE {} (k int PRIMARY KEY, u int, v int CHECK (v > 0), w text NOT NULL DEFAULT 'w', bal numeric(12,0) NOT NULL DEFAULT 0,
	ver int, gone timestamptz, own text DEFAULT 'own')`

// lanesCase is a stream for which the order among partitions makes no difference,
// and what writes it.
type lanesCase struct {
	cfg postgres.TableConfig
	sql string
	ddl string // instead of lanesDDL
	// pinned: a key is in one partition. Else it is anywhere, and the mode makes the
	// order good.
	pinned bool
	// versioned: the stored version decides.
	versioned bool
}

var lanesCases = map[string]lanesCase{
	"append":                {cfg: postgres.TableConfig{Write: postgres.WriteAppend}, ddl: strings.Replace(lanesDDL, "int PRIMARY KEY", "int", 1)},
	"insert":                {cfg: postgres.TableConfig{Write: postgres.WriteInsert}, pinned: true},
	"insert, dead":          {cfg: postgres.TableConfig{Write: postgres.WriteInsert, OnExists: postgres.ExistsDeadLetter}, pinned: true},
	"insert, remembered":    {cfg: postgres.TableConfig{Write: postgres.WriteInsert, ID: []string{"value.k"}}, pinned: true},
	"upsert":                {cfg: postgres.TableConfig{Write: postgres.WriteUpsert}, pinned: true},
	"upsert, patch":         {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep}, pinned: true},
	"upsert, combine patch": {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep, Combine: []string{"bal"}}, pinned: true},
	"upsert, combine":       {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Combine: []string{"bal"}, Columns: map[string]string{"k": "value.k", "bal": "value.bal"}}},
	"upsert, version":       {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Version: "headers.ver"}, versioned: true},
	"mirror":                {cfg: postgres.TableConfig{Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete}, pinned: true},
	"mirror, version":       {cfg: postgres.TableConfig{Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone"}, versioned: true},
	"sql": {
		sql: `INSERT INTO {}log (k, v) SELECT k, v FROM batch WHERE k <> 3;
			WITH known AS (SELECT n, k, bal FROM batch WHERE k <> 3),
			sums AS (INSERT INTO {} (k, bal) SELECT k, sum(bal) FROM known GROUP BY k ORDER BY k ON CONFLICT (k) DO UPDATE SET bal = {}.bal + excluded.bal RETURNING k)
			SELECT n FROM known JOIN sums USING (k)`,
		ddl: lanesDDL + `; CREATE TABLE {}log (k int, v int CHECK (v > 0))`,
	},
}

// lanesStream is a random stream: repeats by producers, tombstones, messages that
// the table refuses, and such that can't be read.
func lanesStream(rng *rand.Rand, c lanesCase, n int) (ms []semel.Message) {
	keys := 4 + rng.IntN(30)
	vers := map[int]int{} // a version of a key is given out once
	next := make([]int64, lanesPartitions)
	send := func(m semel.Message) {
		m.Topic, m.Offset = "t", next[m.Partition]
		next[m.Partition]++
		ms = append(ms, m)
	}
	for i := range n {
		if i > 0 && rng.IntN(6) == 0 {
			m := ms[rng.IntN(len(ms))]
			if !c.pinned {
				m.Partition = int32(rng.IntN(lanesPartitions))
			}
			send(m)
			continue
		}
		k := rng.IntN(keys)
		vers[k] += 1 + rng.IntN(2)
		m := semel.Message{Partition: int32(k % lanesPartitions), Key: []byte(strconv.Itoa(k)), Headers: []semel.Header{
			{Name: "message-id", Value: []byte(strconv.Itoa(i))}, {Name: "ver", Value: []byte(strconv.Itoa(vers[k] * 7 % 1009))},
		}}
		if !c.pinned {
			m.Partition = int32(rng.IntN(lanesPartitions))
		}
		field := func(name string, values ...string) string {
			if rng.IntN(6) == 0 {
				return ""
			}
			return fmt.Sprintf(`,%q:%s`, name, values[rng.IntN(len(values))])
		}
		w := field("w", `"a"`, `"b"`, "null")
		if c.versioned && w == "" {
			w = `,"w":"a"` // of an existing row what is absent stays, which no version guards
		}
		bal := rng.IntN(200) - 100
		switch rng.IntN(12) {
		case 0, 1: // a tombstone
		case 2:
			m.Value = fmt.Appendf(nil, `{"k":%d,"bal":1.5}`, k) // no such number in the column
		case 3:
			m.Value = fmt.Appendf(nil, `{"k":%d,"bal":%d,"v":-1,"w":"a"}`, k, bal) // refused by a CHECK, where v is mapped
		default:
			m.Value = []byte(fmt.Sprintf(`{"k":%d,"bal":%d`, k, bal) + field("u", "1", "2", "null") + field("v", "1", "2", "3") + w + "}")
		}
		send(m)
	}
	return ms
}

// lanesEnd is what a stream leaves.
type lanesEnd struct{ rows, outcomes, letters string }

// lanesWorld is one case on a real database.
type lanesWorld struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
	lanesCase
	ms []semel.Message
	n  int
}

// effect makes the table and what writes it.
func (w *lanesWorld) effect(name string) func() inbox.Config[pgx.Tx] {
	ddl := w.ddl
	if ddl == "" {
		ddl = lanesDDL
	}
	_, err := w.conn.PgConn().Exec(w.t.Context(), strings.ReplaceAll(ddl, "{}", name)).ReadAll()
	must(w.t, err)
	cfg := w.cfg
	cfg.Table, cfg.Identified = name, len(cfg.ID) == 0
	if cfg.Columns == nil {
		cfg.Columns = map[string]string{"k": "value.k", "u": "value.u", "v": "value.v", "w": "value.w", "bal": "value.bal", "ver": "headers.ver"}
		if cfg.Write == postgres.WriteUpsert || cfg.Write == postgres.WriteMirror {
			cfg.Columns["k"] = "key"
		}
	}
	return func() inbox.Config[pgx.Tx] {
		pool := newPool(w.t, w.url)
		if w.sql != "" {
			cfg.Columns = map[string]string{"k": "value.k", "v": "value.v", "bal": "value.bal"}
			q, err := postgres.NewQuery(w.t.Context(), pool, postgres.QueryConfig{
				TableConfig: cfg, SQL: strings.ReplaceAll(w.sql, "{}", name), Each: true,
				Relation: []postgres.QueryColumn{{"k", "int"}, {"v", "int"}, {"bal", "numeric(12,0)"}},
			})
			must(w.t, err)
			return inbox.Config[pgx.Tx]{Effect: q, Memory: q.Memory(), Store: postgres.NewInboxStore(pool, postgres.InboxConfig{Table: q.Table})}
		}
		table, err := postgres.NewTable(w.t.Context(), pool, cfg)
		must(w.t, err)
		return inbox.Config[pgx.Tx]{Effect: table, Memory: table.Memory(), OwnIDs: table.OwnIDs(), Store: postgres.NewInboxStore(pool, postgres.InboxConfig{Table: table})}
	}
}

// run settles the stream with so many lanes and batches of up to so many messages.
func (w *lanesWorld) run(lanes, batch int) (e lanesEnd) {
	w.t.Helper()
	w.n++
	name := fmt.Sprintf("lanes%d", w.n)
	b := inboxtest.NewBroker()
	b.CreateTopic("t", lanesPartitions)
	b.Send(w.ms...)
	effect := w.effect(name)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	done := make(chan error, lanes)
	var members []*inbox.Inbox[pgx.Tx]
	for range lanes {
		cfg := effect()
		cfg.Consumer, cfg.Source = name, b.NewSource(name, inboxtest.StartGroup, "t")
		if !cfg.OwnIDs {
			cfg.ID = semel.HeaderID("message-id")
		}
		cfg.Batch = inbox.BatchLimits{Messages: batch}
		cfg.OnError = inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, InARow: -1, Share: -1}
		in, err := inbox.New(cfg)
		must(w.t, err)
		members = append(members, in)
		go func() { done <- in.Run(ctx) }()
	}
	for ask[int](w.t, w.conn, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.005) WHERE consumer = $1", name) < len(w.ms) {
		select {
		case err := <-done:
			w.t.Fatalf("a lane ended: %v", err)
		default:
		}
	}
	for _, in := range members {
		in.Drain()
	}
	for range members {
		must(w.t, <-done)
	}
	// A marked row holds what its key had last, and its mark, version and key count.
	rows := `SELECT coalesce(jsonb_agg(CASE WHEN gone IS NULL THEN to_jsonb(t) ELSE jsonb_build_object('k', k, 'ver', ver, 'gone', true) END ORDER BY k, to_jsonb(t))::text, '') FROM ` + name + " t"
	e.rows = ask[string](w.t, w.conn, rows)
	if w.sql != "" {
		e.rows += ask[string](w.t, w.conn, "SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY k, v)::text, '') FROM "+name+"log t")
	}
	// Overtaken inside a batch: applied, or stale, in batches of one.
	const wrote = "sum(applied + superseded + stale)"
	outcomes := "concat_ws(' ', sum(settled), " + wrote + ", sum(duplicate), sum(skipped), sum(dead))"
	e.outcomes = ask[string](w.t, w.conn, "SELECT "+outcomes+" FROM semel.watermark WHERE consumer = $1", name)
	// Of two messages with one ID in two partitions either may be the first.
	letter := `message_id || ' ' || class`
	e.letters = ask[string](w.t, w.conn, "SELECT coalesce(string_agg("+letter+", ', ' ORDER BY "+letter+"), '') FROM semel.dead_letter WHERE consumer = $1", name)
	return e
}

// Of a stream for which the order among partitions makes no difference any number
// of lanes, with whatever borders between batches, makes the same rows, outcomes and
// dead letters as one lane that takes messages one by one. SEMEL_BORDER_SEED is the
// seed, SEMEL_BORDER_SEEDS how many.
func TestAnyNumberOfLanesLeavesTheSameRows(t *testing.T) {
	t.Parallel()
	seeds := uint64(1)
	if n, err := strconv.ParseUint(os.Getenv("SEMEL_BORDER_SEEDS"), 10, 32); err == nil {
		seeds = n
	}
	first := firstSeed()
	for mode, c := range lanesCases {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			w := &lanesWorld{t: t, url: url, conn: connect(t, url), lanesCase: c}
			for seed := first; seed < first+seeds; seed++ {
				rng := rand.New(rand.NewPCG(seed, 11))
				w.ms = lanesStream(rng, c, 40+rng.IntN(60))
				want := w.run(1, 1)
				if !strings.Contains(want.letters, "value") {
					t.Logf("seed %d: a stream without a dead letter", seed)
				}
				for _, lanes := range [][]int{{1, 8}, {2, 4}, {2, 8}, {1, 4}}[rng.IntN(4)] {
					batch := 2 + rng.IntN(len(w.ms)/(2*lanes)+1)
					if got := w.run(lanes, batch); got != want {
						var lines strings.Builder
						for _, m := range w.ms {
							fmt.Fprintf(&lines, "%d/%d %s %s %s\n", m.Partition, m.Offset, m.Key, m.Headers, m.Value)
						}
						t.Fatalf("seed %d, %d lanes, batches up to %d\n got %+v\nwant %+v\n%s", seed, lanes, batch, got, want, lines.String())
					}
				}
			}
		})
	}
}
