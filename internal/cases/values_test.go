package cases_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// value is a JSON literal on its way into a column, and the text that PostgreSQL gives back; dead: it is refused.
type value struct{ column, json, want string }

const dead = "dead"

// bothWays sends each value in a message of its own and looks at it again, where rows go straight in and where they go
// through a temporary table.
func bothWays(t *testing.T, columns string, values []value, before func(*scene), more ...string) {
	for _, write := range []string{"append", "upsert"} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			ddl := "CREATE TABLE v (no int PRIMARY KEY, " + columns + ")"
			if strings.Contains(columns, "hstore") {
				ddl = "CREATE EXTENSION hstore; " + ddl
			}
			s := newScene(t, 1, ddl)
			if before != nil {
				before(s)
			}
			for i, v := range values {
				s.send(fmt.Sprintf(`{"no": %d, %q: %s}`, i, v.column, v.json))
			}
			began := time.Now()
			s.run(s.route("id: {position: true}", fmt.Sprintf("to: {table: v, write: %s%s}", write, strings.Join(append([]string{""}, more...), ", "))))
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			var refused int
			for i, v := range values {
				got := s.ask(fmt.Sprintf(`SELECT CASE WHEN EXISTS (SELECT FROM v WHERE no = %d) THEN (SELECT coalesce(%q::text, 'NULL') FROM v WHERE no = %d)
					ELSE (SELECT 'dead' || CASE WHEN class IN ('value', 'decode') THEN '' ELSE ' ' || class END FROM semel.dead_letter WHERE "offset" = %d) END`, i, v.column, i, i))
				if got != v.want {
					t.Errorf("%s %s is %.60s, want %.60s", v.column, v.json, got, v.want)
				}
				if v.want == dead {
					refused++
				}
			}
			s.want("SELECT count(*) FROM semel.dead_letter", fmt.Sprint(refused))
			s.sums()
		})
	}
}

