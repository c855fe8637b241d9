package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// Keys of which the server alone knows what is equal: two spellings are one row.
func TestKeysAreEqualAsTheServerSays(t *testing.T) {
	t.Parallel()
	for typ, spellings := range map[string][3]string{ // two of one key, and another
		"citext":         {"Straße", "STRAße", "strasse"},
		"char(4)":        {"ab", "ab  ", "b"},
		"inet":           {"10.0.0.1", "10.0.0.1/32", "10.0.0.1/8"},
		"cidr":           {"10.0.0.0/8", "10/8", "10.0.0.0/9"},
		"macaddr":        {"08:00:2b:01:02:03", "0800.2b01.0203", "08:00:2b:01:02:04"},
		"bit varying(8)": {"101", "101", "1010"},
		"name":           {"a", "a", "A"},
	} {
		for _, n := range []int{1, 400} { // few rows go another way than many
			if n > 1 && typ != "citext" {
				continue
			}
			for name, cfg := range map[string]postgres.TableConfig{
				"insert": {Write: postgres.WriteInsert},
				"upsert": {Write: postgres.WriteUpsert},
				"patch":  {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
				"sum":    {Write: postgres.WriteUpsert, Combine: []string{"v"}},
				"mirror": {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "value.v", Deleted: "gone"},
			} {
				t.Run(fmt.Sprint(typ, " ", name, " ", n), func(t *testing.T) {
					cfg.Table, cfg.Columns = "s", map[string]string{"id": "value.id", "part": "value.part", "v": "value.v"}
					b := newTableBench(t, `CREATE EXTENSION citext; CREATE TABLE s (id `+typ+`, part int, v int, gone timestamptz, pad int, PRIMARY KEY (id, part))`, cfg)
					row := func(spelling, part, v int) string {
						return fmt.Sprintf(`={"id":%q,"part":%d,"v":%d}`, spellings[spelling], part, v)
					}
					var first, second []string
					for i := range n {
						first = append(first, row(0, i, 1), row(2, i, 1))
						second = append(second, row(1, i, 2), row(1, i, 3))
					}
					b.want(b.send(first...), strings.Repeat("aa", n))
					got := tableOutcomes(b.send(second...))
					want := map[string]string{"insert": "dd"}[name]
					if want != "" && got != strings.Repeat(want, n) || want == "" && strings.Trim(got, "ao") != "" {
						t.Errorf("outcomes %.20s", got)
					}
					v := map[string]int{"insert": 1, "sum": 6}[name]
					if v == 0 {
						v = 3
					}
					if got, want := b.ask("SELECT count(*) || ' ' || sum(v) FROM s"), fmt.Sprintf("%d %d", 2*n, n*(v+1)); got != want {
						t.Errorf("rows %s, want %s", got, want)
					}
				})
			}
		}
	}
}

// zooDDL has what tables of PostgreSQL can have, all in one.
const zooDDL = `CREATE EXTENSION citext; CREATE EXTENSION hstore;
	CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (x int, y text); CREATE DOMAIN pos AS int CHECK (VALUE > 0);
	CREATE SCHEMA "Sch ema"; CREATE TABLE "Sch ema"."select" (
		id bigint PRIMARY KEY, serial int GENERATED ALWAYS AS IDENTITY, twice bigint GENERATED ALWAYS AS (id * 2) STORED,
		m mood, ms mood[], p pair, ps pair[], d pos, ds pos[], r int4range, nr numrange, c citext, h hstore, b bytea, bs bytea[], f float8, n numeric, ns numeric[],
		u uuid, ip inet, j json, jb jsonb, t time, tz timetz, iv interval, ts timestamp, tstz timestamptz, da date, x xml, bi bit(3), deep int[][], mo money,
		pt point, tv tsvector, "CamelCase" text, "sixty_three_bytes_long_column_name_that_is_as_long_as_it_can_be" int DEFAULT 63)`

func TestAllKindsOfColumnsAreWrittenInEveryMode(t *testing.T) {
	t.Parallel()
	const value = `"id":%d,"m":"ok","ms":["sad",null],"p":"(1,\"a b\")","ps":["(1,a)"],"d":5,"ds":[1,2],"r":"[1,3)","nr":"(0.5,1]","c":"CaSe","h":"a=>1, b=>NULL","b":"AAEC","bs":["AA==",null],
		"f":"Infinity","n":"NaN","ns":[1.50,null],"u":"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11","ip":"::1","j":{"a": 1},"jb":{"b":[1,2]},"t":"10:00:00.000001","tz":"10:00+02","iv":"1 mon 2 days","ts":"2026-01-02T03:04:05",
		"tstz":"2026-01-02T03:04:05+02:00","da":"2026-02-28","x":"<a/>","bi":"101","deep":[[1,2],[3,4]],"mo":"12.34","pt":"(1,2)","tv":"'a' 'b'","CamelCase":"y"`
	const want = `{"b": "\\x000102", "c": "CaSe", "d": 5, "f": "Infinity", "h": {"a": "1", "b": null}, "j": {"a": 1}, "m": "ok", "n": "NaN", "p": {"x": 1, "y": "a b"}, "r": "[1,3)", "t": "10:00:00.000001", "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "x": "<a/>", "bi": "101", "bs": ["\\x00", null], "da": "2026-02-28", "ds": [1, 2], "id": 1, "ip": "::1", "iv": "1 mon 2 days", "jb": {"b": [1, 2]}, "mo": "$12.34", "ms": ["sad", null], "nr": "(0.5,1]", "ns": [1.50, null], "ps": [{"x": 1, "y": "a"}], "pt": "(1,2)", "ts": "2026-01-02T03:04:05", "tv": "'a' 'b'", "tz": "10:00:00+02", "deep": [[1, 2], [3, 4]], "tstz": "2026-01-02T01:04:05+00:00", "twice": 2, "serial": 1, "CamelCase": "y", "sixty_three_bytes_long_column_name_that_is_as_long_as_it_can_be": 63}`
	for name, cfg := range map[string]postgres.TableConfig{
		"append": {Write: postgres.WriteAppend},
		"insert": {Write: postgres.WriteInsert},
		"upsert": {Write: postgres.WriteUpsert},
		"patch":  {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		"mirror": {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete},
	} {
		for _, n := range []int{1, 150} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				t.Parallel()
				cfg := cfg
				cfg.Table = `"Sch ema"."select"`
				cfg.Columns = map[string]string{}
				for c := range strings.FieldsSeq(`id m ms p ps d ds r nr c h b bs f n ns u ip j jb t tz iv ts tstz da x bi deep mo pt tv CamelCase`) {
					cfg.Columns[c] = "value." + c
				}
				b := newTableBench(t, zooDDL, cfg)
				b.exec("SET timezone = 'UTC'; SET lc_monetary = 'C'")
				var ms []string
				for i := range n {
					ms = append(ms, fmt.Sprintf("k={"+value+"}", i+1))
				}
				b.want(b.send(ms...), strings.Repeat("a", n))
				got := b.ask(`SELECT to_jsonb(all_of)::text FROM "Sch ema"."select" all_of WHERE id = 1`)
				if got = strings.Replace(got, `"mo": "12.34"`, `"mo": "$12.34"`, 1); got != want {
					t.Errorf("%s", got)
				}
			})
		}
	}
}

