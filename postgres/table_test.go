package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// tableValuesOf makes n messages.
func tableValuesOf(n int, value func(i int) string) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = value(i)
	}
	return values
}

func TestRowsGoStraightInWhereNothingConflicts(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE log (n int, v text)`, postgres.TableConfig{Table: "log", Write: postgres.WriteAppend})
	if b.table.Memory() != inbox.MemoryPosition || b.table.Path() != "COPY straight into public.log (binary)" {
		t.Errorf("%s, %s", b.table.Memory(), b.table.Path())
	}
	b.settle(tableValuesOf(3000, func(i int) string { return fmt.Sprintf(`{"n":%d,"v":"x"}`, i) })...)
	if got := b.ask("SELECT count(*) || ' ' || sum(n) FROM log"); got != "3000 4498500" {
		t.Error(got)
	}
}

func TestTheTargetRemembersWhereItsKeyIsTheID(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE o (id uuid PRIMARY KEY, v jsonb, amount numeric(10,2), ns numeric[], j json)`,
		postgres.TableConfig{Table: "o", Write: postgres.WriteInsert, ID: []string{"value.id"}})
	if b.table.Memory() != inbox.MemoryTarget {
		t.Fatal(b.table.Memory())
	}
	const id = `a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1`
	first := fmt.Sprintf(`{"id":"%s0","v":{"a":1,"b":2},"amount":1.5,"ns":[1.0],"j":{"a":1}}`, id)
	b.want(b.settle(first, strings.Replace(first, id, strings.ToUpper(id), 1), fmt.Sprintf(`{"id":"%s1"}`, id)), "ada")
	// Another way to write the same, another value, a new ID, no ID.
	b.want(b.settle(fmt.Sprintf(`{"amount":1.50,"v":{"b":2, "a":1.0},"id":"%s0","ns":[1],"j":{ "a":1}}`, id),
		fmt.Sprintf(`{"id":"%s1","amount":1}`, id), fmt.Sprintf(`{"id":"%s2"}`, id), `{"v":1}`), "dxax")
	if got := b.ask("SELECT count(*)::text FROM o"); got != "3" {
		t.Error(got)
	}
}

func TestKnownKeysAreFoundWithAndWithoutAskingFirst(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"one column": "a", "two columns": "a, b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := postgres.TableConfig{Table: "o", Write: postgres.WriteInsert, ID: []string{"value.a"}}
			if key != "a" {
				cfg.ID = []string{"value.b", "value.a"}
			}
			b := newTableBench(t, `CREATE TABLE o (a timestamptz, b text, v int, PRIMARY KEY (`+key+`))`, cfg)
			if b.table.Memory() != inbox.MemoryTarget {
				t.Fatal(b.table.Memory())
			}
			message := func(i int) string {
				return fmt.Sprintf(`{"a":"2026-01-01T00:%02d:%02dZ","b":"k%d","v":%d}`, i/60, i%60, i, i)
			}
			for round := range 30 { // over several changes between asking and not
				n := 20 * (round + 1)
				dup := round > 0 && (round < 4 || round > 18 && round != 20)
				var values []string
				want := ""
				for i := n - 20; i < n; i++ {
					if dup && i%4 == 0 {
						values = append(values, message(i-20), message(i-20))
						want += "dd"
					}
					values = append(values, message(i))
					want += "a"
				}
				b.want(b.settle(values...), want)
			}
			if got := b.ask("SELECT count(*) || ' ' || sum(v) FROM o"); got != "600 179700" {
				t.Error(got)
			}
		})
	}
}

func TestInsertMeetsARowOfAnotherID(t *testing.T) {
	t.Parallel()
	for policy, letter := range map[postgres.ExistsPolicy]string{postgres.ExistsDuplicate: "d", postgres.ExistsDeadLetter: "x"} {
		b := newTableBench(t, `CREATE TABLE o (id numeric PRIMARY KEY, v text)`,
			postgres.TableConfig{Table: "o", Write: postgres.WriteInsert, Identified: true, OnExists: policy})
		if b.table.Memory() != inbox.MemoryInbox {
			t.Error(b.table.Memory())
		}
		b.want(b.settle(`{"id":1,"v":"a"}`, `{"id":1.0,"v":"b"}`, `{"id":2}`), "a"+letter+"a")
		b.want(b.settle(`{"id":1.00,"v":"c"}`, `{"id":3}`), letter+"a")
		if got := b.ask("SELECT string_agg(id || coalesce(v, '-'), ' ' ORDER BY id) FROM o"); got != "1a 2- 3-" {
			t.Error(got)
		}
	}
}