// G21: digits are exact or refused.
func TestNumbersAreExactOrRefused(t *testing.T) {
	t.Parallel()
	n28 := "1234567890123456789012345678"
	bothWays(t, "big bigint, i int, small smallint, n numeric, fixed numeric(38,10), money numeric(10,2), f8 float8, f4 real, s text, j jsonb, b boolean", []value{
		{"big", "9007199254740993", "9007199254740993"},
		{"big", "-9007199254740993", "-9007199254740993"},
		{"big", "812345678901234567", "812345678901234567"},
		{"big", "9223372036854775807", "9223372036854775807"},
		{"big", "-9223372036854775808", "-9223372036854775808"},
		{"big", "9223372036854775808", dead},
		{"big", "-9223372036854775809", dead},
		{"big", "18446744073709551616", dead}, // 0 in 64 bits
		{"big", "1e3", "1000"},
		{"big", "1E+3", "1000"},
		{"big", "12.0", "12"},
		{"big", "9007199254740993.0", "9007199254740993"},
		{"big", "900719925474099.3e1", "9007199254740993"},
		{"big", "1.5", dead},
		{"big", "9007199254740993.5", dead},
		{"big", "1e-1", dead},
		{"big", "1e19", dead},
		{"big", "1e400", dead},
		{"big", "1e999999999", dead},
		{"big", "1e-999999999", dead},
		{"big", "1e99999999999999999999", dead},
		{"big", "0e999999999", "0"},
		{"big", "-0", "0"},
		{"big", `"9007199254740993"`, "9007199254740993"},
		{"big", `"9223372036854775808"`, dead},
		{"big", `""`, dead},
		{"big", `" 1"`, dead},
		{"big", `"0x10"`, dead},
		{"big", `"1_000"`, dead},
		{"big", `"NaN"`, dead},
		{"big", "true", dead},
		{"big", "[1]", dead},
		{"big", "null", "NULL"},
		{"i", "2147483647", "2147483647"},
		{"i", "-2147483648", "-2147483648"},
		{"i", "2147483648", dead},
		{"i", "4294967297", dead}, // 1 in 32 bits
		{"i", "1.5", dead},
		{"i", "0.1e1", "1"},
		{"small", "32767", "32767"},
		{"small", "32768", dead},
		{"small", "65537", dead},
		{"n", "0.1", "0.1"},
		{"n", "1.10", "1.10"},
		{"n", "0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"},
		{"n", "1e400", "1" + strings.Repeat("0", 400)},
		{"n", "1e-400", "0." + strings.Repeat("0", 399) + "1"},
		{"n", "1e131072", dead},
		{"n", "1e-16384", dead},
		{"n", "1e999999999", dead},
		{"n", "1e-999999999", dead},
		{"n", `"1e999999999"`, dead},
		{"n", `"12345678901234567890.5"`, "12345678901234567890.5"},
		{"n", `""`, dead},
		{"fixed", n28 + ".0123456789", n28 + ".0123456789"},
		{"fixed", "-" + n28 + ".0123456789", "-" + n28 + ".0123456789"},
		{"fixed", "0.0000000001", "0.0000000001"},
		{"fixed", "0.00000000001", dead},
		{"fixed", "1" + n28, dead},
		{"fixed", "1e27", "1" + strings.Repeat("0", 27) + ".0000000000"},
		{"fixed", "1e28", dead},
		{"money", "99999999.99", "99999999.99"},
		{"money", "99999999.995", dead},
		{"money", "0.005", dead},
		{"money", "1.230", "1.23"},
		{"f8", "0.1", "0.1"},
		{"f8", "1e308", "1e+308"},
		{"f8", "1e309", dead},
		{"f8", "1e400", dead},
		{"f8", "1e999999999", dead},
		{"f4", "1e39", dead},
		{"s", "12345678901234567890.10", "12345678901234567890.10"},
		{"s", "1e999999999", "1e999999999"},
		{"j", `{"a": 9007199254740993, "b": [0.1000000000000000055511151231257827]}`, `{"a": 9007199254740993, "b": [0.1000000000000000055511151231257827]}`},
		{"j", "9223372036854775808", "9223372036854775808"},
		{"j", "1e999999999", dead},
		{"j", `{"deep": [1e999999999]}`, dead},
		{"b", "1", dead},
		{"b", `"maybe"`, dead},
		{"big", "7", "7"}, // whatever came before
	}, nil)
}

// G21: not only columns: numbers in IDs, keys, versions and headers are compared digit by digit too.
func TestNeighboursBeyond53BitsAreDifferentNumbers(t *testing.T) {
	t.Parallel()
	for name, to := range map[string][]string{
		"ID, in the inbox":   {"id: {fields: [value.id]}", "to: {table: v, write: append}"},
		"ID, in the target":  {"id: {fields: [value.id]}", "to: {table: v, write: insert}"},
		"key of an upsert":   {"id: {position: true}", "to: {table: v, write: upsert}"},
		"version":            {"id: {position: true}", "to: {table: v, write: upsert, version: value.id, columns: {id: value.id, at: value.id, no: partition}, primary_key: [no]}"},
		"the message's key":  {"id: {key: true}", "to: {table: v, write: insert, columns: {id: key}}"},
		"key that is JSON":   {"from: {topics: [TOPIC], key_format: json}", "id: {position: true}", "to: {table: v, write: insert, columns: {id: key.id}}"},
		"header":             {"id: {header: n}", "to: {table: v, write: insert, columns: {id: headers.n}}"},
		"numeric as its key": {"id: {fields: [value.id]}", "to: {table: n, write: insert}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE v (id bigint PRIMARY KEY, at bigint, no int UNIQUE); CREATE TABLE n (id numeric PRIMARY KEY)")
			ids := []string{"9007199254740992", "9007199254740993", "9223372036854775806", "9223372036854775807"}
			for range 2 {
				for _, id := range ids {
					r := &kgo.Record{Key: []byte(id), Value: []byte(`{"id":` + id + `}`), Headers: []kgo.RecordHeader{{Key: "n", Value: []byte(id)}}}
					if strings.Contains(name, "JSON") {
						r.Key = []byte(`{"id":` + id + `}`)
					}
					s.produce(r)
				}
			}
			s.run(s.route(to...))
			got := s.ask("SELECT string_agg(id::text, ' ' ORDER BY id) FROM (SELECT id FROM v UNION ALL SELECT id FROM n) x")
			want := strings.Join(ids, " ")
			if name == "version" {
				want = ids[3]
				s.want("SELECT stale FROM semel.watermark", "4")
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			s.want("SELECT count(*) FROM semel.dead_letter", "0")
		})
	}
}

