package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// The difficult lines of testdata/hard.jsonl.gz, which were made for this
// project: each ends as it must, whatever form the rows are sent in.
func TestDifficultLinesEndAsTheyMust(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"binary": "", "text": ", flag3 inet"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTableBench(t, `CREATE TABLE hard(n integer primary key, what text, big bigint, num numeric, txt text, at timestamptz, doc jsonb`+more+`)`,
				postgres.TableConfig{Table: "hard", Write: postgres.WriteInsert, ID: []string{"value.n"}, Zone: time.UTC})
			if !strings.Contains(b.table.Path(), "("+name+")") {
				t.Fatalf("path is %s", b.table.Path())
			}
			tableHard(t, b)
		})
	}
}

func tableHard(t *testing.T, b *tableBench) {
	lines := tableLines(t, "testdata/hard.jsonl.gz")
	var values []string
	for _, l := range lines {
		values = append(values, string(l))
	}
	items := b.settle(values...)
	dead := map[int]inbox.DeadClass{35: inbox.DeadDecode, 49: inbox.DeadDecode}
	for _, n := range []int{4, 5, 9, 10, 11, 19, 21, 22, 23, 24, 41, 42} {
		dead[n] = inbox.DeadValue
	}
	for n := 45; n <= 53; n++ {
		dead[n] = inbox.DeadDecode
	}
	for i, it := range items {
		n := i + 1
		if class, is := dead[n]; is {
			if it.Outcome != inbox.Dead || it.Class != class {
				t.Errorf("line %d: %s %s %v, want dead, %s", n, it.Outcome, it.Class, it.Err, class)
			}
		} else if it.Outcome != inbox.Applied {
			t.Errorf("line %d: %s %s %v, want applied", n, it.Outcome, it.Class, it.Err)
		}
	}
	for _, f := range []struct{ column, n, want string }{
		{"big", "1", "9007199254740993"},
		{"big", "2", "9223372036854775807"},
		{"big", "3", "-9223372036854775808"},
		{"big", "6", "1000"},
		{"big", "7", "12"},
		{"big", "8", "42"},
		{"num", "12", "1234567890123456789012345678901234567890.1234567890123456789"},
		{"num", "13", "0.1"},
		{"num", "14", "1.10"},
		{"num", "15", "1" + strings.Repeat("0", 400)},
		{"num", "16", "0." + strings.Repeat("0", 399) + "1"},
		{"num", "17", "0.0"},
		{"num", "18", "NaN"},
		{"txt", "20", "NULL"},
		{"txt", "25", "😀 é"},
		{"txt", "26", `\u0000`},
		{"txt", "27", ""},
		{"txt", "28", "NULL"},
		{"txt", "29", "null"},
		{"txt", "30", "  two spaces, a tab\t and a line\nbreak, a bell \a, a backslash \\N and \\."},
		{"txt", "32", "123"},
		{"txt", "33", `{"a":1}`},
		{"doc", "34", `{"a": 2}`},
		{"doc", "36", strings.Repeat("[", 200) + strings.Repeat("]", 200)},
		{"txt", "38", strings.Repeat("ж", 300_000)},
		{"at AT TIME ZONE 'UTC'", "39", "2026-03-29 00:30:00"},
		{"at AT TIME ZONE 'UTC'", "40", "2026-03-29 02:30:00"},
		{"at", "43", "infinity"},
		{"at AT TIME ZONE 'UTC'", "44", "2026-07-01 00:00:00"},
	} {
		if got := b.ask("SELECT (" + f.column + ")::text FROM hard WHERE n = " + f.n); got != f.want {
			t.Errorf("line %s: %s is %.100q, want %.100q", f.n, f.column, got, f.want)
		}
	}
	for _, n := range []string{"31", "37"} { // as long as they were
		i := map[string]int{"31": 30, "37": 36}[n]
		column := map[string]string{"31": "txt", "37": "doc"}[n]
		if got := b.ask("SELECT (to_jsonb("+column+") = ($1::jsonb)->'"+column+"')::text FROM hard WHERE n = "+n, string(lines[i])); got != "true" {
			t.Errorf("line %s is not what was sent", n)
		}
	}
	if got := b.table.UnknownFields(); got != 2 {
		t.Errorf("%d unknown fields, want 2", got)
	}
}
