package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// TablesConfig is a [TableConfig] for a table that depends on the topic.
type TablesConfig struct {
	TableConfig // of each table; its Table is left empty

	// Of names the table of a topic, as in SQL.
	Of func(topic string) (string, error)
}

// Tables writes messages of many topics as rows of many tables, in one
// transaction. It is an inbox.Effect for one lane. A table is looked at when the
// first message for it comes; until it is there, the route halts at that message.
//
// Tables are written in the order of their names, and rows of each in the order of
// their keys: two lanes take locks in one order.
type Tables struct {
	cfg TablesConfig
	db  Querier
	ids *sink.Mapping // for IDs by fields, or nil

	mu     sync.Mutex
	topics map[string]*Table
	names  map[TableName]*Table
}

var _ inbox.Effect[pgx.Tx] = (*Tables)(nil)

// NewTables looks at no table yet.
func NewTables(db Querier, cfg TablesConfig) (*Tables, error) {
	cfg.SeveralTopics = true
	t := &Tables{cfg: cfg, db: db, topics: map[string]*Table{}, names: map[TableName]*Table{}}
	if len(cfg.ID) == 0 {
		return t, nil
	}
	m := sink.MappingConfig{KeyFormat: cfg.KeyFormat, Open: cfg.Open, TopicInID: true}
	for _, expr := range cfg.ID {
		p, err := sink.ParsePath(expr)
		if err != nil {
			return nil, err
		}
		m.ID = append(m.ID, p)
	}
	var err error
	t.ids, err = sink.NewMapping(m)
	return t, err
}

// Memory says what recognises repeats, as far as the route decides it.
func (t *Tables) Memory() inbox.Memory {
	if t.ids == nil && !t.cfg.Identified {
		return inbox.MemoryPosition
	}
	return inbox.MemoryInbox
}

// OwnIDs says that Decode sets the items' IDs.
func (t *Tables) OwnIDs() bool { return t.ids != nil }

// IDName is the recorded name of the rule by fields; "" if there is none.
func (t *Tables) IDName() string {
	if t.ids == nil {
		return ""
	}
	return t.ids.IDName()
}

// SentID is the ID as its sender wrote it, where fields are the ID; "" if the
// message can't be read.
func (t *Tables) SentID(m *semel.Message) string {
	var row sink.Row
	if t.ids == nil || t.ids.Decode(m, &row) != nil {
		return ""
	}
	return t.ids.Sent(m, &row)
}

// UnknownFields counts the fields without a column in all messages decoded.
func (t *Tables) UnknownFields() (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, table := range t.names {
		n += table.UnknownFields()
	}
	return n
}

// Separable is that of each table.
func (t *Tables) Separable() bool { return true }

func (n TableName) compare(m TableName) int {
	return cmp.Or(cmp.Compare(n.Schema, m.Schema), cmp.Compare(n.Name, m.Name))
}

// sorted are the tables that were looked at.
func (t *Tables) sorted() []*Table {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.names), func(a, b *Table) int { return a.name.compare(b.name) })
}

// tablesWithin bounds how long a new table may take to be looked at.
const tablesWithin = 10 * time.Second

// Table is the one for a topic, looked at if it is new. The route's mistakes are
// *TableError.
func (t *Tables) Table(ctx context.Context, topic string) (*Table, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if table := t.topics[topic]; table != nil {
		return table, nil
	}
	text, err := t.cfg.Of(topic)
	if err != nil {
		return nil, &TableError{Table: text, Why: err.Error()}
	}
	name, err := ParseTableName(text)
	if err != nil {
		return nil, &TableError{Table: text, Why: err.Error(), Hint: `quote it in the file: public."{1}"`}
	}
	table := t.names[name]
	if table == nil {
		cfg := t.cfg.TableConfig
		cfg.Table = text
		ctx, cancel := context.WithTimeout(ctx, tablesWithin)
		defer cancel()
		if cfg.Fit != nil {
			table, err = FittedTable(ctx, cfg, topic)
		} else {
			table, err = NewTable(ctx, t.db, cfg)
		}
		if err != nil {
			return nil, err
		}
		t.names[name] = table
	}
	t.topics[topic] = table
	return table, nil
}

// Renew is that of the topic's table, if it was looked at.
func (t *Tables) Renew(ctx context.Context, tx inbox.Tx[pgx.Tx], topic string) error {
	t.mu.Lock()
	table := t.topics[topic]
	t.mu.Unlock()
	if table == nil {
		return nil
	}
	return table.Renew(ctx, tx, topic)
}

// tableless is the Load of an item whose table could not be looked at, or doesn't
// fit it.
type tableless struct{ err error }

// take has the item refused when it is applied: to halt is the loop's. An outage is
// waited out before that.
func (l *tableless) take(it *inbox.Item, ownIDs bool) {
	it.Load, it.Err, it.Class, it.Skip = l, nil, "", false
	var wrong *TableError
	if !errors.As(l.err, &wrong) {
		it.Err = semel.Outage(l.err)
	}
	if ownIDs || it.ID.IsZero() { // each its own: nothing of it is committed
		it.ID = semel.IDOf([]byte("tableless"), []byte(it.Position().String()))
	}
}

// Decode makes rows of messages. Those of a table that isn't there are left for
// Apply to refuse.
func (t *Tables) Decode(items []inbox.Item) {
	for len(items) > 0 {
		topic := items[0].Topic
		n := 1
		for n < len(items) && items[n].Topic == topic {
			n++
		}
		table, err := t.Table(context.Background(), topic)
		if err == nil {
			table.Decode(items[:n])
		} else {
			for i := range items[:n] {
				(&tableless{err}).take(&items[i], t.OwnIDs())
			}
		}
		items = items[n:]
	}
}

// Apply writes the rows of all tables in the transaction.
func (t *Tables) Apply(ctx context.Context, tx inbox.Tx[pgx.Tx], items []*inbox.Item) error {
	type share struct {
		table *Table
		items []*inbox.Item
		at    []int
	}
	var shares []*share
	of := map[*Table]*share{}
	for i, it := range items {
		if less, ok := it.Load.(*tableless); ok {
			return semel.FailedAt(i, less.refusal(it))
		}
		table, err := t.Table(ctx, it.Topic)
		if err != nil {
			return semel.FailedAt(i, (&tableless{err}).refusal(it))
		}
		s := of[table]
		if s == nil {
			s = &share{table: table}
			of[table] = s
			shares = append(shares, s)
		}
		s.items, s.at = append(s.items, it), append(s.at, i)
	}
	slices.SortFunc(shares, func(a, b *share) int { return a.table.name.compare(b.table.name) })
	for _, s := range shares {
		err := s.table.Apply(ctx, tx, s.items)
		var at *semel.FailedAtError
		if errors.As(err, &at) && at.Index >= 0 && at.Index < len(s.at) {
			return semel.FailedAt(s.at[at.Index], at.Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refusal halts for a mistake that somebody has to cure, and is an outage else.
func (l *tableless) refusal(it *inbox.Item) error {
	var wrong *TableError
	if !errors.As(l.err, &wrong) {
		return semel.Outage(l.err)
	}
	hint := wrong.Hint
	if hint == "" {
		hint = "create or change it, then resume the route"
	}
	return &inbox.HaltError{
		Partition: it.Position().Log, Kind: "table",
		Why: fmt.Sprintf("topic %s has no table to go to: %v", it.Topic, wrong), Hint: hint, Err: l.err,
	}
}
