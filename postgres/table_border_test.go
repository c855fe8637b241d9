package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// borderTables are tables that judge rows in different ways, so that different
// states may be left out. {} is the table's name.
var borderTables = map[string]string{
	"nobody judges": `CREATE TABLE {} (k int PRIMARY KEY, u int, v int, w text NOT NULL DEFAULT 'w', bal int, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"not null":      `CREATE TABLE {} (k int PRIMARY KEY, u int, v int NOT NULL, w text, bal numeric(6,1) NOT NULL DEFAULT 1, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"check":         `CREATE TABLE {} (k int PRIMARY KEY, u int, v int CHECK (v > 0), w text, bal int CHECK (bal >= 0), ver int, gone timestamptz, own text DEFAULT 'own', CHECK (v <> u))`,
	"domain and enum": `CREATE DOMAIN pos{} AS int CHECK (VALUE > 0); CREATE TYPE e{} AS ENUM ('a', 'b');
		CREATE TABLE {} (k int PRIMARY KEY, u int, v pos{}, w e{}, bal bigint, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"unique":                    `CREATE TABLE {} (k int PRIMARY KEY, u int UNIQUE, v int, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"unique, deferred":          `CREATE TABLE {} (k int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, v int, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"exclusion, deferred check": `CREATE TABLE {} (k int PRIMARY KEY, u int, v int, w text, bal int CHECK (bal < 9), ver int, gone timestamptz, own text DEFAULT 'own', EXCLUDE (u WITH =) WHERE (v > 2))`,
	"foreign key": `CREATE TABLE p{} (id int PRIMARY KEY); INSERT INTO p{} VALUES (1), (2), (3);
		CREATE TABLE {} (k int PRIMARY KEY, u int REFERENCES p{} DEFERRABLE INITIALLY DEFERRED, v int REFERENCES p{}, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"itself": `CREATE TABLE {} (k int PRIMARY KEY, u int REFERENCES {} ON DELETE SET NULL, v int, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own')`,
	"trigger": `CREATE TABLE {} (k int PRIMARY KEY, u int, v int, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own');
		CREATE FUNCTION f{}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF new.v = 1 AND EXISTS (SELECT FROM {} WHERE v = 2) THEN RAISE check_violation; END IF; RETURN new; END $$;
		CREATE TRIGGER t BEFORE INSERT OR UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION f{}()`,
	"generated": `CREATE TABLE {} (k int PRIMARY KEY, u int, v int, w text, bal int, ver int, gone timestamptz, own text DEFAULT 'own', g int GENERATED ALWAYS AS (10 / v) STORED)`,
}

// borderModes are all ways to write.
var borderModes = map[string]postgres.TableConfig{
	"append":                {Write: postgres.WriteAppend},
	"insert":                {Write: postgres.WriteInsert},
	"insert, dead":          {Write: postgres.WriteInsert, OnExists: postgres.ExistsDeadLetter},
	"insert, remembered":    {Write: postgres.WriteInsert, ID: []string{"value.k"}},
	"upsert":                {Write: postgres.WriteUpsert},
	"upsert, version":       {Write: postgres.WriteUpsert, Version: "headers.ver"},
	"upsert, patch":         {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
	"upsert, error":         {Write: postgres.WriteUpsert, Absent: postgres.AbsentError},
	"upsert, combine":       {Write: postgres.WriteUpsert, Combine: []string{"bal"}},
	"upsert, combine patch": {Write: postgres.WriteUpsert, Combine: []string{"bal"}, Absent: postgres.AbsentKeep},
	"mirror":                {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete},
	"mirror, patch":         {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Absent: postgres.AbsentKeep},
	"mirror, version":       {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone"},
}

// borderHistory is a random stream over few keys.
func borderHistory(rng *rand.Rand, n int) []semel.Message {
	field := func(name string, values ...string) string {
		switch rng.IntN(8) {
		case 0:
			return ""
		case 1:
			return fmt.Sprintf(`,%q:null`, name)
		}
		return fmt.Sprintf(`,%q:%s`, name, values[rng.IntN(len(values))])
	}
	ms := make([]semel.Message, n)
	keys := 1 + rng.IntN(5)
	for i := range ms {
		k := strconv.Itoa(1 + rng.IntN(keys))
		ms[i] = semel.Message{Topic: "t", Offset: int64(i), Key: []byte(k), Headers: []semel.Header{{Name: "ver", Value: []byte(strconv.Itoa(rng.IntN(6)))}}}
		if rng.IntN(40) == 0 {
			ms[i].Headers = nil
		}
		if rng.IntN(5) == 0 {
			continue // a tombstone
		}
		ms[i].Value = []byte(`{"k":` + k + field("u", "1", "2", "3", "4") + field("v", "0", "1", "2", "3", "-1") + field("w", `"a"`, `"b"`, `"zz"`) +
			field("bal", "1", "2", "-3", "-1", "7", "2147483640", "-2147483640") + "}")
	}
	return ms
}

// borderEnd is what a stream leaves.
type borderEnd struct {
	rows     string
	outcomes string
	letters  string
}

// settleMessages sends messages in batches whose sizes cut gives.
func (b *tableBench) settleMessages(ms []semel.Message, cut func(left int) int) (e borderEnd) {
	b.t.Helper()
	for len(ms) > 0 {
		n := cut(len(ms))
		items := make([]inbox.Item, n)
		for i := range items {
			items[i].Message = ms[i]
		}
		b.table.Decode(items)
		if err := b.isolate(items); err != nil {
			b.t.Fatal(err)
		}
		e.outcomes += tableOutcomes(items)
		for _, it := range items {
			if it.Outcome == inbox.Dead {
				e.letters += fmt.Sprintf("%d %s, ", it.Offset, it.Class)
			}
		}
		ms = ms[n:]
	}
	return e
}

// isolate is attempt, with what the loop makes of a culprit that is named.
func (b *tableBench) isolate(items []inbox.Item) error {
	if len(items) == 0 {
		return nil
	}
	err := b.once(items)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code[:2] != "22" && pg.Code[:2] != "23" {
		return err
	}
	var named *semel.FailedAtError
	at, to := 0, len(items)/2
	if errors.As(err, &named) {
		// Apply was given those alone that are to have an effect.
		n := named.Index
		for at = range items {
			if it := &items[at]; it.Outcome == inbox.Applied && it.Err == nil && !it.Skip {
				if n == 0 {
					break
				}
				n--
			}
		}
		to = at + 1
	}
	if len(items) == 1 {
		items[0].Err, items[0].Class, items[0].Outcome = err, inbox.DeadConstraint, inbox.Dead
		if pg.Code[:2] == "22" {
			items[0].Class = inbox.DeadValue
		}
		return nil
	}
	for _, part := range [][]inbox.Item{items[:at], items[at:to], items[to:]} {
		if err := b.isolate(part); err != nil {
			return err
		}
	}
	return nil
}

func (b *tableBench) rows(table string) string {
	return b.ask(`SELECT jsonb_agg((to_jsonb(t) - 'gone') || jsonb_build_object('gone', gone IS NOT NULL) ORDER BY t.k, t.u, t.v, t.w, t.bal, t.ver)::text FROM ` + table + ` t`)
}

// firstSeed is SEMEL_BORDER_SEED; else a seed that found a fault, or any if SEMEL_BORDER_SEEDS asks for more of them: who
// changes something else should not have to mend what only his seed found.
func firstSeed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("SEMEL_BORDER_SEED"), 10, 64); err == nil {
		return n
	}
	if os.Getenv("SEMEL_BORDER_SEEDS") != "" {
		return rand.Uint64N(1 << 32)
	}
	return 471681981
}

// Wherever a stream is cut into batches, the rows, outcomes and dead letters are
// those of messages one by one. SEMEL_BORDER_SEEDS runs more of them.
func TestAnyBatchBorderLeavesTheSameRows(t *testing.T) {
	t.Parallel()
	seeds := uint64(1)
	if n, err := strconv.ParseUint(os.Getenv("SEMEL_BORDER_SEEDS"), 10, 32); err == nil {
		seeds = n
	}
	first := firstSeed()
	url := testenv.Postgres(t)
	number := 0
	for mode, cfg := range borderModes {
		for judge, ddl := range borderTables {
			if cfg.Write == postgres.WriteAppend && judge == "itself" {
				continue // what refers to itself needs a key
			}
			number++
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
					if cfg.Deleted != "" && judge == "not null" { // no row can stand for a deletion that comes first
						var refused *postgres.TableError
						if !errors.As(err, &refused) || refused.Column != "v" {
							t.Fatalf("such a table is not refused: %v", err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				for seed := first; seed < first+seeds; seed++ {
					rng := rand.New(rand.NewPCG(seed, 7))
					ms := borderHistory(rng, 5+rng.IntN(25))
					b.compareBorders(seed, rng, ms, tables, [2]string{one, many})
				}
			})
		}
	}
}

// compareBorders settles messages one by one into one table, and cut in two ways into
// another.
func (b *tableBench) compareBorders(seed uint64, rng *rand.Rand, ms []semel.Message, tables [2]*postgres.Table, names [2]string) {
	b.t.Helper()
	settle := func(n int, cut func(left int) int) borderEnd {
		b.t.Helper()
		b.table = tables[n]
		clear(b.known)
		b.exec("TRUNCATE " + names[n] + " CASCADE")
		end := b.settleMessages(ms, cut)
		end.rows = b.rows(names[n])
		return end
	}
	want := settle(0, func(int) int { return 1 })
	for _, most := range []int{len(ms), 2 + rng.IntN(12)} {
		got := settle(1, func(left int) int {
			if most == len(ms) {
				return left
			}
			return min(left, 1+rng.IntN(most))
		})
		same := got.rows == want.rows && got.letters == want.letters
		for i := range got.outcomes {
			g, w := got.outcomes[i], want.outcomes[i]
			same = same && (g == w || g == 'o' && (w == 'a' || w == 's'))
		}
		if !same {
			var lines strings.Builder
			for i, m := range ms {
				fmt.Fprintf(&lines, "%2d %c %c %s %s %s\n", i, want.outcomes[i], got.outcomes[i], m.Key, m.Headers, m.Value)
			}
			b.t.Fatalf("seed %d, batches up to %d\none by one %s\n%s\nin batches %s\n%s\n%s", seed, most, want.letters, want.rows, got.letters, got.rows, lines.String())
		}
	}
}
