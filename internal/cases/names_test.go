package cases_test

import (
	"fmt"
	"strings"
	"testing"
)

// G24: names are exact in every way to write, few rows and many, fresh and known.
func TestAnyNameIsWrittenInEveryWay(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ł", 31) + "x" // 63 bytes
	column := `q"uote's\ $1 %s ;--`
	for _, c := range []struct{ name, schema, table, in string }{
		{"a reserved word in mixed case", "", `"Order"`, `"Order"`},
		{"another schema", `CREATE SCHEMA "My.Schema";`, `"My.Schema"."Order"`, `"My.Schema"."Order"`},
		{"a double quote and a blank", "", `"Or""d er"`, `"Or""d er"`},
		{"63 bytes", "", `"` + long + `"`, `"` + long + `"`},
		{"folded", "", "orders", "Public.ORDERS"},
		{"a name of our own", "", `"batch"`, `"batch"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, c.schema+"CREATE TABLE semel_shape (\"Id\" bigint PRIMARY KEY, \"jsonData\" jsonb, \"user\" text, \"two words\" text, \"UPPER\" bigint, \"upper\" text, \""+
				strings.ReplaceAll(column, `"`, `""`)+`" text, "`+long+`" text, "select" int[], "é" timestamptz)`)
			columns := `"Id": value.id, jsonData: value, user: value.user, "two words": 'value["two words"]', UPPER: value.ver, upper: value.low, '` + strings.ReplaceAll(column, "'", "''") +
				`': value.q, "` + long + `": value.long, select: value.list, "é": timestamp`
			// New, known again with a newer version, and one of a key in a batch twice.
			message := func(i, ver int) string {
				return fmt.Sprintf(`{"id":%d,"mid":"%d-%d","user":"u","two words":"w","ver":%d,"low":"l","q":"'\"","long":"x","list":[1,null]}`, i, i, ver, ver)
			}
			type way struct {
				table string
				lines []string
				rows  string
			}
			var ways []way
			add := func(rows, write string, lines ...string) {
				table := fmt.Sprintf("%s_%d", "w", len(ways))
				full := c.in
				if len(ways) > 0 { // the named table for one way at a time would cost a database each
					full = strings.TrimSuffix(c.in, `"`) + fmt.Sprint(len(ways)) + `"`
					if !strings.HasSuffix(c.in, `"`) {
						full = c.in + fmt.Sprint(len(ways))
					}
					full = strings.Replace(full, "łx", "x", 1) // still 63 bytes at most
				}
				s.exec("CREATE TABLE " + full + " (LIKE semel_shape INCLUDING ALL)")
				lines = append(lines, "name: "+table, "consumer: TOPIC-"+table, fmt.Sprintf("to: {table: '%s', %s, columns: {%s}}", strings.ReplaceAll(full, "'", "''"), write, columns))
				ways = append(ways, way{full, lines, rows})
			}
			add("", "write: insert", "id: {position: true}")
			add("", "write: insert", "id: {fields: [value.mid]}")
			add("", "write: insert", "id: {fields: [value.id]}", "on_collision: duplicate")
			add("", "write: upsert", "id: {position: true}")
			add("", "write: upsert, primary_key: [Id]", "id: {fields: [value.mid]}")
			add("", "write: upsert, version: value.ver", "id: {position: true}")
			add("append", "write: append", "id: {position: true}")
			s.exec(fmt.Sprintf(`DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname) FROM pg_constraint WHERE contype = 'p' AND conrelid = '%s'::regclass); END $$`, strings.ReplaceAll(ways[6].table, "'", "''")))
			var routes []string
			for _, w := range ways {
				routes = append(routes, s.route(w.lines...))
			}
			for round, n := range []int{3, 700} {
				s.send(numbered(n, func(i int) string { return message(i, 5+round) })...)
				s.send(message(1, 6+round), message(1, 6+round))
				s.run(routes...)
			}
			for _, w := range ways {
				want := "700 700"
				if w.rows != "" {
					want = "707 700"
				}
				s.want(`SELECT count(*) || ' ' || count(DISTINCT "Id") FROM `+w.table+fmt.Sprintf(` WHERE "user" = 'u' AND "two words" = 'w' AND "UPPER" >= 5 AND "upper" = 'l' AND "%s" = '''"' AND "%s" = 'x' AND "select" = '{1,null}' AND "é" IS NOT NULL AND "jsonData"->>'user' = 'u'`,
					strings.ReplaceAll(column, `"`, `""`), long), want)
				if strings.Contains(w.lines[len(w.lines)-1], "upsert") {
					s.want(`SELECT "UPPER" FROM `+w.table+` WHERE "Id" = 1`, "7")
				}
			}
			// The append has no key, and no way to refuse.
			s.want("SELECT coalesce(string_agg(consumer || error, ', '), '') FROM semel.dead_letter", "")
		})
	}
}

// G24: without a mapping, fields find the columns of exactly their name.
func TestFieldsFindColumnsOfExactlyTheirName(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE "Order" ("Id" int PRIMARY KEY, "jsonData" jsonb, "user" text, "two words" text, "UPPER" int, "upper" int)`)
	s.send(`{"Id":1,"jsonData":{"a":1},"user":"u","two words":"w","UPPER":1,"upper":2,"USER":"no","jsondata":"no"}`)
	r := s.run(s.route("id: {position: true}", `to: {table: '"Order"', write: upsert}`))
	s.want(`SELECT concat_ws(' ', "Id", "jsonData", "user", "two words", "UPPER", "upper") FROM "Order"`, `1 {"a": 1} u w 1 2`)
	if n := r.Tallies[0].UnknownFields; n != 2 {
		t.Errorf("%d unknown fields, two have the wrong case", n)
	}
	if _, err := s.try(s.route("name: x", "consumer: TOPIC-x", "id: {position: true}", `to: {table: Order, write: upsert}`)); err != nil {
		t.Log(err)
	} else if s.count(`"Order"`) != 1 {
		t.Error("an unquoted name found a table of another case")
	}
}
