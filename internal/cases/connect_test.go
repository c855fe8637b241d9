//go:build connect

package cases_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

// carried is a value of a source on its way through Debezium: what stands in Semel's table when its events come with their
// schema, and when they come without it (as texts in ISO 8601). "" is what the source has, "x|y" is x of a snapshot and y
// of a change, dead is a dead letter.
type carried struct{ column, sql, with, without string }

var zoo = []carried{
	{"small smallint", "-32768", "", ""},
	{"big bigint", "9007199254740993", "", ""},
	{"fixed numeric(38,10)", "1234567890123456789012345678.0123456789", "", ""},
	{"fixed numeric(38,10)", "-0.0000000001", "", ""},
	{"fixed numeric(38,10)", "'NaN'", "NULL", ""},
	{"free numeric", "12345678901234567890.5", "", ""},
	{"free numeric", "1e30", "", ""},
	{"free numeric", "1.10", "1.1", ""},
	{"free numeric", "'NaN'", "NULL", ""},
	{"free numeric", "'-Infinity'", "NULL", ""},
	{"cash money", "'-1234567.89'", "", ""},
	{"r real", "0.1", "", ""},
	{"r real", "'NaN'", "", ""},
	{"d double precision", "5e-324", "", ""},
	{"d double precision", "'-Infinity'", "", ""},
	{"b boolean", "false", "", ""},
	{"c char(5)", "'ab'", "", ""},
	{"vc varchar(10)", "'zażółć'", "", ""},
	{"t text", `E'a"b\\c\nd\te😀'`, "", ""},
	{"t text", "''", "", ""},
	{"bin bytea", `'\x00ff10'`, "", ""},
	{"bin bytea", `'\x'`, "", ""},
	{"bit1 bit", "B'1'", "", ""},
	{"bits bit(12)", "B'000000000001'", "", dead},
	{"vb varbit(20)", "B'0001'", "00000000000000000001", dead},
	{"day date", "'2026-03-29'", "", ""},
	{"day date", "'9999-12-31'", "", ""},
	{"day date", "'0044-03-15 BC'", "0044-03-15|", "0044-03-15|"},
	{"day date", "'1582-10-10'", "1582-10-20|", "1582-10-20|"},
	{"day date", "'infinity'", dead, dead},
	{"clock time", "'23:59:59.999999'", "", ""},
	{"clock time", "'24:00:00'", "", "00:00:00"},
	{"clock3 time(3)", "'23:59:59.999'", "", ""},
	{"clockz timetz", "'23:59:59.999999+02'", "21:59:59.999999+00", "21:59:59.999999+00"},
	{"ts timestamp", "'2026-03-29 02:30:00.123456'", "", ""},
	{"ts timestamp", "'1969-12-31 23:59:59.999999'", "", ""},
	{"ts timestamp", "'0044-03-15 12:00:00 BC'", "", ""},
	{"ts timestamp", "'infinity'", "", "294247-01-10 04:00:25.2"},
	{"ts timestamp", "'-infinity'", "", dead},
	{"ts3 timestamp(3)", "'2026-03-29 02:30:00.123'", "", ""},
	{"ts3 timestamp(3)", "'infinity'", "", "294247-01-10 04:00:25.2"},
	{"tz timestamptz", "'2026-03-29 02:30:00.123456+01'", "", ""},
	{"tz timestamptz", "'0044-03-15 12:00:00+00 BC'", "", ""},
	{"tz timestamptz", "'-infinity'", "", ""},
	{"iv interval", "'1 year 2 mons 3 days 04:05:06.789'", "10303:05:06.789", ""},
	{"iv interval", "'01:00:00'", "", ""},
	{"u uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "", ""},
	{"ip inet", "'10.0.0.1/8'", "", ""},
	{"net cidr", "'10.0.0.0/8'", "", ""},
	{"mac macaddr", "'08:00:2b:01:02:03'", "", ""},
	{"j json", `'{"b": 1, "a": [1.10, null]}'`, "", `"{\"b\": 1, \"a\": [1.10, null]}"`},
	{"jb jsonb", `'{"b": 9007199254740993, "a": [1.10, null]}'`, "", `"{\"a\": [1.10, null], \"b\": 9007199254740993}"`},
	{"jb jsonb", "'null'", "NULL", `"null"`},
	{"x xml", "'<a>b</a>'", "", ""},
	{"pt point", "'(1.5,-2)'", "", dead},
	{"ir int4range", "'[1,10)'", "", ""},
	{"nr numrange", "'[1.5,2.5]'", "", ""},
	{"tr tstzrange", "'[2026-01-01 00:00+00,infinity)'", "", ""},
	{"tv tsvector", "'a:1 b:2'", "", ""},
	{"ci citext", "'MiXed'", "", ""},
	{"hs hstore", `'a=>1, b=>NULL, "q\"x"=>"y z"'`, "", ""},
	{"m mood", "'so so'", "", ""},
	{"pos positive", "12.50", "", ""},
	{"ints integer[]", "'{1,2,NULL}'", "", ""},
	{"ints integer[]", "'{{1,2},{3,4}}'", "{NULL,NULL}", "{NULL,NULL}"},
	{"texts text[]", `ARRAY['a,b', '"q"', NULL, '']`, "", ""},
	{"ns numeric(10,2)[]", "'{1.10,-2.00,NULL}'", "", ""},
	{"tss timestamp[]", "'{2026-01-01 00:00:00.123456}'", "", ""},
	{"days date[]", "'{2026-01-01}'", "|{NULL}", "|{NULL}"},
	{"us uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "", ""},
	{"ms mood[]", "'{ok,\"so so\"}'", "", ""},
	{"jbs jsonb[]", `ARRAY['{"a": 1}'::jsonb, '[]']`, "", `{"\"{\\\"a\\\": 1}\"","\"[]\""}`},
	{"bins bytea[]", `ARRAY['\x00ff'::bytea]`, "|{\"\\\\x5c7830306666\"}", "|{\"\\\\x5c7830306666\"}"},
	{"p pair", "ROW(1,'x')", "NULL", "NULL"},
}

const changes = 1000 // zoo's rows above it were inserted while the connector ran

func (c carried) name() string { return strings.Fields(c.column)[0] }

const zooTypes = `CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE TYPE mood AS ENUM ('ok', 'so so');
	CREATE DOMAIN positive AS numeric(10,2) CHECK (VALUE > 0); CREATE TYPE pair AS (a int, b text);`

// zooTable makes a table with the columns of zoo, each once.
func zooTable() string {
	columns := []string{"id int PRIMARY KEY", "note text"}
	for _, c := range zoo {
		if !slices.Contains(columns, c.column) {
			columns = append(columns, c.column)
		}
	}
	return "CREATE TABLE zoo (" + strings.Join(columns, ", ") + ");"
}

// sunk is what Debezium's sink makes of zoo where that isn't what the source has; by a column's name, or name and value.
var sunk = map[string]string{
	"fixed 'NaN'":                            "NULL",
	"free 1.10":                              "1.1",
	"free 'NaN'":                             "NULL",
	"free '-Infinity'":                       "NULL",
	"r 'NaN'":                                "0",
	"d '-Infinity'":                          "0",
	"vb B'0001'":                             "00000000000000000001",
	"day '0044-03-15 BC'":                    "0044-03-15|",
	"day '1582-10-10'":                       "1582-10-20|",
	"day 'infinity'":                         "-infinity",
	"clockz '23:59:59.999999+02'":            "21:59:59.999999+00",
	"ts 'infinity'":                          "294247-01-10 04:00:25.2",
	"ts3 'infinity'":                         "294247-01-10 04:00:25.2",
	"iv '1 year 2 mons 3 days 04:05:06.789'": "10303:05:06.789",
	"ints '{{1,2},{3,4}}'":                   "{NULL,NULL}",
	"p":                                      "NULL",
	"clock":                                  fails, // of its values at 24:00:00
	"bit1":                                   fails, "pt": fails, "hs": fails, "ns": fails, "tss": fails, "days": fails, "ms": fails, "bins": fails,
}

const fails = "the sink's task fails"

func (c carried) sunk() string { return cmp.Or(sunk[c.name()], sunk[c.name()+" "+c.sql]) }

// wants are what may stand in a row; source is what the source has. A connector reads a row of its snapshot through JDBC
// and a change through the log, and what it does to a value may differ: which of them a row came by last is the
// connector's affair.
func wants(rule, source string) []string {
	snapshot, change, two := strings.Cut(rule, "|")
	if !two {
		change = snapshot
	}
	return []string{cmp.Or(snapshot, source), cmp.Or(change, source)}
}

// sourced is a source's server, with the databases of those who follow it.
type sourced struct {
	t            *testing.T
	pg           *devenv.Postgres
	port         string
	source, sink *pgx.Conn
	s            *scene // Semel's
	w            *worker
}

func newSourced(t *testing.T) *sourced {
	t.Helper()
	d := &sourced{t: t, pg: testenv.OwnPostgres(t, map[string]string{"wal_level": "logical"})}
	u, err := url.Parse(d.pg.URL())
	must(t, err)
	d.port = u.Port()
	server := d.connect("postgres")
	for _, name := range []string{"source", "copy", "mirror"} {
		for _, sql := range []string{"CREATE DATABASE " + name, "ALTER DATABASE " + name + " SET timezone = 'UTC'", "ALTER DATABASE " + name + " SET datestyle = 'ISO'"} {
			execOn(t, server, sql)
		}
	}
	d.source, d.sink = d.connect("source"), d.connect("copy")
	d.s = makeScene(t, testenv.Brokers(t), testenv.Unique(t), d.pg.DatabaseURL("mirror"), "")
	d.w = newWorker(t, d.s.brokers)
	return d
}

func (d *sourced) connect(name string) *pgx.Conn {
	d.t.Helper()
	c, err := pgx.Connect(within(d.t), d.pg.DatabaseURL(name))
	must(d.t, err)
	d.t.Cleanup(func() { c.Close(within(d.t)) })
	return c
}

func execOn(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(within(t), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// fill adds a row for each value of zoo.
func (d *sourced) fill(from int) {
	d.t.Helper()
	for i, c := range zoo {
		execOn(d.t, d.source, fmt.Sprintf("INSERT INTO shop.zoo (id, %s) VALUES (%d, %s)", c.name(), from+i, c.sql))
	}
}

// column is one column of a table by its key, as texts.
func column(t *testing.T, c interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, key, value, table string,
) map[string]string {
	t.Helper()
	rows, err := c.Query(within(t), fmt.Sprintf("SELECT (%s)::text, coalesce((%s)::text, 'NULL') FROM %s", key, value, table))
	must(t, err)
	all := map[string]string{}
	for rows.Next() {
		var k, v string
		must(t, rows.Scan(&k, &v))
		all[k] = v
	}
	must(t, rows.Err())
	return all
}

// connector follows the source's schema shop, and names its topics by prefix.
func (d *sourced) connector(prefix string, more map[string]string) {
	d.t.Helper()
	config := map[string]string{
		"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1", "plugin.name": "pgoutput",
		"database.hostname": "127.0.0.1", "database.port": d.port, "database.user": "postgres", "database.password": "none", "database.dbname": "source",
		"topic.prefix": prefix, "schema.include.list": "shop", "slot.name": strings.ReplaceAll(strings.ToLower(prefix), "-", "_"), "publication.name": strings.ReplaceAll(strings.ToLower(prefix), "-", "_"), "publication.autocreate.mode": "filtered",
		"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "2", "poll.interval.ms": "50",
	}
	maps.Copy(config, more)
	d.w.put(prefix, config)
}

var withoutSchema = map[string]string{
	"key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false",
	"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false",
	"decimal.handling.mode": "string", "time.precision.mode": "isostring", "interval.handling.mode": "string",
}

// jdbc is Debezium's sink, into the database copy.
func (d *sourced) jdbc(name string, more map[string]string) {
	d.t.Helper()
	d.w.put(name, d.jdbcConfig(more))
}

func (d *sourced) jdbcConfig(more map[string]string) map[string]string {
	config := map[string]string{
		"connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector", "tasks.max": "1",
		"connection.url": "jdbc:postgresql://127.0.0.1:" + d.port + "/copy", "connection.username": "postgres", "connection.password": "none",
		"schema.evolution": "none", "consumer.override.session.timeout.ms": "10000", "consumer.override.metadata.max.age.ms": "1000",
		"connection.pool.min_size": "1", "connection.pool.max_size": "2",
	}
	maps.Copy(config, more)
	return config
}

// The tables of a source, through a real Debezium connector: as Semel mirrors them, and as Debezium's own sink does. Semel and
// Connect are killed on the way, and what a killed connector sends again changes nothing.
func TestARealConnectorsChangesAreMirrored(t *testing.T) {
	d := newSourced(t)
	a, b := "a"+strings.ToLower(d.s.topic[len(d.s.topic)-8:]), "b"+strings.ToLower(d.s.topic[len(d.s.topic)-8:])
	tables := func(schema string) string {
		return fmt.Sprintf(`CREATE SCHEMA %s; SET search_path = %[1]s, public; %s
			CREATE TABLE "Mixed" ("Order No" int, region text, "größe" numeric(6,2), "select" text, PRIMARY KEY (region, "Order No"));
			CREATE TABLE long (id int PRIMARY KEY, note text, doc text, bin bytea, ints int[]);
			ALTER TABLE long ALTER doc SET STORAGE EXTERNAL, ALTER bin SET STORAGE EXTERNAL, ALTER ints SET STORAGE EXTERNAL;
			CREATE TABLE busy (id int PRIMARY KEY, n int); CREATE TABLE log (n int, v text); CREATE TABLE gone (id int PRIMARY KEY)`, schema, zooTable())
	}
	execOn(t, d.source, zooTypes+tables("shop"))
	execOn(t, d.sink, zooTypes+tables("shop"))
	d.s.exec(zooTypes + tables("with_schema") + "; " + tables("without"))
	d.fill(0)
	execOn(t, d.source, `INSERT INTO shop."Mixed" VALUES (1, 'eu', 1.50, 'x'), (1, 'us', 2.50, NULL), (2, 'eu', NULL, 'y');
		INSERT INTO shop.long SELECT i, 'old', repeat('d' || i, 5000), decode(repeat('00ff', 5000), 'hex'), (SELECT array_agg(n) FROM generate_series(1, 5000) n) FROM generate_series(1, 3) i;
		INSERT INTO shop.busy SELECT i, 0 FROM generate_series(0, 19) i; INSERT INTO shop.log VALUES (0, 'snapshot'); INSERT INTO shop.gone VALUES (1)`)

	d.connector(a, nil)
	without := maps.Clone(withoutSchema)
	without["skipped.operations"] = "none"
	d.connector(b, without)
	d.jdbc("jdbc-"+a, map[string]string{
		"topics": a + ".shop.Mixed," + a + ".shop.busy", "insert.mode": "upsert", "primary.key.mode": "record_key", "delete.enabled": "true",
		"collection.name.format": "shop.${source.table}", "quote.identifiers": "true",
	})

	route := func(prefix, schema string) []string {
		return []string{
			d.s.route("name: "+schema, "consumer: "+prefix, fmt.Sprintf(`from: {topics_matching: '%s\.shop\.(zoo|Mixed|long|busy|gone)', session_timeout: 10s}`, prefix), "envelope: debezium", "id: {position: true}",
				fmt.Sprintf(`to: {table: '%s."{1}"', write: mirror, times: {zone: UTC}}`, schema)),
			// A table without a key has changes without one: its rows are told apart by what is in them.
			d.s.route("name: log-"+schema, "consumer: log-"+prefix, fmt.Sprintf(`from: {topics_matching: '%s\.shop\.(log)', session_timeout: 10s}`, prefix), "envelope: debezium", "id: {fields: [value.n]}",
				fmt.Sprintf(`to: {table: '%s."{1}"', write: append}`, schema)),
		}
	}
	text := d.s.text(append(route(a, "with_schema"), route(b, "without")...)...)
	p := d.s.spawn(nil, nil, text)
	rows := func(table string) int64 { return d.s.count(table) }
	eventually(t, "rows of the snapshots are there", func() bool { return rows("with_schema.busy") == 20 && rows("without.busy") == 20 })
	p.kill()
	d.w.stopClean() // a connector without any offset would take a new snapshot, in which rows that were deleted are just not there
	d.w.start()

	d.fill(changes)
	execOn(t, d.source, `UPDATE shop.zoo SET note = 'changed' WHERE id % 2 = 0; DELETE FROM shop.zoo WHERE id = 0;
		UPDATE shop."Mixed" SET "größe" = 9.99 WHERE region = 'eu'; UPDATE shop."Mixed" SET region = 'asia' WHERE region = 'us'; DELETE FROM shop."Mixed" WHERE "Order No" = 2; INSERT INTO shop."Mixed" VALUES (2, 'eu', 0, 'again');
		UPDATE shop.long SET note = 'new'; INSERT INTO shop.long VALUES (4, 'short', 'd', '\x00', '{1}'); UPDATE shop.long SET id = 30 WHERE id = 3; UPDATE shop.long SET doc = NULL WHERE id = 2;
		TRUNCATE shop.gone`)
	p = d.s.spawn(nil, nil, text)
	for n := 1; n <= 150; n++ {
		execOn(t, d.source, fmt.Sprintf("UPDATE shop.busy SET n = %d WHERE id %% 5 = %d; INSERT INTO shop.log VALUES (%[1]d, 'change')", n, n%5))
		switch n {
		case 50:
			eventually(t, "changes come", func() bool { return rows("with_schema.log") > 1 && rows("without.log") > 1 })
			p.kill()
			p = d.s.spawn(nil, nil, text)
		case 75, 120:
			d.w.kill() // what it read since it began is sent again
			d.w.start()
		case 100:
			p.kill()
			p = d.s.spawn(nil, nil, text)
		}
	}

	compare := func(c interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}, schema string, rule func(carried) string,
	) (differ []string) {
		for _, other := range []struct{ table, key, value string }{
			{`"Mixed"`, `region || "Order No"`, `concat_ws('|', "größe", "select")`}, {"long", "id", "concat_ws('|', note, md5(doc), md5(bin), md5(ints::text))"}, {"busy", "id", "n"}, {"log", "n", "v"},
		} {
			if schema == "shop" && other.table != `"Mixed"` && other.table != "busy" {
				continue
			}
			is, was := column(t, c, other.key, other.value, schema+"."+other.table), column(t, d.source, other.key, other.value, "shop."+other.table)
			if other.table == "long" { // under its new key a row has what the source sent: nothing that is stored out of line
				delete(is, "30")
				delete(was, "30")
			}
			if !maps.Equal(is, was) {
				differ = append(differ, fmt.Sprintf("%s.%s is %.600s, the source has %.600s", schema, other.table, fmt.Sprint(is), fmt.Sprint(was)))
			}
		}
		if rule == nil {
			return differ
		}
		ids := column(t, c, "id", "note", schema+".zoo")
		for _, k := range zoo {
			is, was := column(t, c, "id", k.name(), schema+".zoo"), column(t, d.source, "id", k.name(), "shop.zoo")
			for i, other := range zoo {
				if other.column != k.column || other.sql != k.sql {
					continue
				}
				for _, id := range []int{i, changes + i} {
					at := fmt.Sprint(id)
					source, there := was[at]
					may := wants(rule(k), source)
					got, found := is[at]
					if !found {
						got = dead
					}
					switch {
					case !there:
						may = []string{dead}
					case !found:
					case ids[at] == "changed" != (id%2 == 0):
						got += " with note " + ids[at]
					}
					if !slices.Contains(may, got) {
						differ = append(differ, fmt.Sprintf("%s.zoo %d: %s %s is %s, want %s", schema, id, k.column, k.sql, got, strings.Join(may, " or ")))
					}
				}
			}
		}
		return differ
	}
	var differ []string
	defer func() {
		if t.Failed() {
			t.Logf("differences:\n%s\nof Connect: %s", strings.Join(differ, "\n"), d.w.states("jdbc-"+a))
			t.Log(d.s.ask(`SELECT string_agg(concat_ws(' ', topic, "offset", class, sqlstate, error), E'\n' ORDER BY topic, "offset") FROM semel.dead_letter`))
		}
	}()
	eventually(t, "the mirrors have what the source has", func() bool {
		differ = compare(d.s.db, "with_schema", func(c carried) string { return c.with })
		differ = append(differ, compare(d.s.db, "without", func(c carried) string { return c.without })...)
		return len(differ) == 0
	})
	eventually(t, "Debezium's sink has the same", func() bool {
		differ = compare(d.sink, "shop", nil)
		return len(differ) == 0
	})
	// Into each partition of the topic, and once more by a connector that was killed.
	eventually(t, "the truncate is a dead letter", func() bool {
		return d.s.count(fmt.Sprintf("semel.dead_letter WHERE topic = '%s.shop.gone' AND class = 'decode'", b)) > 0
	})
	d.s.want("SELECT count(*) || ' ' || count(DISTINCT n) FROM with_schema.log", "151 151")
	d.s.want("SELECT count(*) || ' ' || count(DISTINCT n) FROM without.log", "151 151")
	if d.s.count("without.gone") != 1 {
		t.Error("a truncate deleted rows")
	}
	p.kill()
	d.s.want("SELECT sum(duplicate) > 0 FROM semel.watermark WHERE consumer LIKE 'log-%'", "true") // Connect did send again
}

// What Debezium's own sink makes of the same values: docs/migrate.md says so beside what Semel does.
func TestARealConnectorsChangesInDebeziumsSink(t *testing.T) {
	d := newSourced(t)
	a := "a" + strings.ToLower(d.s.topic[len(d.s.topic)-8:])
	tables := zooTypes + "CREATE SCHEMA shop; SET search_path = shop, public; CREATE TABLE long (id int PRIMARY KEY, note text, doc text, bin bytea); ALTER TABLE long ALTER doc SET STORAGE EXTERNAL, ALTER bin SET STORAGE EXTERNAL;" + zooTable()
	execOn(t, d.source, tables)
	execOn(t, d.sink, tables)
	d.fill(0)
	execOn(t, d.source, "INSERT INTO shop.long VALUES (1, 'old', repeat('d', 10000), decode(repeat('00ff', 5000), 'hex'))")
	d.connector(a, nil)
	topic := a + ".shop.zoo"
	sink := func(more map[string]string) map[string]string {
		config := d.jdbcConfig(map[string]string{
			"topics": topic, "insert.mode": "upsert", "primary.key.mode": "record_key", "collection.name.format": "shop.${source.table}", "quote.identifiers": "true",
		})
		config["connection.url"] += "?stringtype=unspecified" // without it no enum, network address or range is written
		maps.Copy(config, more)
		return config
	}
	var without []string
	failing := map[string]string{} // connectors that are to fail, and at what
	for name, what := range sunk {
		if what == fails {
			without = append(without, topic+":"+name)
			failing[a+"-"+name] = name
			d.w.give(a+"-"+name, sink(map[string]string{"field.include.list": topic + ":" + name, "connection.pool.max_size": "1"}))
		}
	}
	d.w.put(a+"-rest", sink(map[string]string{"topics": topic + "," + a + ".shop.long", "field.exclude.list": strings.Join(without, ",")}))
	d.fill(changes)
	execOn(t, d.source, "UPDATE shop.long SET note = 'new'")

	var differ []string
	defer func() {
		if t.Failed() {
			t.Logf("differences:\n%s", strings.Join(differ, "\n"))
		}
	}()
	eventually(t, "the sink has all rows", func() bool {
		differ = nil
		for _, k := range zoo {
			is, was := column(t, d.sink, "id", k.name(), "shop.zoo"), column(t, d.source, "id", k.name(), "shop.zoo")
			for i, other := range zoo {
				if other != k || k.sunk() == fails {
					continue
				}
				for _, id := range []string{fmt.Sprint(i), fmt.Sprint(changes + i)} {
					if may := wants(k.sunk(), was[id]); !slices.Contains(may, is[id]) {
						differ = append(differ, fmt.Sprintf("%s: %s %s is %s, want %s", id, k.column, k.sql, is[id], strings.Join(may, " or ")))
					}
				}
			}
		}
		return len(differ) == 0
	})
	eventually(t, "the sink has the change", func() bool {
		return column(t, d.sink, "id", "note", "shop.long")["1"] == "new"
	})
	got := column(t, d.sink, "id", "concat_ws('|', doc, convert_from(bin, 'UTF8'))", "shop.long")["1"]
	if want := "__debezium_unavailable_value|__debezium_unavailable_value"; got != want {
		t.Errorf("of values that didn't change the sink makes %.100q, want %q", got, want)
	}
	for connector, name := range failing {
		eventually(t, "the task fails at "+name, func() bool { return d.w.states(connector) == "RUNNING FAILED" })
	}
}

// The group of a sink connector goes on where the connector was stopped, there and back: no message is lost, none is written
// twice, though the table would take it.
func TestASinkConnectorsGroupIsTakenOver(t *testing.T) {
	d := newSourced(t)
	s, name := d.s, "sink-"+strings.ToLower(d.s.topic[len(d.s.topic)-8:])
	s.create(s.topic, 2, nil)
	s.exec("CREATE TABLE log (n int, v text)")
	const schema = `{"type":"struct","optional":false,"fields":[{"type":"int32","optional":false,"field":"n"},{"type":"string","optional":true,"field":"v"}]}`
	sent := 0
	send := func(n int) {
		t.Helper()
		var rs []*kgo.Record
		for range n {
			rs = append(rs, &kgo.Record{Partition: int32(sent % 2), Value: fmt.Appendf(nil, `{"schema":%s,"payload":{"n":%d,"v":"x"}}`, schema, sent)})
			sent++
		}
		s.produce(rs...)
	}
	rows := func() int64 { return s.count("log") }
	config := map[string]string{
		"topics": s.topic, "connection.url": "jdbc:postgresql://127.0.0.1:" + d.port + "/mirror",
		"insert.mode": "insert", "primary.key.mode": "none", "collection.name.format": "log", "batch.size": "10", "consumer.override.max.poll.records": "20",
	}
	send(300)
	d.jdbc(name, config)
	eventually(t, "the connector writes", func() bool { return rows() > 0 })
	d.w.stop(name)
	written := rows()
	send(100)
	route := s.route("name: "+name, "consumer: "+name, fmt.Sprintf("from: {topics: [TOPIC], group: connect-%s, start: group}", name), "id: {position: true}",
		"to: {table: log, write: append, columns: {n: value.payload.n, v: value.payload.v}}")
	s.run(route)
	if got := s.outcomes(); got != fmt.Sprintf("%d applied", int64(sent)-written) {
		t.Errorf("%s, though the connector wrote %d of %d", got, written, sent)
	}
	whole := func() {
		t.Helper()
		s.want("SELECT count(*) || ' ' || count(DISTINCT n) FROM log", fmt.Sprintf("%d %[1]d", sent))
	}
	whole()

	// And back.
	_, err := d.w.ask("PUT", "/connectors/"+name+"/resume", nil)
	must(t, err)
	send(50)
	eventually(t, "the connector goes on", func() bool { return rows() == int64(sent) })
	whole()
	d.w.stop(name)
	send(10)
	if r, err := s.try(route); err == nil && len(r.Halted) == 0 {
		t.Error("Semel goes on though another committed in its group")
	}
	if n := s.count("log"); n != int64(sent)-10 {
		t.Errorf("%d rows of %d: nobody said that it may", n, sent)
	}
}
