package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/registry"
	"github.com/semelhq/semel/sink"
)

// fits says whether the route may make its table, or add columns to it.
func fits(r config.Route) bool { return r.To.Create || r.To.Evolve == config.EvolveAdd }

// fitted is the route's writer, after its table was made as far as the route may
// and must.
func (p *parts) fitted(ctx context.Context, r config.Route) (writer, error) {
	if !fits(r) {
		return p.writer(ctx, r)
	}
	cfg := p.fitConfig(r)
	if r.To.Template != "" {
		return postgres.NewTables(p.pool, postgres.TablesConfig{TableConfig: cfg, Of: r.TableOf})
	}
	return postgres.FittedTable(ctx, cfg, "")
}

// fitConfig is the configuration of a table that may be made.
func (p *parts) fitConfig(r config.Route) postgres.TableConfig {
	c := p.tableConfig(r)
	c.Fit = &postgres.Fit{
		DB: p.pool, Create: r.To.Create, Evolve: r.To.Evolve == config.EvolveAdd,
		Types: func(ctx context.Context, topic string) ([]sink.Types, error) {
			if topic != "" {
				return p.types(ctx, r, []string{topic})
			}
			topics, err := p.topics(ctx, r)
			if err != nil {
				return nil, err
			}
			return p.types(ctx, r, topics)
		},
	}
	for _, col := range r.To.Columns {
		c.Fit.Order = append(c.Fit.Order, col.Name)
	}
	return c
}

var errNoTopic = errors.New("what columns there are is said by the schemas of the topics, and none that the route reads is there")

var errNoEvent = errors.New("what columns there are is said by the schema inside of change events, and there is none yet")

// notYet says that schemas, or the topics that would have them, may still come.
func notYet(err error) bool {
	return errors.Is(err, registry.ErrUnknown) || errors.Is(err, errNoTopic) || errors.Is(err, errNoEvent)
}

// schemaInside says whether schemas come inside of messages.
func schemaInside(r config.Route) bool {
	return r.Format == config.FormatJSON && r.Envelope == config.EnvelopeDebezium
}

// eventsBack is how far from the end of a partition a change event with its schema is
// looked for: tombstones and ends of transactions have none.
const eventsBack = 20

// typesInside are what the newest change event of a topic says.
func (p *parts) typesInside(ctx context.Context, r config.Route, topic string) (newest sink.Types, err error) {
	logs, err := p.admin.Logs(ctx, topic)
	if err != nil {
		return newest, err
	}
	var ends []span
	for _, l := range logs {
		if l.Start < l.Stable {
			ends = append(ends, span{l.Partition, max(l.Start, l.Stable-eventsBack), l.Stable})
		}
	}
	items, err := p.peek(ctx, ends, eventsBack*len(ends))
	if err != nil {
		return newest, err
	}
	slices.SortStableFunc(items, func(a, b inbox.Item) int { return b.Message.Timestamp.Compare(a.Message.Timestamp) })
	step, events := sink.NewDebezium(), 0
	for i := range items {
		if t, ok := step.Types(&items[i].Message); ok {
			return t, nil
		}
		if items[i].Message.Value != nil {
			events++
		}
	}
	if events == 0 {
		return newest, fmt.Errorf("topic %s: %w", topic, errNoEvent)
	}
	return newest, &postgres.TableError{
		Table: r.To.Target(), Why: fmt.Sprintf("the newest change events of topic %s bring no schema that says what columns there are and of what types", topic),
		Hint: "schemas.enable of the connector's converters, or write the CREATE TABLE yourself",
	}
}

// types are what the newest schemas of topics say, one for each topic. Their
// mistakes are *postgres.TableError; that there are none yet is not one.
func (p *parts) types(ctx context.Context, r config.Route, topics []string) (all []sink.Types, err error) {
	if len(topics) == 0 {
		return nil, errNoTopic
	}
	d, steps := p.decoders[r.Name], p.openers(r)
	for _, topic := range topics {
		if schemaInside(r) {
			t, err := p.typesInside(ctx, r, topic)
			if err != nil {
				return nil, err
			}
			all = append(all, t)
			continue
		}
		sent, err := typeOf(ctx, d.value, r.ValueSubject(topic))
		if err != nil {
			return nil, mistaken(r, err)
		}
		t := sink.Types{Value: sink.ValueType(sent, steps)}
		switch r.Envelope {
		case config.EnvelopeDebezium:
			if t.Envelope = sent; t.Value == nil {
				return nil, mistaken(r, fmt.Errorf("the schema of topic %s is no change event's: after is no record", topic))
			}
		case config.EnvelopeCloudEvents: // attributes are texts
			t.Envelope = &sink.Type{Kind: sink.TypeMap, Elem: &sink.Type{Kind: sink.TypeText}}
		}
		if d.key != nil {
			t.Key, err = typeOf(ctx, d.key, r.KeySubject(topic))
			if err != nil && !errors.Is(err, registry.ErrUnknown) { // it may not be needed
				return nil, mistaken(r, err)
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// typeOf asks a format what its newest schema of a subject says.
func typeOf(ctx context.Context, d sink.Decoder, subject string) (*sink.Type, error) {
	switch d := d.(type) {
	case *registry.Decoder:
		t, err := d.Type(ctx, subject)
		if errors.Is(err, registry.ErrUnknown) {
			err = fmt.Errorf("what columns there are is said by the schema of %s, and %w", subject, err)
		}
		return t, err
	case sink.Typed:
		return d.TypeOf(nil), nil
	}
	return nil, errors.New("its format has no schema")
}

func mistaken(r config.Route, err error) error {
	var down *semel.OutageError
	if errors.As(err, &down) || errors.Is(err, registry.ErrUnknown) || errors.Is(err, context.Canceled) {
		return err
	}
	return &postgres.TableError{Table: r.To.Target(), Why: oneLine(err)}
}
