package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/postgres"
)

// Tested is what came of a test.
type Tested struct {
	Test  string `json:"test"`
	At    string `json:"at"` // file and line
	Route string `json:"route"`
	OK    bool   `json:"ok"`
	// Wrong are the differences. Missing are rows that were expected, Extra those that
	// were not.
	Wrong   []string `json:"wrong,omitempty"`
	Missing []string `json:"missing,omitempty"`
	Extra   []string `json:"extra,omitempty"`
	// Lacks are what the copies don't have and the tables do.
	Lacks []string `json:"lacks,omitempty"`
}

// Test runs the tests of a file, each on empty copies of what its route touches, in a
// transaction that can write to nothing else and is rolled back. No broker is asked.
func Test(ctx context.Context, f *config.File, log *slog.Logger) ([]Tested, error) {
	p, err := prepare(f, log)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.reachDatabase(ctx); err != nil {
		return nil, err
	}
	p.decoders = nil // messages are written as what their format makes of them
	var all []Tested
	for _, t := range f.Tests {
		r, err := Route(f, t.Route)
		if err != nil {
			return nil, err
		}
		got := Tested{Test: t.Name, Route: t.Route, At: f.PlaceOf(t.Path)}
		if err := p.test(ctx, r, t, &got); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			got.wrong("%s", oneLine(err))
		}
		got.OK = len(got.Wrong)+len(got.Missing)+len(got.Extra) == 0
		all = append(all, got)
	}
	return all, nil
}

func (t *Tested) wrong(format string, args ...any) {
	t.Wrong = append(t.Wrong, fmt.Sprintf(format, args...))
}

func (p *parts) test(ctx context.Context, r config.Route, t config.Test, got *Tested) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := oneTable(&r, t); err != nil {
		return err
	}
	cfg := postgres.ScratchConfig{Table: postgres.TableName(r.To.Table)}
	if r.To.Query.SQL != "" {
		query := p.queryConfig(r)
		cfg.Query = &query
	}
	for _, rows := range slices.Concat(t.Given, t.Rows) {
		if rows.Table != (sqlname.Table{}) {
			cfg.Named = append(cfg.Named, postgres.TableName(rows.Table))
		}
	}
	s, err := postgres.NewScratch(ctx, conn.Conn(), cfg)
	if err != nil {
		return copied(r, err)
	}
	defer s.Close()
	for _, rows := range t.Given {
		for i, row := range rows.Rows {
			if err := s.Give(ctx, postgres.TableName(rows.Table), row); err != nil {
				return fmt.Errorf("%s[%d]: %w", within(rows.Path, t.Path), i, err)
			}
		}
	}
	if err := s.Ready(ctx); err != nil {
		return copied(r, err)
	}
	got.Lacks = s.Lacks()
	var table interface {
		postgres.ScratchEffect
		Memory() inbox.Memory
		Decode(items []inbox.Item)
	} = s.Query()
	if cfg.Query == nil {
		r.To.Table = sqlname.Table(s.Name())
		if table, err = p.tableOn(ctx, s.DB(), r); err != nil {
			return err
		}
	}
	items := itemsOf(r, t)
	table.Decode(items)
	identify(r, items)
	if err := s.Apply(ctx, table, memory(r, table) == inbox.MemoryInbox, items); errors.Is(err, postgres.ErrNotCopied) {
		return err
	} else if err != nil {
		return fmt.Errorf("the route would halt: %w", err)
	}
	for i, m := range t.Messages {
		got.compare(i, m, &items[i])
	}
	for _, rows := range t.Rows {
		if err := got.rows(ctx, s, rows, within(rows.Path, t.Path)); err != nil {
			return err
		}
	}
	return nil
}

// copied says what could not be copied.
func copied(r config.Route, err error) error {
	var mistake *postgres.TableError
	if errors.As(err, &mistake) {
		return err
	}
	return fmt.Errorf("%s: %w", r.To.Target(), err)
}

// within is a path below another.
func within(path, of string) string { return strings.TrimPrefix(path, of+".") }

// oneTable takes the table of the test's topic where it depends on that.
func oneTable(r *config.Route, t config.Test) (err error) {
	if r.To.Template == "" {
		return nil
	}
	topic := ""
	for _, m := range t.Messages {
		if m.Topic == "" || topic != "" && m.Topic != topic {
			return errors.New("the route has a table for each topic: name one topic, the same in all messages")
		}
		topic = m.Topic
	}
	text, err := r.TableOf(topic)
	if err == nil {
		r.To.Table, err = sqlname.ParseTable(text)
	}
	r.To.Template = ""
	return err
}

