package cases_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/testenv"
)

// G17, G22: whatever a database or a role sets for its sessions, values are those that were sent.
func TestSettingsOfSessionsChangeNoValue(t *testing.T) {
	t.Parallel()
	want := ""
	for _, settings := range [][]string{
		nil,
		{"array_nulls = off"},
		{"client_encoding = LATIN1", "datestyle = German", "timezone = 'Asia/Kathmandu'", "standard_conforming_strings = off", "bytea_output = escape", "extra_float_digits = 0", "transform_null_equals = on"},
		{"search_path = pg_catalog", "default_transaction_isolation = serializable", "default_transaction_deferrable = on", "plan_cache_mode = force_generic_plan", "quote_all_identifiers = on", "row_security = off"},
	} {
		const columns = "s text, ss text[], i int[], b bytea, bs bytea[], n numeric, f float8, tz timestamptz, d date, tr tstzrange, iv interval, j jsonb, m mood, p pair, x xml"
		s := newScene(t, 1, `CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (x int, y text); CREATE TABLE a (id int, `+columns+`);
			CREATE TABLE k (id int PRIMARY KEY, `+columns+`); CREATE TABLE u (LIKE k INCLUDING ALL, CHECK (id < 90)); CREATE TABLE q (id int, s text, ss text[], b bytea, tz timestamptz)`)
		for _, set := range settings {
			s.exec("DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET " + strings.ReplaceAll(set, "'", "''") + "', current_database()); END $do$")
		}
		value := func(i int) string {
			return fmt.Sprintf(`{"id":%d,"mid":"m%[1]d","s":"é\\'łß\"\\\\n😀NULL","ss":["NULL",null,"a\\b","'","é"],"i":[1,null],"b":"\\x00ff5c27","bs":["/w==",null],"n":1.50,"f":0.1234567890123456,"tz":"2026-01-02T03:04:05Z",
				"d":"2026-02-01","tr":"[2026-02-01T00:00:00Z,)","iv":"P1Y2M3DT4H5M6.7S","j":{"a":"é\\n"},"m":"ok","p":{"x":1,"y":"é\"'\\"},"x":"<a>é</a>"}`, i)
		}
		s.send(value(1), value(2), value(2), value(95), `{"id":"x","mid":"é"}`)
		s.run(
			s.route("name: a", "consumer: TOPIC-a", "id: {fields: [value.mid]}", "to: {table: public.a, write: append}"),
			s.route("name: k", "consumer: TOPIC-k", "id: {fields: [value.id]}", "to: {table: public.k, write: insert}"),
			s.route("name: u", "consumer: TOPIC-u", "id: {position: true}", "to: {table: public.u, write: upsert}"),
			s.route("name: q", "consumer: TOPIC-q", "id: {fields: [value.mid]}", "to: {relation: {id: {type: int, from: value.id}, s: {type: text, from: value.s}, ss: {type: 'text[]', from: value.ss}, b: {type: bytea, from: value.b}, tz: {type: timestamptz, from: value.tz}}, "+
				"sql: 'INSERT INTO public.q SELECT id, s, ss, b, tz FROM batch'}"),
		)
		s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END $$")
		s.db.Reset()
		got := ""
		for _, table := range []string{"a", "k", "u", "q"} {
			got += s.ask("SELECT string_agg(to_jsonb(t)::text, E'\n' ORDER BY id) FROM "+table+" t") + "\n"
		}
		got += s.ask(`SELECT string_agg(right(consumer, 1) || "offset" || class, ', ' ORDER BY consumer, "offset") FROM semel.dead_letter`)
		if want == "" {
			want = got
		}
		if got != want || strings.Count(got, "\n") != 11 {
			t.Errorf("%s:\n%s\nwant\n%s", settings, got, want)
		}
	}
}

// G20: a database of another encoding holds the characters that it has, and refuses the others one by one.
func TestADatabaseOfAnotherEncodingHoldsWhatItCan(t *testing.T) {
	t.Parallel()
	beside := newScene(t, 1, "")
	name := strings.ToLower("latin_" + beside.ask("SELECT current_database()"))
	beside.exec("CREATE DATABASE " + name + " ENCODING LATIN1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	t.Cleanup(func() { beside.exec("DROP DATABASE " + name + " WITH (FORCE)") })
	u, err := url.Parse(beside.url)
	must(t, err)
	u.Path = "/" + name
	s := makeScene(t, testenv.Brokers(t), testenv.Topic(t, 1), u.String(), `CREATE TABLE t (id int PRIMARY KEY, s text UNIQUE, j jsonb, "ß" varchar(1))`)
	s.send(`{"id":1,"s":"é","j":{"k":"\u00e9é"},"ß":"ü"}`, `{"id":2,"s":"ł"}`, `{"id":3,"j":{"k":"\u0142"}}`, `{"id":4,"s":"é"}`, `{"id":5,"s":"\u00e9e"}`)
	s.produce(&kgo.Record{Key: []byte("日本"), Value: []byte(`{"id":"日本"}`), Headers: []kgo.RecordHeader{{Key: "日本", Value: []byte("ł")}}})
	s.run(s.route("id: {position: true}", "to: {table: t, write: insert}"))
	s.want(`SELECT string_agg(concat_ws(' ', id, s, octet_length(s), j, "ß"), ', ' ORDER BY id) FROM t`, `1 é 1 {"k": "éé"} ü, 5 ée 2`)
	if got, want := s.dead(), "0/1 value 22P05, 0/2 value 22P05, 0/3 constraint 23505, 0/5 value"; got != want {
		t.Errorf("dead %s\nwant %s", got, want)
	}
	s.want(`SELECT encode(value, 'escape') FROM semel.dead_letter WHERE "offset" = 1`, `{"id":2,"s":"\305\202"}`)
}