func TestTwoSpellingsOfAKeyAreRefusedWhereItIsTheMemory(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE o (id int PRIMARY KEY)`, postgres.TableConfig{Table: "o", Write: postgres.WriteInsert, ID: []string{"value.id"}})
	b.want(b.settle(`{"id":7}`, `{"id":"007"}`, `{"id":"7"}`, `{"id":"8"}`), "axda")
}

func TestRefusedRowsAreFoundAndTheOthersKept(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1);
		CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES parent DEFERRABLE INITIALLY DEFERRED, short varchar(3), pos int CHECK (pos > 0), u int UNIQUE, must int NOT NULL)`,
		postgres.TableConfig{Table: "c", Write: postgres.WriteInsert, ID: []string{"value.id"}})
	values := tableValuesOf(500, func(i int) string {
		more := ""
		switch i {
		case 0:
			more = `,"short":"abcd"`
		case 100:
			more = `,"u":1`
		case 249:
			more = `,"p":2`
		case 300:
			more = `,"must":null`
		case 499:
			more = `,"pos":0`
		}
		if i == 99 {
			more = `,"u":1`
		}
		if i != 300 {
			more += `,"must":1`
		}
		return fmt.Sprintf(`{"id":%d%s}`, i, more)
	})
	items := b.settle(values...)
	for i, it := range items {
		bad := slices.Contains([]int{0, 100, 249, 300, 499}, i)
		if bad != (it.Outcome == inbox.Dead) {
			t.Errorf("message %d is %s: %v", i, it.Outcome, it.Err)
		}
	}
	if got := b.ask("SELECT count(*)::text FROM c"); got != "495" {
		t.Error(got)
	}
}