// G23: what is no number and no instant is stored as such or refused, and never becomes null, 0 or "".
func TestInfinityAndNaNAreKeptOrRefused(t *testing.T) {
	t.Parallel()
	values := []value{
		{"big", `"NaN"`, dead},
		{"big", `"Infinity"`, dead},
		{"big", `"-Infinity"`, dead},
		{"fixed", `"Infinity"`, dead},
		{"fixed", `"NaN"`, "NaN"},
		{"b", `"infinity"`, dead},
		{"u", `"infinity"`, dead},
		{"tod", `"infinity"`, dead},
		{"by", `"NaN"`, dead},
		{"f8", "NaN", dead},
		{"n", "Infinity", dead},
		{"n", "-Infinity", dead}, // no JSON at all
		{"f8", `"nano"`, dead},
		{"n", `"infin"`, dead},
		{"tz", `"infinit"`, dead},
		{"tz", `""`, dead},
		{"d", `""`, dead},
		{"f8", `""`, dead},
		{"n", `""`, dead},
		{"ts", `"-"`, dead},
		{"tz", `"now"`, dead},
		{"d", `"today"`, dead},
		{"tz", `"epoch"`, dead},
		{"s", `"NaN"`, "NaN"},
		{"j", `"NaN"`, `"NaN"`},
		{"s", `""`, ""},
		{"tzs", `["infinity","2026-01-01T00:00:00Z"]`, `{infinity,"2026-01-01 00:00:00+00"}`},
		{"f8s", `["NaN",1]`, "{NaN,1}"},
	}
	for _, c := range []string{"tz", "ts", "d"} {
		values = append(values, value{c, `"infinity"`, "infinity"}, value{c, `"-infinity"`, "-infinity"}, value{c, `"Infinity"`, "infinity"}, value{c, "null", "NULL"})
	}
	for _, c := range []string{"f8", "f4", "n"} {
		values = append(values, value{c, `"NaN"`, "NaN"}, value{c, `"Infinity"`, "Infinity"}, value{c, `"-Infinity"`, "-Infinity"})
	}
	bothWays(t, "big bigint, fixed numeric(10,2), n numeric, f8 float8, f4 real, tz timestamptz, ts timestamp, d date, tod time, b boolean, u uuid, by bytea, s text, j jsonb, tzs timestamptz[], f8s float8[]",
		values, func(s *scene) {
			s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = UTC', current_database()); END $$")
			s.db.Reset()
		})
}

