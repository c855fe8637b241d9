package realdata_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
)

const hardRoute = `
  - name: hard
    consumer: TOPIC
    from: {topics: [TOPIC], instance_id: station}
    id: {fields: [value.n]}
    to: {table: hard, write: insert, on_nul: dead-letter, times: {zone: UTC}}
    batch: {messages: 4}
`

// What is right for each line: a class, or what its one telling column holds. All
// others are null, but n and what, which are the line's.
var (
	hardDead = map[int]string{
		4: "value", 5: "value", 9: "value", 10: "value", 11: "value", 19: "value", 21: "value", 22: "value", 23: "value",
		24: "value", 35: "decode", 41: "value", 42: "value", 45: "decode", 46: "decode", 47: "decode", 48: "decode",
		49: "decode", 50: "decode", 51: "decode", 52: "decode", 53: "decode",
	}
	hardApplied = map[int]struct{ column, holds string }{
		1:  {"big", "9007199254740993"},
		2:  {"big", "9223372036854775807"},
		3:  {"big", "-9223372036854775808"},
		6:  {"big", "1000"},
		7:  {"big", "12"},
		8:  {"big", "42"},
		12: {"num", "1234567890123456789012345678901234567890.1234567890123456789"},
		13: {"num", "0.1"},
		14: {"num", "1.10"},
		15: {"num", "1" + strings.Repeat("0", 400)},
		16: {"num", "0." + strings.Repeat("0", 399) + "1"},
		17: {"num", "0.0"},
		18: {"num", "NaN"},
		20: {}, // fields without a column
		25: {"txt", "😀 é"},
		26: {"txt", `\u0000`},
		27: {"txt", ""},
		28: {}, // null
		29: {"txt", "null"},
		30: {"txt", "  two spaces, a tab\t and a line\nbreak, a bell \a, a backslash \\N and \\."},
		31: {"txt", "Здравствуй, мир; 你好，世界; مرحبا بالعالم; हिन्दी; \U0001F3F4\U000E0067\U000E0062\U000E0073\U000E0063\U000E0074\U000E007F e\u0301"},
		32: {"txt", "123"},
		33: {"txt", `{"a":1}`},
		34: {"doc", `{"a": 2}`},
		36: {"doc", strings.Repeat("[", 200) + strings.Repeat("]", 200)},
		37: {"doc", `{"s": "` + strings.Repeat("x", 900_000) + `"}`},
		38: {"txt", strings.Repeat("ж", 300_000)},
		39: {"at", "2026-03-29 00:30:00+00"},
		40: {"at", "2026-03-29 02:30:00+00"},
		43: {"at", "infinity"},
		44: {"at", "2026-07-01 00:00:00+00"},
	}
)

// Each difficult line ends as it must, the good ones around a bad one are
// written, and a dead letter keeps the bytes that were sent.
func TestRealDataDifficultLinesEndAsTheyMust(t *testing.T) {
	t.Parallel()
	s := newStation(t, "CREATE TABLE hard (n integer PRIMARY KEY, what text, big bigint, num numeric, txt text, at timestamptz, doc jsonb)",
		hardRoute, "hard")
	file := input("hard.jsonl.gz")
	lines := linesOf(t, file)
	if len(lines) != len(hardDead)+len(hardApplied) {
		t.Fatalf("%d lines, and it is known of %d what is right", len(lines), len(hardDead)+len(hardApplied))
	}
	s.send(file, "--create", "1", "--topic-config", "max.message.bytes=4194304")
	s.settle(4, 0, 1)

	applied := map[int]bool{}
	for _, row := range s.rows("SELECT n, what, big, num, txt, at, doc FROM hard") {
		n, _ := strconv.Atoi(*row[0])
		applied[n] = true
		want, known := hardApplied[n]
		if !known {
			t.Errorf("line %d was applied", n)
			continue
		}
		for i, column := range []string{"what", "big", "num", "txt", "at", "doc"} {
			got := row[i+1]
			holds := map[string]string{want.column: want.holds, "what": what(t, lines[n-1])}
			switch text, not := holds[column]; {
			case not && (got == nil || *got != text):
				t.Errorf("line %d: %s is %.100q, want %.100q", n, column, str(got), text)
			case !not && got != nil:
				t.Errorf("line %d: %s is %.100q, want null", n, column, *got)
			}
		}
	}
	for n := range hardApplied {
		if !applied[n] {
			t.Errorf("line %d was not applied", n)
		}
	}
	dead := map[int]string{}
	letters := json.NewDecoder(bytes.NewReader(s.run([]int{0}, "dead", "list", "--json")))
	for letters.More() {
		var l struct {
			Number, Offset int64
			Class          string
		}
		if err := letters.Decode(&l); err != nil {
			t.Fatal(err)
		}
		n := int(l.Offset) + 1
		if _, twice := dead[n]; twice {
			t.Errorf("line %d is dead twice", n)
		}
		dead[n] = l.Class
		var value []byte
		if err := s.db.QueryRow(within(t), "SELECT value FROM semel.dead_letter WHERE number = $1", l.Number).Scan(&value); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(value, lines[l.Offset]) {
			t.Errorf("line %d: the dead letter holds %.100q, want %.100q", n, value, lines[l.Offset])
		}
	}
	if !maps.Equal(dead, hardDead) {
		t.Errorf("dead are %v, want %v", dead, hardDead)
	}
	want := map[string]int64{"applied": int64(len(hardApplied)), "dead": int64(len(hardDead))}
	if got := s.audit()["hard"]; !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	t.Logf("%d lines applied, %d dead, each as it must", len(applied), len(dead))
}

func linesOf(t *testing.T, file string) [][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(all, []byte{'\n'}), []byte{'\n'})
}

// what is the line's own "what".
func what(t *testing.T, line []byte) string {
	t.Helper()
	var m struct{ What string }
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatal(err)
	}
	return m.What
}

func str(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}