func TestAMissingPartitionHaltsTheRoute(t *testing.T) {
	t.Parallel()
	for _, cfg := range []postgres.TableConfig{
		{Write: postgres.WriteAppend},
		{Write: postgres.WriteInsert},
		{Write: postgres.WriteUpsert},
		{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		{Write: postgres.WriteUpsert, Combine: []string{"v"}},
	} {
		cfg.Table = "s"
		b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE s1 PARTITION OF s FOR VALUES FROM (0) TO (10)`, cfg)
		b.want(b.send(`={"id":1,"v":1}`), "a")
		err := b.once(b.items(`{"id":2,"v":1}`, `{"id":11,"v":1}`))
		store := postgres.NewInboxStore(newPool(t, b.conn.Config().ConnString()), postgres.InboxConfig{})
		t.Cleanup(store.Close)
		if err == nil || store.Class(err) != inbox.ClassRoute {
			t.Errorf("%s: %v", cfg.Write, err)
		}
		b.exec("CREATE TABLE s2 PARTITION OF s FOR VALUES FROM (10) TO (20)")
		b.want(b.send(`={"id":2,"v":1}`, `={"id":11,"v":1}`), "aa")
	}
}

func TestRareKindsOfColumnsAreWrittenToo(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]postgres.TableConfig{
		"append":  {Write: postgres.WriteAppend},
		"insert":  {Write: postgres.WriteInsert},
		"upsert":  {Write: postgres.WriteUpsert},
		"patch":   {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		"combine": {Write: postgres.WriteUpsert, Combine: []string{"n"}},
		"mirror":  {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Table = "rare"
			conn := tableConnect(t, testenv.Postgres(t))
			virtual := "STORED"
			if v := conn.PgConn().ParameterStatus("server_version"); strings.HasPrefix(v, "18") {
				virtual = "VIRTUAL"
			}
			b := newTableBench(t, `CREATE EXTENSION ltree; CREATE DOMAIN few AS int[] CHECK (cardinality(VALUE) < 4); CREATE DOMAIN fewer AS few CHECK (VALUE[1] > 0);
				CREATE TYPE part AS (few few, at timestamptz); CREATE TYPE whole AS (part part, parts part[]);
				CREATE TABLE rare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int, mr int4multirange, tr tstzmultirange, path ltree, f fewer, fs few[], w whole, r tsrange,
					lseg lseg, bv varbit(5), b1 bit, mac macaddr8, j jsonpath, iv interval second(0), twice int GENERATED ALWAYS AS (n * 2) `+virtual+`)`, func() postgres.TableConfig {
				cfg.Columns = map[string]string{}
				for c := range strings.FieldsSeq("id n mr tr path f w r lseg bv b1 mac j iv") {
					cfg.Columns[c] = "value." + c
				}
				return cfg
			}())
			b.exec("SET timezone = 'UTC'")
			const value = `k={"id":%d,"n":1,"mr":"{[1,3),[5,9)}","tr":"{[2026-01-01 00:00:00+00,)}","path":"top.of.all","f":[1,2],"w":"(\"({1},2026-01-01)\",)","r":"empty","lseg":"[(0,0),(1,1)]","bv":"10101","b1":"1",
				"mac":"08:00:2b:01:02:03:04:05","j":"$.a","iv":"10.0 seconds"}`
			b.want(b.send(fmt.Sprintf(value, 1), fmt.Sprintf(value, 2), `k={"id":3,"f":[0],"n":1}`, `k={"id":4,"f":[1,2,3,4],"n":1}`, `k={"id":5,"bv":"101010","n":1}`), "aaxxx")
			const want = `{"f": [1, 2], "j": "$.\"a\"", "n": 1, "r": "empty", "w": {"part": {"at": "2026-01-01T00:00:00+00:00", "few": [1]}, "parts": null}, "b1": "1", "bv": "10101", "fs": null, "id": 2, "iv": "00:00:10", "mr": "{[1,3),[5,9)}", "tr": "{[\"2026-01-01 00:00:00+00\",)}", "mac": "08:00:2b:01:02:03:04:05", "lseg": "[(0,0),(1,1)]", "path": "top.of.all", "twice": 2}`
			if got := b.ask("SELECT to_jsonb(all_of)::text FROM rare all_of WHERE id = 2"); got != want {
				t.Error(got)
			}
		})
	}
}

func TestAViewIsRefusedWithTheTableUnderIt(t *testing.T) {
	t.Parallel()
	conn := tableConnect(t, testenv.Postgres(t))
	_, err := conn.PgConn().Exec(t.Context(), `CREATE TABLE s (id int PRIMARY KEY); CREATE VIEW v AS SELECT * FROM s; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO s VALUES (new.id); RETURN new; END';
		CREATE TRIGGER t INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION f()`).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var wrong *postgres.TableError
	if _, err := postgres.NewTable(t.Context(), conn, postgres.TableConfig{Table: "v", Write: postgres.WriteAppend}); !errors.As(err, &wrong) || wrong.Why != "it is a view" {
		t.Error(err)
	}
}

// Types that the server alone reads: what it would change without a word is refused.
func TestWhatTheServerWouldChangeIsRefused(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	setup := tableConnect(t, url)
	_, err := setup.PgConn().Exec(t.Context(), `CREATE EXTENSION hstore; CREATE TYPE span AS RANGE (subtype = timestamptz)`).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const dead = "dead"
	for typ, values := range map[string][][2]string{
		"money":       {{`1.25`, "$1.25"}, {`"1.250"`, "$1.25"}, {`1.005`, dead}, {`"1.005"`, dead}, {`"$1.25"`, "$1.25"}},
		"money[]":     {{`[1.25]`, "{$1.25}"}, {`[1.005]`, dead}},
		`"char"`:      {{`"a"`, "a"}, {`""`, ""}, {`"ab"`, dead}, {`"é"`, dead}},
		"oid":         {{`4294967295`, "4294967295"}, {`-1`, dead}, {`"-1"`, dead}, {`4294967296`, dead}},
		"xid":         {{`7`, "7"}, {`-1`, dead}},
		"xid8":        {{`"18446744073709551615"`, "18446744073709551615"}, {`-1`, dead}},
		"timetz":      {{`"10:00+02"`, "10:00:00+02"}, {`"24:00:00.000000-0330"`, "24:00:00-03:30"}, {`"21:59:59.999999Z"`, "21:59:59.999999+00"}, {`"10:00"`, dead}, {`"10:00:00.1234567Z"`, dead}, {`"now"`, dead}, {`100000`, dead}, {`"2026-01-01 10:00 Europe/Warsaw"`, dead}, {`"10:00 Europe/Warsaw"`, dead}},
		"timetz(1)":   {{`"10:00:00.40Z"`, "10:00:00.4+00"}, {`"10:00:00.44Z"`, dead}},
		"timetz[]":    {{`["10:00Z",null]`, "{10:00:00+00,NULL}"}, {`["10:00"]`, dead}},
		"interval":    {{`"PT1.5S"`, "00:00:01.5"}, {`"1 day 0.123456 s"`, "1 day 00:00:00.123456"}, {`"0.1234560 s"`, "00:00:00.123456"}, {`"0.1234567 s"`, dead}, {`"PT0,0000001S"`, dead}, {`5`, dead}, {`"5"`, dead}, {`" 5.5 "`, dead}, {`"1 mon -1 days"`, "1 mon -1 days"}},
		"interval(0)": {{`"90 s"`, "00:01:30"}, {`"1.0 s"`, "00:00:01"}, {`"1.5 s"`, dead}},
		"tstzrange": {
			{`"[2026-01-01 00:00:00+00,)"`, `["2026-01-01 00:00:00+00",)`},
			{`"(2026-01-01T02:00:00+02:00, infinity]"`, `("2026-01-01 00:00:00+00",infinity]`},
			{`"empty"`, "empty"},
			{`" EMPTY "`, "empty"},
			{`"[\"2026-01-01 00:00:00+00\",\"2026-01-02 00:00:00+00\")"`, `["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")`},
			{`"(,)"`, "(,)"},
			{`"[2026-01-01 00:00:00,)"`, dead},
			{`"[now,)"`, dead},
			{`"[2026-01-01 00:00:00.1234567+00,)"`, dead},
			{`"[01/02/2026,)"`, dead},
		},
		"span":           {{`"[2026-01-01 00:00:00+00,)"`, `["2026-01-01 00:00:00+00",)`}, {`"[2026-01-01 00:00:00,)"`, dead}},
		"tstzrange[]":    {{`["[2026-01-01 00:00:00+00,)"]`, `{"[\"2026-01-01 00:00:00+00\",)"}`}, {`["[2026-01-01 00:00:00,)"]`, dead}},
		"tstzmultirange": {{`"{[2026-01-01 00:00:00+00,2026-01-02 00:00:00+00), [2026-02-01 00:00:00Z,)}"`, `{["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00"),["2026-02-01 00:00:00+00",)}`}, {`"{}"`, "{}"}, {`"{[2026-01-01 00:00:00,)}"`, dead}},
		"tsrange":        {{`"[2026-01-01 00:00:00,)"`, `["2026-01-01 00:00:00",)`}, {`"[2026-01-01 00:00:00+05,)"`, dead}},
		"daterange":      {{`"[2026-01-01,2026-01-03]"`, "[2026-01-01,2026-01-04)"}, {`"[-infinity,2026-01-03)"`, "[-infinity,2026-01-03)"}, {`"[today,tomorrow)"`, dead}, {`"[2026-01-01 10:00,)"`, dead}, {`"[2026-01-03,2026-01-01)"`, dead}},
		"int4range":      {{`"[1,3]"`, "[1,4)"}, {`"[1.5,3]"`, dead}},
		"hstore":         {{`{"a":1,"b":2,"a":3}`, `"a"=>"3", "b"=>"2"`}},
	} {
		b := &tableBench{t: t, ctx: t.Context(), conn: setup}
		b.exec("DROP TABLE IF EXISTS s; CREATE TABLE s (id int PRIMARY KEY, v " + typ + "); SET lc_monetary = 'C'; SET timezone = 'America/New_York'; SET datestyle = 'SQL, DMY'")
		if b.table, err = postgres.NewTable(t.Context(), setup, postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert}); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			got := dead
			if items := b.send(fmt.Sprintf(`={"id":1,"v":%s}`, v[0])); items[0].Outcome != inbox.Dead {
				b.exec("SET timezone = 'UTC'; SET datestyle = 'ISO'")
				got = b.ask("SELECT v::text FROM s")
				b.exec("SET timezone = 'America/New_York'; SET datestyle = 'SQL, DMY'")
			}
			if got != v[1] {
				t.Errorf("%s %s is %s, want %s", typ, v[0], got, v[1])
			}
		}
	}
}

// Columns beyond the 64th are left out as the first are: for their default, or for what
// is stored.
func TestWideTablesLeaveOutAnyColumn(t *testing.T) {
	t.Parallel()
	const wide = 500
	var ddl, value strings.Builder
	for i := range wide {
		fmt.Fprintf(&ddl, ", c%d int NOT NULL DEFAULT 7", i)
		fmt.Fprintf(&value, `,"c%d":1`, i)
	}
	for name, cfg := range map[string]postgres.TableConfig{
		"append":  {Write: postgres.WriteAppend},
		"insert":  {Write: postgres.WriteInsert},
		"upsert":  {Write: postgres.WriteUpsert},
		"patch":   {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		"mirror":  {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Absent: postgres.AbsentKeep},
		"version": {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "value.id", Deleted: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Table = "s"
			b := newTableBench(t, "CREATE TABLE s (id int PRIMARY KEY, gone timestamptz"+ddl.String()+")", cfg)
			b.want(b.send(`={"id":1}`, `={"id":2`+value.String()+`}`, `={"id":3,"c3":3,"c499":4}`), "aaa")
			b.wantRows("concat_ws(',', id, c0, c3, c63, c64, c499)", "1,7,7,7,7,7 2,1,1,1,1,1 3,7,3,7,7,4")
			if cfg.Absent == postgres.AbsentKeep {
				b.want(b.send(`={"id":2,"c64":5}`, `={"id":2,"c499":6}`, `={"id":3,"c499":8}`), "aaa")
				b.wantRows("concat_ws(',', id, c0, c3, c63, c64, c499)", "1,7,7,7,7,7 2,1,1,1,5,6 3,7,3,7,7,8")
			}
		})
	}
	for i := range 20 {
		fmt.Fprintf(&ddl, ", d%d int NOT NULL DEFAULT 7", i)
	}
	conn := tableConnect(t, testenv.Postgres(t))
	if _, err := conn.Exec(t.Context(), "CREATE TABLE s (id int PRIMARY KEY"+ddl.String()+")"); err != nil {
		t.Fatal(err)
	}
	var wrong *postgres.TableError
	if _, err := postgres.NewTable(t.Context(), conn, postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert}); !errors.As(err, &wrong) {
		t.Errorf("more than can be left out: %v", err)
	}
}