// G20: U+0000 has no place in text and jsonb: the message follows the named rule, wherever it stands, and its
// neighbours are kept.
func TestNULFollowsItsRule(t *testing.T) {
	t.Parallel()
	cases := []struct{ column, value, key, header, stripped string }{
		{column: "s", value: `"s":"A\u0000da"`, stripped: "Ada"},
		{column: "s", value: `"s":"\u0000"`, stripped: ""},
		{column: "s", value: `"s":"\u0000a\ud800b\u0000"`, stripped: "ab"},
		{column: "short", value: `"short":"A\u0000da"`, stripped: "Ada"},
		{column: "list", value: `"list":["x","A\u0000da"]`, stripped: "{x,Ada}"},
		{column: "j", value: `"j":{"a":["A\u0000da"]}`, stripped: `{"a": ["Ada"]}`},
		{column: "j", value: `"j":{"x":{"A\u0000da":1}}`, stripped: `{"x": {"Ada": 1}}`},
		{column: "j", value: `"j":"\u0000"`, stripped: `""`},
		{column: "k", key: "A\x00da", stripped: "Ada"},
		{column: "h", header: "A\x00da", stripped: "Ada"},
	}
	for _, rule := range []string{"dead-letter", "strip"} {
		for _, write := range []string{"append", "insert", "upsert"} {
			t.Run(rule+" "+write, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, "CREATE TABLE n (id int PRIMARY KEY, s text, short varchar(3), list text[], j jsonb, k text, h text)")
				var ids []string
				for i, c := range cases {
					good := func(id int) *kgo.Record {
						return &kgo.Record{Key: []byte("k"), Value: fmt.Appendf(nil, `{"id":%d}`, id), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("h")}}}
					}
					bad := good(3*i + 1)
					if c.value != "" {
						bad.Value = fmt.Appendf(nil, `{"id":%d,%s}`, 3*i+1, c.value)
					}
					if c.key != "" {
						bad.Key = []byte(c.key)
					}
					if c.header != "" {
						bad.Headers[0].Value = []byte(c.header)
					}
					s.produce(good(3*i), bad, good(3*i+2))
				}
				// Looks like it and isn't: an escaped backslash; and the JSON text of an object.
				s.send(`{"id":100,"s":"A\\u0000da"}`, `{"id":101,"s":{"a":"A\u0000da"}}`)
				s.run(s.route("id: {position: true}", "to: {table: n, write: "+write+
					", on_nul: "+rule+", columns: {id: value.id, s: value.s, short: value.short, list: value.list, j: value.j, k: key, h: headers.h}}"))
				s.want("SELECT string_agg(s, ' ' ORDER BY id) FROM n WHERE id >= 100", `A\u0000da {"a":"A\u0000da"}`)
				if rule == "strip" {
					for i, c := range cases {
						s.want(fmt.Sprintf("SELECT %s FROM n WHERE id = %d", c.column, 3*i+1), c.stripped)
					}
					s.want("SELECT count(*) FROM n", fmt.Sprint(3*len(cases)+2))
					s.want("SELECT count(*) FROM semel.dead_letter", "0")
					return
				}
				for i := range cases {
					ids = append(ids, fmt.Sprintf("0/%d value", 3*i+1))
				}
				s.want("SELECT count(*) FROM n WHERE id % 3 <> 1 AND id < 100", fmt.Sprint(2*len(cases)))
				if got, want := s.dead(), strings.Join(ids, ", "); got != want {
					t.Errorf("dead %s\nwant %s", got, want)
				}
				// Byte for byte in the dead letter.
				s.want(`SELECT encode(value, 'escape') FROM semel.dead_letter ORDER BY "offset" LIMIT 1`, `{"id":1,"s":"A\\u0000da"}`)
				s.want(`SELECT encode(key, 'escape') FROM semel.dead_letter WHERE "offset" = 25`, `A\000da`)
			})
		}
	}
}

// G20: where U+0000 stands in what identifies a message, or in the name of nothing that is mapped.
func TestNULInIDsAndUnmappedFields(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE n (id text PRIMARY KEY, v text)")
	name, err := json.Marshal("un\x00mapped")
	must(t, err)
	s.send(`{"id":"a"}`, `{"id":"b\u0000"}`, fmt.Sprintf(`{"id":"c",%s:"x\u0000"}`, name), `{"id":"b"}`, `{"id":"b\u0000"}`)
	s.run(s.route("id: {fields: [value.id]}", "to: {table: n, write: insert}"))
	s.want("SELECT string_agg(id, ' ' ORDER BY id) FROM n", "a b c")
	if n := s.count("semel.dead_letter"); n < 1 || n > 2 {
		t.Errorf("%d dead letters: %s", n, s.dead())
	}
}