func TestUpsertKeepsTheLast(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id bigint PRIMARY KEY, v text, other text DEFAULT 'kept')`,
		postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Columns: map[string]string{"id": "value.id", "v": "value.v"}})
	b.want(b.settle(`{"id":7,"v":"a"}`, `{"id":8,"v":"b"}`, `{"id":7,"v":"c"}`), "oaa")
	b.want(b.settle(`{"id":8}`, `{"id":null}`, `{"v":"x"}`, "tombstone"), "axx-")
	if got := b.ask("SELECT string_agg(id || coalesce(v, '-') || other, ' ' ORDER BY id) FROM s"); got != "7ckept 8-kept" {
		t.Error(got)
	}
}

// The stream's rows and outcomes are those of a model that takes messages one by
// one, wherever batches end and whichever path they take.
func TestUpsertIsAsIfOneByOne(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"bigint", "numeric", "timestamptz"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newTableBench(t, `CREATE TABLE s (a int, "B" text, ver `+version+`, v int NOT NULL, pad text, PRIMARY KEY (a, "B"))`,
				postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Version: "value.ver"})
			rapid.Check(t, func(rt *rapid.T) {
				b.exec("TRUNCATE s")
				type state struct{ ver, v int }
				model := map[string]state{}
				n := rapid.IntRange(1, 60).Draw(rt, "n")
				v := 0
				for n > 0 {
					size := min(n, rapid.SampledFrom([]int{1, 2, 5, 20}).Draw(rt, "batch"))
					n -= size
					repeat := 1
					if rapid.Bool().Draw(rt, "large") {
						repeat = 30 // enough for the temporary table
					}
					var values []string
					var want []byte
					for range size * repeat {
						key, ver := rapid.IntRange(0, 3).Draw(rt, "key"), rapid.IntRange(0, 9).Draw(rt, "ver")
						if repeat > 1 {
							key = v % 700
						}
						v++
						k := strconv.Itoa(key)
						if ver == 0 {
							values = append(values, fmt.Sprintf(`{"a":%d,"B":"%d","v":%d}`, key, key, v))
							want = append(want, 'x')
							continue
						}
						text := strconv.Itoa(ver)
						if version == "timestamptz" {
							text = fmt.Sprintf(`"2026-01-0%dT00:00:00Z"`, ver)
						}
						values = append(values, fmt.Sprintf(`{"a":%d,"B":"%d","ver":%s,"v":%d}`, key, key, text, v))
						if s, ok := model[k]; ok && s.ver >= ver {
							want = append(want, 's')
							continue
						}
						model[k] = state{ver, v}
						want = append(want, 'a')
					}
					got := tableOutcomes(b.settle(values...))
					// Applied and then overtaken, if batches are cut between the two.
					for i := range want {
						if got[i] != want[i] && !(got[i] == 'o' && want[i] == 'a') {
							rt.Fatalf("message %d is %c, want %c\n%s\n%s", i, got[i], want[i], got, want)
						}
					}
				}
				var rows []string
				for k, s := range model {
					rows = append(rows, k+"="+strconv.Itoa(s.v))
				}
				slices.Sort(rows)
				if got, want := b.ask(`SELECT coalesce(string_agg(a || '=' || v, ' ' ORDER BY (a || '=' || v) COLLATE "C"), '') FROM s`), strings.Join(rows, " "); got != want {
					rt.Fatalf("rows %s\nwant %s", got, want)
				}
			})
		})
	}
}

func TestOlderVersionsNeverOverwrite(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, ver bigint, v text); INSERT INTO s VALUES (9, NULL, 'old')`,
		postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Version: "value.ver"})
	b.want(b.settle(`{"id":7,"ver":3,"v":"three"}`), "a")
	b.want(b.settle(`{"id":7,"ver":2,"v":"two"}`, `{"id":7,"ver":3,"v":"again"}`, `{"id":8,"v":"no version"}`, `{"id":9,"ver":1,"v":"new"}`), "ssxa")
	if got := b.ask("SELECT string_agg(id || v, ' ' ORDER BY id) FROM s"); got != "7three 9new" {
		t.Error(got)
	}
}

func TestAVersionAboveAllOthersIsRefused(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"numeric", "timestamptz", "date"} {
		b := newTableBench(t, "CREATE TABLE s (id int PRIMARY KEY, ver "+typ+", v text)",
			postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Version: "value.ver"})
		b.want(b.settle(`{"id":1,"ver":"Infinity","v":"for ever"}`, `{"id":2,"ver":"infinity","v":"for ever"}`), "xx")
		if typ == "numeric" {
			b.want(b.settle(`{"id":3,"ver":"NaN","v":"for ever"}`, `{"id":4,"ver":"-Infinity","v":"first"}`, `{"id":4,"ver":1,"v":"then"}`), "xoa")
		}
	}
}

func TestNamesAreQuotedInEveryMode(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."Ord""er" ("Id" int PRIMARY KEY, "jsonData" jsonb, "user" text, "two words" text, "UPPER" bigint, "q""uote's\" text)`
	columns := map[string]string{"Id": "value.id", "jsonData": "value", "user": `value.user`, "two words": `value["two words"]`, "UPPER": "value.ver", `q"uote's\`: "value.q"}
	for _, c := range []postgres.TableConfig{
		{Write: postgres.WriteAppend},
		{Write: postgres.WriteInsert},
		{Write: postgres.WriteInsert, ID: []string{"value.id"}},
		{Write: postgres.WriteUpsert},
		{Write: postgres.WriteUpsert, Version: "value.ver"},
	} {
		for _, n := range []int{3, 700} { // few rows go another way than many
			c.Table, c.Columns = `"My.Schema"."Ord""er"`, columns
			b := newTableBench(t, ddl, c)
			values := tableValuesOf(n, func(i int) string { return fmt.Sprintf(`{"id":%d,"user":"u","two words":"w","ver":5,"q":"'"}`, i) })
			b.want(b.settle(values...), strings.Repeat("a", n))
			if c.Write != postgres.WriteAppend && c.Version == "" { // known keys
				b.settle(values...)
			}
			if got := b.ask(`SELECT count(*) || ' ' || sum("Id") || min("user") || min("two words") || min("UPPER") || min("q""uote's\") FROM "My.Schema"."Ord""er"`); got != fmt.Sprintf("%d %duw5'", n, n*(n-1)/2) {
				t.Errorf("%s %s: %s", c.Write, c.Version, got)
			}
		}
	}
}

