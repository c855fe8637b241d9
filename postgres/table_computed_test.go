package postgres_test

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

func TestComputedNumbersAreRefusedWhereTheColumnIsExact(t *testing.T) {
	t.Parallel()
	conn := tableConnect(t, testenv.Postgres(t))
	_, err := conn.Exec(t.Context(), `CREATE DOMAIN money2 AS numeric(10,2);
		CREATE TABLE o (i int, b bigint, n numeric, d money2, a int[], ts timestamptz, day date, f double precision, t text, j jsonb, ok boolean)`)
	must(t, err)
	for _, c := range []struct {
		column, expr string
		refused      bool
	}{
		{"i", "value.a + 1.0", true},
		{"b", "int(value.a)", true},
		{"n", "value.a * 2.0", true},
		{"d", "has(value.a) ? value.a : value.b", true}, // what it is shows when it runs
		{"a", "value.l.map(x, x)", true},
		{"ts", "value.a + 1.0", true},
		{"day", "size(value.l)", true},
		{"i", "value.a", false},
		{"n", "string(value.a) + value.b", false},
		{"ts", "timestamp + duration('1h')", false},
		{"f", "value.a * 2.0", false},
		{"t", "value.a * 2.0", false},
		{"j", "value.a * 2.0", false},
		{"ok", "value.a > 2.0", false},
	} {
		_, err := postgres.NewTable(t.Context(), conn, postgres.TableConfig{Table: "o", Write: postgres.WriteAppend, Columns: map[string]string{c.column: c.expr}})
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "went through a double") {
			t.Errorf("%s <- %s: %v", c.column, c.expr, err)
		}
	}
}

func TestComputedColumnsAndFiltersOnARealTable(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE o (id bigint PRIMARY KEY, name text, rate float8, doc jsonb, big boolean, at timestamptz)`, postgres.TableConfig{
		Table: "o", Write: postgres.WriteUpsert, Filter: `value.status != "draft"`,
		Columns: map[string]string{
			"id": "value.id", "name": `value.first + " " + value.last`, "rate": "value.part / value.total",
			"doc": `{"all": value}`, "big": "value.total > 100", "at": `timestamp(value.at) + duration("1h")`,
		},
	})
	b.want(b.settle(
		`{"id":9007199254740993,"status":"new","first":"Ada","last":"L\u00fc","part":1,"total":4,"at":"2026-01-01T00:00:00Z"}`,
		`{"id":2,"status":"draft"}`,
		`{"id":3}`,
		`{"id":4,"status":"new","first":"B","last":2}`,
	), "a-xx")
	if got := b.ask(`SELECT concat_ws('|', id, name, rate, doc->'all'->>'id', big, at AT TIME ZONE 'UTC') FROM o`); got != "9007199254740993|Ada Lü|0.25|9007199254740993|f|2026-01-01 01:00:00" {
		t.Error(got)
	}
}