// G17: types that users made have OIDs of this database alone. They are written in bulk, and again when the same types
// have other OIDs, without a restart; a label that isn't one is that message's own fault.
func TestTypesOfUsersAreWrittenInBulkWhateverTheirOIDs(t *testing.T) {
	t.Parallel()
	const types = `CREATE TYPE kind AS ENUM ('a', 'b'); CREATE DOMAIN price AS numeric(12, 2) CHECK (VALUE >= 0); CREATE DOMAIN labels AS kind[];
		CREATE TYPE pair AS (k kind, n price);`
	const table = `(id int PRIMARY KEY, k kind, p price, c citext, ks kind[], ls labels, r pair)`
	for _, write := range []string{"append", "insert", "upsert", "mirror"} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE EXTENSION citext; "+types+"CREATE TABLE t "+table)
			row := func(i int, k string) string {
				return fmt.Sprintf(`{"id":%d,"k":%q,"p":%d.25,"c":"Ab","ks":["a","b"],"ls":["b"],"r":"(a,1.5)"}`, i, k, i)
			}
			send := func(from int, bad string) {
				values := numbered(50, func(i int) string { return row(from+i, []string{"a", "b"}[i%2]) })
				values[20] = row(from+20, bad)
				s.send(values...)
			}
			send(0, "c")
			r := s.start(s.route("id: {position: true}", "to: {table: t, write: "+write+"}", "batch: {messages: 25}"))
			until(t, "the first ones are settled", func() bool { return s.watermark(0) == 50 })
			was := s.ask("SELECT oid FROM pg_type WHERE typname = 'kind'")
			// What a restored dump leaves: all the names, and other OIDs behind them.
			s.exec(`BEGIN; ALTER TABLE t RENAME TO old; ALTER INDEX t_pkey RENAME TO old_pkey; ALTER TYPE kind RENAME TO old_kind; ALTER DOMAIN price RENAME TO old_price;
				ALTER DOMAIN labels RENAME TO old_labels; ALTER TYPE pair RENAME TO old_pair; ` + types + ` CREATE TABLE t ` + table + `;
				INSERT INTO t SELECT id, k::text::kind, p, c, ks::text[]::kind[], ls::text[]::labels, r::text::pair FROM old; DROP TABLE old; DROP DOMAIN old_labels; DROP TYPE old_pair, old_kind; DROP DOMAIN old_price; COMMIT`)
			if is := s.ask("SELECT oid FROM pg_type WHERE typname = 'kind'"); is == was {
				t.Fatal("the types have the OIDs that they had: the fault didn't fire")
			}
			send(50, "d")
			until(t, "the next ones are settled", func() bool { return s.watermark(0) == 100 })
			s.exec("ALTER TYPE kind ADD VALUE 'e'") // and a label that is new is one
			s.send(row(100, "e"))
			until(t, "the last one is settled", func() bool { return s.watermark(0) == 101 })
			r.alive()
			r.stop()
			s.want("SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE p = id + 0.25 AND c = 'aB' AND ks = '{a,b}' AND ls = '{b}' AND r = ROW('a', 1.5)::pair), max(k)) FROM t", "99 99 e")
			if got := s.dead(); got != "0/20 value 22P02, 0/70 value 22P02" {
				t.Errorf("dead: %s: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
			}
		})
	}
}

// What Debezium and Connect's converters write, where no schema says what it is.
func TestFormsOfConnectorsAreRead(t *testing.T) {
	t.Parallel()
	bothWays(t, "b1 bit, bs bit[], h hstore, iv interval, n numeric, f float8, d date, t time, ts timestamp, tz timestamptz", []value{
		{"b1", "true", "1"},
		{"b1", "false", "0"},
		{"b1", `"1"`, "1"},
		{"bs", "[true, false, null]", "{1,0,NULL}"},
		{"h", `{"a": "1", "b": null, "q\"x\\": "y z", "n": 1.50, "t": true}`, `"a"=>"1", "b"=>NULL, "n"=>"1.50", "t"=>"true", "q\"x\\"=>"y z"`},
		{"h", `"{\"a\":\"1\",\"b\":null}"`, `"a"=>"1", "b"=>NULL`},
		{"h", `{}`, ""},
		{"h", `"a=>1"`, `"a"=>"1"`},
		{"h", `{"a": {"b": 1}}`, dead},
		{"h", `{"a": "\u0000"}`, dead},
		{"iv", "86400000000", dead}, // microseconds or seconds?
		{"iv", `"P1Y2M3DT4H5M6.789S"`, "1 year 2 mons 3 days 04:05:06.789"},
		{"n", `"POSITIVE_INFINITY"`, "Infinity"},
		{"f", `"NEGATIVE_INFINITY"`, "-Infinity"},
		{"d", `"-0043-03-15"`, "0044-03-15 BC"},
		{"d", `"0000-02-29"`, "0001-02-29 BC"},
		{"d", `"-4713-11-24"`, "4714-11-24 BC"},
		{"d", `"-4713-11-23"`, dead},
		{"d", `"+12026-01-01"`, "12026-01-01"},
		{"d", `"-2147472692-01-01"`, dead},
		{"d", `"--0043-03-15"`, dead},
		{"d", `"2026-03-29Z"`, "2026-03-29"},
		{"d", `"2026-03-29+02"`, dead},
		{"t", `"23:59:59.999999Z"`, "23:59:59.999999"},
		{"t", `"23:59:59+01"`, dead},
		{"ts", `"-0043-03-15T12:00:00Z"`, "0044-03-15 12:00:00 BC"},
		{"tz", `"-0043-03-15T12:00:00.000000Z"`, "0044-03-15 12:00:00+00 BC"},
	}, func(s *scene) {
		s.exec("ALTER DATABASE " + s.ask("current_database()") + " SET timezone = 'UTC'")
		s.db.Reset()
	}, "times: {zone: UTC}")
}