func TestManyColumnsAndRows(t *testing.T) {
	t.Parallel()
	var columns []string
	value := `{"c0":%d`
	for i := range 40 {
		columns = append(columns, fmt.Sprintf("c%d int", i))
		if i > 0 {
			value += fmt.Sprintf(`,"c%d":%d`, i, i)
		}
	}
	ddl := "CREATE TABLE w (" + strings.Join(columns, ", ") + ", PRIMARY KEY (c0))"
	for _, mode := range []postgres.WriteMode{postgres.WriteInsert, postgres.WriteUpsert} {
		b := newTableBench(t, ddl, postgres.TableConfig{Table: "w", Write: mode})
		n := 0
		for _, size := range []int{1638, 1639, 5000} {
			b.settle(tableValuesOf(size, func(i int) string { return fmt.Sprintf(value, n+i) + "}" })...)
			n += size
		}
		if got := b.ask("SELECT count(*) || ' ' || sum(c39) FROM w"); got != fmt.Sprintf("%d %d", n, 39*n) {
			t.Error(mode, got)
		}
	}
}

func TestAnyTypeCanBeWritten(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE TYPE kind AS ENUM ('a', 'b c'); CREATE DOMAIN money2 AS numeric(10,2) CHECK (VALUE >= 0);
		CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0); CREATE TYPE pair AS (x int, y text);
		CREATE TABLE x (id positive PRIMARY KEY, k kind, m money2, ks kind[]%s)`
	for name, more := range map[string]string{"enum key": "", "more": ", ip inet, r int4range, p pair, tt timetz, iv interval, xm xml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []postgres.WriteMode{postgres.WriteAppend, postgres.WriteInsert, postgres.WriteUpsert} {
				b := newTableBench(t, fmt.Sprintf(ddl, more), postgres.TableConfig{Table: "x", Write: mode})
				items := b.settle(`{"id":1,"k":"a","m":1.10,"ks":["a","b c",null],"ip":"10.0.0.1/8","r":"[1,3)","p":"(1,\"a\")","tt":"10:00+02","iv":"1 day","xm":"<a/>"}`,
					`{"id":2,"k":"nolabel"}`, `{"id":3,"m":-1}`, `{"id":4,"m":1.001}`, `{"id":-1}`, `{"id":5,"k":"b c"}`, `{"id":6,"ks":["z"]}`)
				b.want(items, "axxxxax")
				want := "1 a 1.10 {a,\"b c\",NULL}"
				if more != "" {
					want += " 10.0.0.1/8 [1,3) (1,a) 10:00:00+02 1 day <a/>"
				}
				columns := "id || ' ' || k || ' ' || m || ' ' || ks::text"
				if more != "" {
					columns += "|| ' ' || ip::text || ' ' || r || ' ' || p || ' ' || tt || ' ' || iv || ' ' || xm"
				}
				if got := b.ask("SELECT " + columns + " FROM x WHERE id = 1"); got != want {
					t.Errorf("%s: %s", mode, got)
				}
			}
		})
	}
}

func TestEnumTextAndTimesMakeAKey(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TYPE "Kind" AS ENUM ('a', 'b'); CREATE TABLE x (k "Kind", d date, v varchar(9), b bytea, n numeric, PRIMARY KEY (k, d, v, b, n))`,
		postgres.TableConfig{Table: "x", Write: postgres.WriteInsert})
	rows := []string{`{"k":"a","d":"2026-01-01","v":"x","b":"AA==","n":1.0}`, `{"k":"b","d":"2026-01-01","v":"x","b":"AA==","n":10000.5}`}
	b.want(b.settle(rows...), "aa")
	b.want(b.settle(rows[1], `{"k":"a","d":"2026-01-02","v":"x","b":"AA==","n":1}`, `{"k":"a","d":"2026-01-01","v":"x","b":"\\x00","n":1.00}`), "dad")
}