// itemsOf are the messages as the broker would bring them.
func itemsOf(r config.Route, t config.Test) []inbox.Item {
	next := map[semel.Partition]int64{}
	items := make([]inbox.Item, len(t.Messages))
	for i, m := range t.Messages {
		topic := m.Topic
		if topic == "" && len(r.From.Topics) > 0 {
			topic = r.From.Topics[0]
		}
		at := semel.Partition{Topic: topic, Number: int32(m.Partition)}
		msg := semel.Message{
			Topic: topic, Partition: at.Number, Offset: next[at], Timestamp: m.Timestamp, Key: m.Key, Value: m.Value,
		}
		next[at]++
		for _, h := range m.Headers {
			msg.Headers = append(msg.Headers, semel.Header{Name: h[0], Value: []byte(h[1])})
		}
		items[i].Message = msg
	}
	return items
}

func (t *Tested) compare(i int, m config.TestMessage, it *inbox.Item) {
	is, why := it.Outcome.String(), ""
	if it.Outcome == inbox.Dead {
		why = fmt.Sprintf(" (%s: %v)", it.Class, it.Err)
	}
	switch {
	case m.Outcome != "" && m.Outcome != is:
		t.wrong("message %d is %s%s, not %s", i+1, is, why, m.Outcome)
	case m.Class != "" && m.Class != string(it.Class):
		t.wrong("message %d is dead for another reason%s, not %s", i+1, why, m.Class)
	case m.Outcome == "" && it.Outcome == inbox.Dead:
		t.wrong("message %d is dead%s, and the test doesn't expect it", i+1, why)
	}
}

// rows compares what a table holds with what it should, in any order.
func (t *Tested) rows(ctx context.Context, s *postgres.Scratch, expected config.TestRows, at string) error {
	name, label := postgres.TableName(expected.Table), ""
	if expected.Table != (sqlname.Table{}) {
		label = expected.Table.String() + " "
	}
	have, err := s.Rows(ctx, name)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	var want []map[string]json.RawMessage
	for i, row := range expected.Rows {
		shape, err := s.Shape(ctx, name, row)
		if err != nil {
			var mistake *postgres.TableError
			if errors.As(err, &mistake) && mistake.Hint != "" {
				return fmt.Errorf("%s[%d]: %w (%s)", at, i, err, mistake.Hint)
			}
			return fmt.Errorf("%s[%d]: %w", at, i, err)
		}
		want = append(want, shape)
	}
	pair := pairUp(want, have)
	taken := map[int]bool{}
	for i := range want {
		if pair[i] < 0 {
			t.Missing = append(t.Missing, label+line(want[i], nil))
		}
		taken[pair[i]] = true
	}
	var named []string // columns that some expectation looks at; none: all
	for _, row := range want {
		named = append(named, slices.Collect(maps.Keys(row))...)
	}
	for j := range have {
		if !taken[j] {
			t.Extra = append(t.Extra, label+line(have[j], named))
		}
	}
	return nil
}

// pairUp gives each expected row one that is there, -1 if none is left: rows may name
// few columns, and one that suits two goes to the one that has no other.
func pairUp(want, have []map[string]json.RawMessage) []int {
	owner := make([]int, len(have))
	for j := range owner {
		owner[j] = -1
	}
	var find func(i int, seen map[int]bool) bool
	find = func(i int, seen map[int]bool) bool {
		for j := range have {
			if seen[j] || !suits(want[i], have[j]) {
				continue
			}
			seen[j] = true
			if owner[j] < 0 || find(owner[j], seen) {
				owner[j] = i
				return true
			}
		}
		return false
	}
	pair := make([]int, len(want))
	for i := range want {
		pair[i] = -1
		find(i, map[int]bool{})
	}
	for j, i := range owner {
		if i >= 0 {
			pair[i] = j
		}
	}
	return pair
}

func suits(want, have map[string]json.RawMessage) bool {
	for column, v := range want {
		if plainValue(v) != plainValue(have[column]) {
			return false
		}
	}
	return true
}

// plainValue is a value as jsonb writes it, with numbers by their value: 1.50 is 1.5.
func plainValue(v json.RawMessage) string {
	s := string(cmp.Or(string(v), "null"))
	if c := s[0]; (c == '-' || c >= '0' && c <= '9') && strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// line is a row for people: the columns that are asked for, all if none are.
func line(row map[string]json.RawMessage, columns []string) string {
	var parts []string
	for _, c := range slices.Sorted(maps.Keys(row)) {
		if len(columns) == 0 || slices.Contains(columns, c) {
			name, _ := json.Marshal(c) // a text can always be written
			parts = append(parts, string(name)+": "+string(row[c]))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
