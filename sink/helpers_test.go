package sink_test

import (
	"bufio"
	"compress/gzip"
	"errors"
	"os"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func path(t testing.TB, expr string) sink.Path {
	t.Helper()
	p, err := sink.ParsePath(expr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mapping maps columns named like their expressions.
func mapping(t testing.TB, exprs ...string) *sink.Mapping {
	t.Helper()
	var cfg sink.MappingConfig
	for _, e := range exprs {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: e, From: path(t, e)})
	}
	return newMapping(t, cfg)
}

func newMapping(t testing.TB, cfg sink.MappingConfig) *sink.Mapping {
	t.Helper()
	m, err := sink.NewMapping(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func decode(t testing.TB, m *sink.Mapping, value string) sink.Row {
	t.Helper()
	var row sink.Row
	if err := m.Decode(&semel.Message{Value: []byte(value)}, &row); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	return row
}

func decodeError(t testing.TB, m *sink.Mapping, msg semel.Message) *sink.DecodeError {
	t.Helper()
	var row sink.Row
	err := m.Decode(&msg, &row)
	var d *sink.DecodeError
	if !errors.As(err, &d) {
		t.Fatalf("%.100q: want a DecodeError, got %v", msg.Value, err)
	}
	return d
}

// hardLines are the difficult lines, the first at 1.
func hardLines(t testing.TB) []string {
	t.Helper()
	f, err := os.Open("testdata/hard.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{""}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