func TestDefaultsStandWhereNothingMeetsNotNull(t *testing.T) {
	t.Parallel()
	for _, mode := range []postgres.WriteMode{postgres.WriteInsert, postgres.WriteUpsert} {
		b := newTableBench(t, `CREATE TABLE d (id int PRIMARY KEY, seq bigint GENERATED BY DEFAULT AS IDENTITY, state text NOT NULL DEFAULT 'new', free text DEFAULT 'unused', twice int GENERATED ALWAYS AS (id * 2) STORED)`,
			postgres.TableConfig{Table: "d", Write: mode})
		b.want(b.settle(`{"id":1}`, `{"id":2,"state":"x"}`, `{"id":3,"seq":70,"free":"f"}`, `{"id":4,"state":null}`), "aaax")
		if got := b.ask("SELECT string_agg(concat_ws(',', id, state, coalesce(free, '-'), twice, (seq = 70)), ' ' ORDER BY id) FROM d"); got != "1,new,-,2,f 2,x,-,4,f 3,new,f,6,t" {
			t.Errorf("%s: %s", mode, got)
		}
	}
}

func TestAnIdentityThatIsAlwaysGeneratedCanBeMapped(t *testing.T) {
	t.Parallel()
	for _, mode := range []postgres.WriteMode{postgres.WriteInsert, postgres.WriteUpsert} {
		b := newTableBench(t, `CREATE TABLE d (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)`,
			postgres.TableConfig{Table: "d", Write: mode, Columns: map[string]string{"id": "value.id", "v": "value.v"}})
		b.want(b.settle(`{"id":41,"v":1}`), "a")
		b.settle(`{"id":41,"v":2}`)
		if got, want := b.ask("SELECT id || ' ' || v FROM d"), map[postgres.WriteMode]string{postgres.WriteInsert: "41 1", postgres.WriteUpsert: "41 2"}[mode]; got != want {
			t.Errorf("%s: %s", mode, got)
		}
	}
}

func TestASwallowedRowHalts(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE TABLE s (id int PRIMARY KEY, ver int);
		CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$;
		CREATE TRIGGER swallow BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION swallow()`
	for _, c := range []postgres.TableConfig{{Write: postgres.WriteAppend}, {Write: postgres.WriteInsert}, {Write: postgres.WriteUpsert}, {Write: postgres.WriteUpsert, Version: "value.ver"}} {
		c.Table = "s"
		b := newTableBench(t, ddl, c)
		err := b.attempt(b.items(`{"id":1,"ver":1}`, `{"id":2,"ver":1}`))
		var halt *inbox.HaltError
		if !errors.As(err, &halt) || halt.Kind != "rows-swallowed" {
			t.Errorf("%s %s: %v", c.Write, c.Version, err)
		}
		if got := b.ask("SELECT count(*)::text FROM s"); got != "0" {
			t.Error(got)
		}
	}
}

func TestATableThatChangesHaltsBeforeItHarms(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]string{
		"same size":    `ALTER TABLE c ALTER v TYPE double precision`,
		"other size":   `ALTER TABLE c ALTER v TYPE int`,
		"other digits": `ALTER TABLE c ALTER n TYPE numeric(5,1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTableBench(t, `CREATE TABLE c (v bigint, n numeric(5,2))`, postgres.TableConfig{Table: "c", Write: postgres.WriteAppend})
			b.settle(`{"v":1,"n":1.25}`)
			b.exec(alter)
			err := b.once(b.items(`{"v":2,"n":1}`))
			var halt *inbox.HaltError
			if !errors.As(err, &halt) || halt.Kind != "table-changed" {
				t.Fatal(err)
			}
			if got := b.ask("SELECT count(*)::text FROM c"); got != "1" {
				t.Error(got)
			}
			items := b.items(`{"v":3,"n":1}`) // decoded by the old plan, applied by the new one
			if err := b.table.Reload(b.ctx, b.conn); err != nil {
				t.Fatal(err)
			}
			if err := b.once(items); err != nil {
				t.Fatal(err)
			}
			if got := b.ask("SELECT max(v)::text FROM c"); got != "3" {
				t.Error(got)
			}
		})
	}
}

