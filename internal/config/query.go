package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/sink"
)

// Query is SQL over batches, instead of a table.
type Query struct {
	SQL      string // "": there is a table
	Relation []QueryColumn
	Expect   Expect
}

// QueryColumn is a column of the relation; its expression is the one of its name
// in [To.Columns].
type QueryColumn struct{ Name, Type string }

// Expect says what a query promises.
type Expect string

const (
	ExpectAny  Expect = "any"
	ExpectEach Expect = "each"
)

// query checks what belongs to SQL: what is said of tables has no effect.
func (r *reader) query(n *yaml.Node, at string, t *To, seen map[string]*yaml.Node) {
	for _, f := range []string{"table", "write", "primary_key", "version", "columns", "on_exists", "combine", "deleted", "create", "evolve"} {
		if seen[f] != nil {
			r.failPath(join(at, f), "without effect: sql says what becomes of messages", "")
		}
	}
	for _, f := range []string{"sql", "relation"} {
		if seen[f] == nil {
			r.missing(n, join(at, f), map[string]string{
				"sql":      "sql: INSERT INTO t SELECT … FROM batch",
				"relation": "relation: {account: {type: text, from: value.account}}",
			}[f])
		}
	}
	if t.Absent == AbsentKeep {
		r.failPath(join(at, "absent"), "keep is for tables: a relation has every column", "")
	}
	if t.Tombstone == TombstoneDelete {
		r.failPath(join(at, "tombstone"), "delete is for write: mirror", "")
	}
	for c := range t.Epoch {
		if !slices.ContainsFunc(t.Query.Relation, func(x QueryColumn) bool { return x.Name == c }) {
			r.failPath(join(at, "times.epoch."+c), fmt.Sprintf("no column %q in relation", c), near(c, t.Columns))
		}
	}
	t.Write = SQL
}

func (r *reader) relation(n *yaml.Node, at string, t *To) {
	n = target(n)
	const needs = "fields: columns, each with its type and where it comes from"
	if n.Kind != yaml.MappingNode {
		r.wrong(n, at, needs)
		return
	}
	r.pairs(n, at, func(key, value *yaml.Node) {
		name := key.Value
		if name == "" || len(name) > sqlname.MaxBytes || name == "n" {
			r.fail(key, at+": a column's name has 1 to 63 bytes, and n is the message's number", "")
			return
		}
		c, from := QueryColumn{Name: name}, sink.Path{}
		seen := r.object(value, join(at, name), fields{
			"type": r.name(&c.Type),
			"from": func(n *yaml.Node, at string) { from = r.expr(n, at, sink.ParseExpr) },
		})
		for _, f := range []string{"type", "from"} {
			if seen[f] == nil && target(value).Kind == yaml.MappingNode {
				r.missing(target(value), join(join(at, name), f), map[string]string{"type": "type: text", "from": "from: value." + name}[f])
			}
		}
		t.Query.Relation = append(t.Query.Relation, c)
		t.Columns = append(t.Columns, sink.Column{Name: name, From: from})
	})
	if len(n.Content) == 0 {
		r.fail(n, at+" is empty", "")
	}
}

func (r *reader) statement(n *yaml.Node, at string, t *To) {
	s, ok := r.string(n, at, "SQL over the relation named batch")
	if ok && strings.TrimSpace(s) == "" {
		r.fail(target(n), at+" is empty", "")
		return
	}
	t.Query.SQL = s
}
