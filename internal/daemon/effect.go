package daemon

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// table looks at the route's table and decides how to write to it.
func (p *parts) table(ctx context.Context, r config.Route) (*postgres.Table, error) {
	return p.tableOn(ctx, p.pool, r)
}

// writer is the effect of a route, whether it has one table or many.
type writer interface {
	inbox.Effect[pgx.Tx]
	Memory() inbox.Memory
	OwnIDs() bool
	IDName() string
	SentID(m *semel.Message) string
	UnknownFields() int64
	Try(ctx context.Context, conn *pgx.Conn, schema, consumer string, items []inbox.Item) (made []string, err error)
}

// writer is the route's; many tables are looked at when their messages come.
func (p *parts) writer(ctx context.Context, r config.Route) (writer, error) {
	if r.To.Query.SQL != "" {
		return p.query(ctx, r)
	}
	if r.To.Template != "" {
		return postgres.NewTables(p.pool, postgres.TablesConfig{TableConfig: p.tableConfig(r), Of: r.TableOf})
	}
	return p.table(ctx, r)
}

// query has the server look at the route's SQL.
func (p *parts) query(ctx context.Context, r config.Route) (*postgres.Query, error) {
	return postgres.NewQuery(ctx, p.pool, p.queryConfig(r))
}

func (p *parts) queryConfig(r config.Route) postgres.QueryConfig {
	cfg := postgres.QueryConfig{TableConfig: p.tableConfig(r), SQL: r.To.Query.SQL, Each: r.To.Query.Expect == config.ExpectEach}
	for _, c := range r.To.Query.Relation {
		cfg.Relation = append(cfg.Relation, postgres.QueryColumn(c))
	}
	return cfg
}

// topics are those that the route reads now.
func (p *parts) topics(ctx context.Context, r config.Route) ([]string, error) {
	if r.From.Matching == "" {
		return r.From.Topics, nil
	}
	all, err := p.admin.TopicNames(ctx)
	return slices.DeleteFunc(all, func(t string) bool { return !r.From.Reads(t) }), err
}

// tableOn looks through a connection of its own.
func (p *parts) tableOn(ctx context.Context, db postgres.Querier, r config.Route) (*postgres.Table, error) {
	return postgres.NewTable(ctx, db, p.tableConfig(r))
}

func (p *parts) tableConfig(r config.Route) postgres.TableConfig {
	c := postgres.TableConfig{
		Table:         r.To.Table.String(),
		Write:         postgres.WriteMode(r.To.Write),
		PrimaryKey:    r.To.PrimaryKey,
		Version:       r.To.Version.String(),
		Identified:    !idRule(r).ByPosition(),
		SeveralTopics: r.From.Several(),
		KeyFormat:     r.From.KeyFormat,
		Raw:           r.Format == config.FormatRaw,
		Open:          p.openers(r),
		Filter:        r.Filter.String(),
		OnCollision:   onCollision[r.OnCollision],
		StripNUL:      r.To.OnNUL == config.NULStrip,
		HaltUnknown:   r.To.UnknownFields == config.UnknownHalt,
		Zone:          r.To.Zone,
	}
	if r.To.Columns != nil {
		c.Columns = map[string]string{}
		for _, col := range r.To.Columns {
			c.Columns[col.Name] = col.From.String()
		}
	}
	if r.Guarantee == config.EffectivelyOnce {
		for _, f := range r.ID.Fields {
			c.ID = append(c.ID, f.String())
		}
	}
	c.Deleted, c.Combine, c.Window = r.To.Deleted, r.To.Combine, r.Inbox.Window
	c.Absent = absent[r.To.Absent]
	c.Tombstone = tombstone[r.To.Tombstone]
	if r.To.OnExists == config.ExistsDeadLetter {
		c.OnExists = postgres.ExistsDeadLetter
	}
	if r.To.Epoch != nil {
		c.Epoch = map[string]postgres.EpochUnit{}
		for col, unit := range r.To.Epoch {
			c.Epoch[col] = postgres.EpochUnit(unit)
		}
	}
	return c
}

// openers are the steps from messages as sent to what the mapping reads.
func (p *parts) openers(r config.Route) (steps []sink.Opener) {
	if d := p.decoders[r.Name]; d != (decoders{}) {
		steps = append(steps, sink.Formats(d.value, d.key))
	}
	switch r.Envelope {
	case config.EnvelopeDebezium:
		steps = append(steps, sink.NewDebezium())
	case config.EnvelopeCloudEvents:
		steps = append(steps, sink.NewCloudEvents())
	}
	return steps
}

// memory is what recognises repeats: without a window the watermark alone,
// unless the table itself knows the IDs.
func memory(r config.Route, t interface{ Memory() inbox.Memory }) inbox.Memory {
	if m := t.Memory(); m != inbox.MemoryInbox || r.Inbox.Window > 0 {
		return m
	}
	return inbox.MemoryPosition
}

// idRule is the rule for IDs. Those by fields are the table's own: it reads the
// value anyway.
func idRule(r config.Route) semel.IDRule {
	switch {
	case r.Guarantee != config.EffectivelyOnce:
		return semel.PositionID()
	case r.ID.Header != "":
		return semel.HeaderID(r.ID.Header)
	case r.ID.Key:
		return semel.KeyID()
	}
	return semel.PositionID()
}

// Words of the file in those of the machine; what isn't here is its default.
var (
	onMissing   = map[config.OnMissingID]inbox.MissingPolicy{config.MissingIDPosition: inbox.MissingPosition, config.MissingIDHalt: inbox.MissingHalt}
	onCollision = map[config.OnCollision]inbox.CollisionPolicy{config.CollisionDuplicate: inbox.CollisionDuplicate, config.CollisionHalt: inbox.CollisionHalt}
	onGap       = map[config.OnGap]inbox.GapPolicy{config.GapHalt: inbox.GapHalt}
)

var (
	absent    = map[config.Absent]postgres.AbsentPolicy{config.AbsentKeep: postgres.AbsentKeep, config.AbsentError: postgres.AbsentError}
	tombstone = map[config.Tombstone]postgres.TombstonePolicy{config.TombstoneDeadLetter: postgres.TombstoneDeadLetter, config.TombstoneDelete: postgres.TombstoneDelete}
)

// targetName is what is recorded of a route's target.
func targetName(r config.Route) string {
	return string(r.To.Write) + " " + r.To.Target()
}

// tables are the effects that were made in this run, by route: they count.
type tables struct {
	mu sync.Mutex
	of map[string][]writer
}

func (t *tables) add(route string, table writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string][]writer{}
	}
	t.of[route] = append(t.of[route], table)
}

func (t *tables) unknownFields(route string) (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, table := range t.of[route] {
		n += table.UnknownFields()
	}
	return n
}