func TestADroppedColumnIsTheServersError(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE c (a int, b int)`, postgres.TableConfig{Table: "c", Write: postgres.WriteAppend})
	b.exec("ALTER TABLE c DROP b")
	err := b.once(b.items(`{"a":1}`))
	if err == nil || !strings.Contains(err.Error(), "42703") {
		t.Error(err)
	}
}

func TestTypesMadeAnewAreTheSameTypes(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE TYPE kind AS ENUM ('a'); CREATE TABLE x (k kind PRIMARY KEY, ks kind[])`
	b := newTableBench(t, ddl, postgres.TableConfig{Table: "x", Write: postgres.WriteInsert})
	b.want(b.settle(`{"k":"a","ks":["a"]}`), "a")
	b.exec("DROP TABLE x; DROP TYPE kind; " + ddl) // as a restore does: other OIDs
	b.want(b.settle(`{"k":"a","ks":["a"]}`), "a")
	b.want(b.settle(`{"k":"a","ks":["a"]}`), "d")
}

func TestRowLevelSecurityIsGoneAround(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE r (id int PRIMARY KEY)`, postgres.TableConfig{Table: "r", Write: postgres.WriteInsert})
	database := b.ask("SELECT current_database()")
	role := "role_" + database
	b.exec(`CREATE ROLE ` + role + `; GRANT ALL ON r TO ` + role + `; GRANT TEMPORARY ON DATABASE ` + database + ` TO ` + role + `;
		ALTER TABLE r ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON r USING (true) WITH CHECK (id < 9000); SET ROLE ` + role)
	t.Cleanup(func() { b.exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role) })
	if err := b.table.Reload(b.ctx, b.conn); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 5000} { // few rows go another way than many
		b.settle(tableValuesOf(n, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
		if got := b.ask("SELECT count(*)::text FROM r"); got != strconv.Itoa(n) {
			t.Error(got)
		}
	}
}

func TestRowSecurityThatMayHideRowsIsRefused(t *testing.T) {
	t.Parallel()
	conn := tableConnect(t, testenv.Postgres(t))
	role := "hides_" + conn.Config().Database
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE s (id int PRIMARY KEY); CREATE ROLE ` + role + `; GRANT ALL ON s TO ` + role + `; ALTER TABLE s ENABLE ROW LEVEL SECURITY`)
	t.Cleanup(func() { exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role) })
	for _, c := range []struct {
		policies string
		hides    bool
	}{
		{"", true},
		{"CREATE POLICY p ON s USING (id > 0)", true},
		{"CREATE POLICY p ON s FOR INSERT WITH CHECK (true)", true},
		{"CREATE POLICY p ON s TO pg_monitor USING (true)", true},
		{"CREATE POLICY p ON s USING (true); CREATE POLICY q ON s AS RESTRICTIVE USING (id > 0)", true},
		{"CREATE POLICY p ON s USING (true) WITH CHECK (id > 0)", false},
		{"CREATE POLICY p ON s FOR SELECT USING (true); CREATE POLICY q ON s USING (id > 0)", false},
	} {
		exec("RESET ROLE; DROP POLICY IF EXISTS p ON s; DROP POLICY IF EXISTS q ON s; " + c.policies + "; SET ROLE " + role)
		for _, mode := range []postgres.WriteMode{postgres.WriteAppend, postgres.WriteInsert, postgres.WriteUpsert, postgres.WriteMirror} {
			_, err := postgres.NewTable(context.Background(), conn, postgres.TableConfig{Table: "s", Write: mode})
			if want := c.hides && mode != postgres.WriteAppend; want != (err != nil && strings.Contains(err.Error(), "row security may hide rows")) {
				t.Errorf("%s, %s: %v", c.policies, mode, err)
			}
		}
	}
}

