package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/postgres"
)

// Plan is the SQL that Semel's own tables need, and what is missing in the tables
// of routes as far as schemas say; comments where nothing is. A route whose table
// can't be planned is an error.
func Plan(ctx context.Context, f *config.File) (string, error) {
	p, err := prepare(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	defer p.close()
	if err := p.reachDatabase(ctx); err != nil {
		return "", err
	}
	var b strings.Builder
	state, _, err := postgres.SchemaState(ctx, p.pool, f.Database.Schema)
	switch {
	case err != nil:
		return "", &StartError{What: "tables", Err: Plain(err)}
	case state == postgres.SchemaMissing:
		b.WriteString(postgres.MigrationSQL(f.Database.Schema))
	default:
		b.WriteString("-- nothing: the tables are " + string(state) + "\n")
	}
	planned := map[string]bool{} // routes may share a table
	for _, r := range f.Routes {
		if r.To.Query.SQL != "" {
			continue
		}
		tables, err := p.tablesOf(ctx, r)
		if err != nil {
			return "", err
		}
		for _, t := range tables {
			sql, err := p.plan(ctx, t)
			if err != nil {
				return "", &StartError{What: "route " + r.Name, Err: err}
			}
			if !planned[sql] {
				planned[sql] = true
				b.WriteString(sql)
			}
		}
	}
	return b.String(), nil
}

// planned is a route with one of its tables, and the topics that go to it.
type planned struct {
	config.Route
	topics []string
}

// tablesOf are the tables of a route, as far as its topics are there.
func (p *parts) tablesOf(ctx context.Context, r config.Route) (all []planned, err error) {
	topics, err := p.topics(ctx, r)
	if err != nil {
		return nil, &StartError{What: "broker", Err: Plain(err)}
	}
	if r.To.Template == "" {
		return []planned{{r, topics}}, nil
	}
	at := map[string]int{}
	for _, topic := range topics {
		text, err := r.TableOf(topic)
		one := r
		if err == nil {
			one.To.Table, err = sqlname.ParseTable(text)
		}
		if err != nil {
			continue // check says so
		}
		if i, ok := at[text]; ok {
			all[i].topics = append(all[i].topics, topic)
			continue
		}
		at[text] = len(all)
		one.To.Template = ""
		all = append(all, planned{one, []string{topic}})
	}
	return all, nil
}

// plan is what the table lacks, as SQL with a word about who runs it.
func (p *parts) plan(ctx context.Context, t planned) (string, error) {
	sql, err := p.missing(ctx, t)
	switch {
	case errors.Is(err, errTypeless):
		if _, err := p.table(ctx, t.Route); postgres.TableMissing(err) {
			return fmt.Sprintf("\n-- route %s: table %s is missing, and format: %s has no schema: write the CREATE TABLE yourself\n", t.Name, t.To.Table, t.Format), nil
		}
		return "", nil
	case notYet(err):
		return fmt.Sprintf("\n-- route %s: %s\n", t.Name, oneLine(err)), nil
	case tableErrors(err) != nil && !fits(t.Route):
		return fmt.Sprintf("\n-- route %s: nothing to propose: %s\n", t.Name, oneLine(err)), nil
	case err != nil:
		return "", Plain(err)
	case sql == "":
		return "", nil
	}
	who := "semel run would do this"
	if create := strings.HasPrefix(sql, "CREATE"); create && !t.To.Create || !create && t.To.Evolve != config.EvolveAdd {
		who = "nobody does this but you"
	}
	return fmt.Sprintf("\n-- route %s: %s\n%s", t.Name, who, sql), nil
}

// errTypeless says that no schema knows the types of a route's columns.
var errTypeless = errors.New("the format has no schema")

// missing is what a table lacks that the route needs, by the newest schemas: SQL, ""
// if nothing.
func (p *parts) missing(ctx context.Context, t planned) (string, error) {
	if p.decoders[t.Name].value == nil && !schemaInside(t.Route) {
		return "", errTypeless
	}
	types, err := p.types(ctx, t.Route, t.topics)
	if err != nil {
		return "", err
	}
	return postgres.PlanTable(ctx, p.fitConfig(t.Route), types)
}

// made looks at a table that the route may make or add to. It answers true where
// nothing more can be looked at, for something is still to be done.
func (c *check) made(r planned) (bool, error) {
	if !fits(r.Route) {
		return false, nil
	}
	sql, err := c.missing(c.ctx, r)
	var down *semel.OutageError
	switch {
	case errors.As(err, &down):
		return true, unreachable(down)
	case notYet(err):
		if _, err := c.parts.table(c.ctx, r.Route); !postgres.TableMissing(err) {
			return false, nil
		}
		c.weak(r.Path+".to.table", oneLine(err), "the route waits for it")
		return true, nil
	case tableErrors(err) != nil:
		c.mistakes(r.Route, tableErrors(err), "")
		return true, nil
	case err != nil:
		return true, &StartError{What: "database", Err: Plain(err)}
	case sql == "":
		return false, nil
	}
	create := strings.HasPrefix(sql, "CREATE")
	if create && !r.To.Create || !create && r.To.Evolve != config.EvolveAdd {
		return false, nil // the table is looked at as any
	}
	err = postgres.FitRights(c.ctx, c.pool, r.To.Table.String())
	switch {
	case tableErrors(err) != nil:
		c.mistakes(r.Route, tableErrors(err), "")
	case err != nil:
		return true, &StartError{What: "database", Err: Plain(err)}
	case create:
		c.weak(r.Path+".to.create", fmt.Sprintf("table %s is missing, and will be made", r.To.Table), planHint)
	default:
		c.weak(r.Path+".to.evolve", fmt.Sprintf("table %s lacks columns, which will be added", r.To.Table), planHint)
	}
	return true, nil
}

const planHint = "semel check --plan prints the SQL"

// planHint is a hint where something is missing whose SQL can be proposed.
func (c *check) planHint(r planned) string {
	if sql, err := c.missing(c.ctx, r); err != nil || sql == "" {
		return ""
	}
	return planHint
}