// An object goes into a composite column by the names of its attributes, as exact as into columns of their types.
func TestObjectsGoIntoCompositeColumns(t *testing.T) {
	t.Parallel()
	const types = `CREATE TYPE coin AS (amount numeric(20,4), "Unit" text); CREATE TYPE entry AS (no bigint, price coin, at timestamptz, tags text[], doc jsonb);
		CREATE DOMAIN priced AS coin CHECK ((VALUE).amount >= 0);`
	for _, write := range []string{"append", "upsert"} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, types+"CREATE TABLE v (id int PRIMARY KEY, l entry, ls coin[], p priced)")
			s.send(
				`{"id":0,"l":{"no":9007199254740993,"price":{"Unit":"a \"b\", (c) \\d","amount":1234567890123456.7891},"at":"2026-01-02T03:04:05.000006Z","tags":["x,y",null,"\""],"doc":{"k":[1,"\"'"]}}}`,
				`{"id":1,"l":{"price":null},"ls":[{"amount":1},null,{"Unit":""}],"p":{"amount":0,"Unit":"EUR"}}`,
				`{"id":2,"l":"(7,\"(1.5,EUR)\",,,)","ls":[],"p":null}`,
				`{"id":3,"l":{"no":1.5}}`,                        // rounded
				`{"id":4,"l":{"nu":1}}`,                          // no such attribute
				`{"id":5,"ls":[{"amount":0.00001}]}`,             // more digits than it keeps
				`{"id":6,"p":{"amount":-1}}`,                     // its domain says no
				`{"id":7,"l":{},"ls":[{}],"p":{"amount":"2.5"}}`, // all of it null, and a number in a text
			)
			s.run(s.route("id: {position: true}", "to: {table: v, write: "+write+"}"))
			s.want("SELECT (l).no || ' ' || ((l).price).amount || ' ' || ((l).price).\"Unit\" || ' ' || ((l).at AT TIME ZONE 'UTC') || ' ' || (l).tags::text || ' ' || (l).doc FROM v WHERE id = 0",
				`9007199254740993 1234567890123456.7891 a "b", (c) \d 2026-01-02 03:04:05.000006 {"x,y",NULL,"\""} {"k": [1, "\"'"]}`)
			s.want("SELECT string_agg(concat_ws(' ', id, coalesce(l::text, 'NULL'), coalesce(ls::text, 'NULL'), coalesce(p::text, 'NULL')), '; ' ORDER BY id) FROM v WHERE id > 0",
				`1 (,,,,) {"(1.0000,)",NULL,"(,\"\")"} (0.0000,EUR); 2 (7,"(1.5000,EUR)",,,) {} NULL; 7 (,,,,) {"(,)"} (2.5000,)`)
			if got := s.dead(); got != "0/3 value, 0/4 value, 0/5 value, 0/6 constraint 23514" {
				t.Errorf("dead: %s: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
			}
		})
	}
}