func TestUnknownFieldsHaltWhereToldTo(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE c (a int)`, postgres.TableConfig{Table: "c", Write: postgres.WriteAppend, HaltUnknown: true})
	var halt *inbox.HaltError
	var at *semel.FailedAtError
	err := b.once(b.items(`{"a":1}`, `{"a":1,"b":2}`))
	if !errors.As(err, &halt) || halt.Kind != "unknown-field" || !errors.As(err, &at) || at.Index != 1 {
		t.Error(err)
	}
}

func TestRoutesThatDontFitAreRefusedWithAHint(t *testing.T) {
	t.Parallel()
	conn := tableConnect(t, testenv.Postgres(t))
	ctx := context.Background()
	if _, err := conn.Exec(ctx, `CREATE TABLE orders (id int PRIMARY KEY, "Amount" numeric, ver int, made int GENERATED ALWAYS AS (id) STORED, at timestamptz, part int, c char(3));
		CREATE UNIQUE INDEX ON orders (part) WHERE part > 0; CREATE TABLE nokey (a int); CREATE TABLE "Mixed" (a int); CREATE VIEW vw AS SELECT 1 AS a;
		CREATE TABLE must (a int, b int NOT NULL); CREATE TABLE spans (c interval PRIMARY KEY);
		CREATE TABLE two (a int, b int, must int NOT NULL, ver int, c text, at timestamptz, PRIMARY KEY (a, b))`); err != nil {
		t.Fatal(err)
	}
	type cfg = postgres.TableConfig
	for _, c := range []struct {
		cfg       cfg
		why, hint string
	}{
		{cfg{Table: "ordres", Write: "append"}, "table ordres: it does not exist", "there is public.orders"},
		{cfg{Table: "mixed", Write: "append"}, "table mixed: it does not exist", `there is public."Mixed"`},
		{cfg{Table: "other.orders", Write: "append"}, "table other.orders: it does not exist", "there is public.orders"},
		{cfg{Table: "vw", Write: "append"}, "table vw: it is a view", "name the table under it"},
		{cfg{Table: "a.b.c", Write: "append"}, "table a.b.c: more than schema and table", ""},
		{cfg{Table: "orders", Write: "merge"}, `no such way to write: "merge"`, "append, insert, upsert or mirror"},
		{cfg{Table: "orders", Write: "insert", Columns: map[string]string{"id": "value.id", "amount": "value.a"}}, `column "amount": it does not exist`, `there is "Amount"`},
		{cfg{Table: "orders", Write: "insert", Columns: map[string]string{"made": "value.id"}}, `column "made": it is generated`, ""},
		{cfg{Table: "orders", Write: "insert", Columns: map[string]string{"id": "value"}}, `column "id": integer can't take value`, ""},
		{cfg{Table: "orders", Write: "insert", Columns: map[string]string{"id": "offset", "at": "offset"}}, `column "at"`, ""},
		{cfg{Table: "orders", Write: "upsert", PrimaryKey: []string{"part"}}, "key (part): unique index orders_part_idx is partial", ""},
		{cfg{Table: "orders", Write: "upsert", PrimaryKey: []string{"ver"}}, "key (ver): no unique index is over exactly these columns", ""},
		{cfg{Table: "orders", Write: "upsert", ID: []string{"value.id"}}, "the message ID is the key", ""},
		{cfg{Table: "two", Write: "upsert", ID: []string{"value.a"}}, "the message ID is the key, or a part of it", ""},
		{cfg{Table: "two", Write: "upsert", ID: []string{"value.a", "envelope.op"}}, "the message ID is of the row's key and what takes few values (envelope.op)", ""},
		{cfg{Table: "two", Write: "append", ID: []string{"topic"}}, "the message ID takes few values (topic)", ""},
		{cfg{Table: "orders", Write: "mirror", Version: "value.ver", Tombstone: postgres.TombstoneDelete}, "a deletion under a version has to leave its row", ""},
		{cfg{Table: "two", Write: "mirror", Version: "value.ver", Tombstone: postgres.TombstoneDelete, Deleted: "at"}, `column "must": it is NOT NULL without a default`, ""},
		{cfg{Table: "two", Write: "mirror", Version: "value.ver", Tombstone: postgres.TombstoneDelete, Deleted: "c"}, "text can't hold the time of a deletion", ""},
		{cfg{Table: "two", Write: "mirror", Tombstone: postgres.TombstoneDelete, Deleted: "at"}, "a mark for deleted rows is for write: mirror with a version", ""},
		{cfg{Table: "two", Write: "upsert", Tombstone: postgres.TombstoneDelete}, "write: upsert deletes nothing", "write: mirror"},
		{cfg{Table: "two", Write: "upsert", Version: "value.ver", Combine: []string{"must"}}, "a version with what is stored", ""},
		{cfg{Table: "two", Write: "upsert", Version: "value.ver", Absent: postgres.AbsentKeep}, "a version with what is stored", ""},
		{cfg{Table: "two", Write: "upsert", Combine: []string{"c"}}, "text can't be added to exactly", ""},
		{cfg{Table: "two", Write: "upsert", Combine: []string{"a"}}, `column "a": it is part of the key`, ""},
		{cfg{Table: "orders", Write: "upsert", Version: "value.version"}, "no column takes the version value.version", ""},
		{cfg{Table: "orders", Write: "insert", Version: "value.ver"}, "version with write: insert", ""},
		{cfg{Table: "orders", Write: "upsert", Version: "value.c"}, "character(3) can't be a version", ""},
		{cfg{Table: "orders", Write: "append", Epoch: map[string]postgres.EpochUnit{"ver": "ms"}}, `column "ver": an epoch unit for integer`, ""},
		{cfg{Table: "orders", Write: "append", Epoch: map[string]postgres.EpochUnit{"at": "m"}}, `no such epoch unit: "m"`, "s, ms, us or ns"},
		{cfg{Table: "nokey", Write: "upsert"}, "it has no primary key", ""},
		{cfg{Table: "must", Write: "append", Columns: map[string]string{"a": "value.a"}}, `column "b": it is NOT NULL without a default`, ""},
		{cfg{Table: "spans", Write: "upsert"}, "interval in a key: values can't be told apart exactly", ""},
	} {
		_, err := postgres.NewTable(ctx, conn, c.cfg)
		var bad *postgres.TableError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.why) || c.hint != "" && bad.Hint != c.hint {
			t.Errorf("%+v:\ngot  %v (%+v)\nwant %s (%s)", c.cfg, err, bad, c.why, c.hint)
		}
	}
}

func TestTableNamesAreReadAsInSQL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]postgres.TableName{
		"Orders": {Name: "orders"}, "My.Orders": {Schema: "my", Name: "orders"}, `"My.Schema"."Table"`: {Schema: "My.Schema", Name: "Table"},
		`a."b""c"`: {Schema: "a", Name: `b"c`}, `"`: {}, `""`: {}, "a.": {}, "a b": {}, `"a"b`: {}, "": {}, "a;b": {},
	} {
		got, err := postgres.ParseTableName(in)
		if got != want || (err != nil) != (want == postgres.TableName{}) {
			t.Errorf("%s is %+v, %v", in, got, err)
		}
		if again, _ := postgres.ParseTableName(got.String()); err == nil && again != got {
			t.Errorf("%s is written %s", in, got)
		}
	}
}

// What a message leaves out keeps what an earlier one of its key said, also where
// both come in one batch, and only the last is written.
func TestWhatIsLeftOutKeepsWhatAnEarlierMessageSaid(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"last wins": "", "version": "value.ver"} {
		for _, together := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, together %v", name, together), func(t *testing.T) {
				t.Parallel()
				b := newTableBench(t, `CREATE TABLE d (id int PRIMARY KEY, ver int, state text NOT NULL DEFAULT 'new', other int NOT NULL DEFAULT 0)`,
					postgres.TableConfig{Table: "d", Write: postgres.WriteUpsert, Version: version})
				values := []string{`{"id":1,"ver":1,"state":"paid"}`, `{"id":2,"ver":1,"state":"x","other":5}`, `{"id":1,"ver":2,"other":3}`, `{"id":1,"ver":3}`}
				if together {
					b.settle(values...)
				} else {
					for _, v := range values {
						b.settle(v)
					}
				}
				if got := b.ask("SELECT string_agg(concat_ws(',', id, ver, state, other), ' ' ORDER BY id) FROM d"); got != "1,3,paid,3 2,1,x,5" {
					t.Error(got)
				}
			})
		}
	}
}
