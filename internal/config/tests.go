package config

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/sqlname"
)

// Test says what a route makes of some messages.
type Test struct {
	Name     string
	Route    string
	Given    []TestRows // that are there before
	Messages []TestMessage
	// Rows are all that tables hold afterwards, with the columns that matter; nil: not
	// looked at.
	Rows []TestRows
	Path string
}

// TestRows are rows of a table, as JSON objects.
type TestRows struct {
	Table sqlname.Table // zero: the route's
	Rows  []string
	Path  string
}

// TestMessage is one of a test, and what should become of it.
type TestMessage struct {
	Topic     string // "": the route's first
	Partition int
	Timestamp time.Time
	Key       []byte // nil: none
	Value     []byte // nil: a tombstone
	Headers   [][2]string
	Outcome   string // "": any
	Class     string // of a dead letter; "": any
	Path      string
}

// testTime is when a message of a test was sent, if it doesn't say.
var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (r *reader) tests(n *yaml.Node, at string) {
	r.list(n, at, "a list of tests", func(n *yaml.Node, at string) {
		r.file.Tests = append(r.file.Tests, r.test(n, at))
	})
	names := map[string]string{}
	for i := range r.file.Tests {
		t := &r.file.Tests[i]
		if other, twice := names[t.Name]; twice && t.Name != "" {
			r.failPath(t.Path+".name", fmt.Sprintf("the name %q twice: %s has it", t.Name, other), "")
		}
		names[t.Name] = t.Path
	}
}

// testedRoutes is called when the routes are known: they may stand below the tests.
func (r *reader) testedRoutes() {
	for i := range r.file.Tests {
		t := &r.file.Tests[i]
		if t.Route == "" && len(r.file.Routes) == 1 {
			t.Route = r.file.Routes[0].Name
		}
		var names []string
		for _, route := range r.file.Routes {
			names = append(names, route.Name)
			if route.Name == t.Route {
				r.testedTopics(t, route)
			}
		}
		switch {
		case t.Route == "":
			r.failPath(t.Path, t.Path+".route is missing", "there are "+strings.Join(names, ", "))
		case !slices.Contains(names, t.Route):
			r.failPath(t.Path+".route", fmt.Sprintf("no route is called %q", t.Route), "there are "+strings.Join(names, ", "))
		}
	}
}

func (r *reader) testedTopics(t *Test, route Route) {
	for _, m := range t.Messages {
		if m.Topic != "" && (len(route.From.Topics) > 0 || route.From.Matching != "") && !route.From.Reads(m.Topic) {
			r.failPath(m.Path+".topic", fmt.Sprintf("route %s doesn't read %q", route.Name, m.Topic), "it reads "+route.From.Words())
		}
	}
}

func (r *reader) test(n *yaml.Node, at string) Test {
	t := Test{Path: at}
	seen := r.object(n, at, fields{
		"name":  r.name(&t.Name),
		"route": r.name(&t.Route),
		"given": r.testRows(&t.Given),
		"messages": func(n *yaml.Node, at string) {
			r.list(n, at, "a list of messages", func(n *yaml.Node, at string) {
				t.Messages = append(t.Messages, r.testMessage(n, at))
			})
		},
		"rows": r.testRows(&t.Rows),
	})
	for _, f := range []string{"name", "messages"} {
		if seen[f] == nil {
			r.missing(target(n), join(at, f), "")
		}
	}
	if seen["rows"] == nil && !slices.ContainsFunc(t.Messages, func(m TestMessage) bool { return m.Outcome != "" }) {
		r.fail(target(n), at+" expects nothing", "rows: […], or an outcome of its messages")
	}
	return t
}

// testRows are those of the route's table, as a list, or of several tables by their
// names.
func (r *reader) testRows(dst *[]TestRows) field {
	rows := func(n *yaml.Node, at string, table sqlname.Table) {
		one := TestRows{Table: table, Rows: []string{}, Path: at}
		if n = target(n); n.Kind != yaml.SequenceNode || len(n.Content) > 0 { // none
			r.list(n, at, "a list of rows", func(n *yaml.Node, at string) {
				if n = target(n); n.Kind != yaml.MappingNode {
					r.wrong(n, at, "columns with their values")
					return
				}
				if text, ok := r.json(n, at); ok {
					one.Rows = append(one.Rows, text)
				}
			})
		}
		*dst = append(*dst, one)
	}
	return func(n *yaml.Node, at string) {
		if n = target(n); n.Kind != yaml.MappingNode {
			rows(n, at, sqlname.Table{})
			return
		}
		r.pairs(n, at, func(key, value *yaml.Node) {
			table, err := sqlname.ParseTable(key.Value)
			if err != nil {
				r.fail(key, fmt.Sprintf("%s: %v", at, err), "a table is named as in SQL")
				return
			}
			rows(value, join(at, key.Value), table)
		})
	}
}

func (r *reader) testMessage(n *yaml.Node, at string) TestMessage {
	m := TestMessage{Path: at, Timestamp: testTime}
	raw := func(dst *[]byte) field {
		return func(n *yaml.Node, at string) {
			var s string
			r.text(&s)(n, at)
			*dst = []byte(s)
		}
	}
	coded := func(dst *[]byte) field {
		return func(n *yaml.Node, at string) {
			var s string
			r.text(&s)(n, at)
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				r.fail(target(n), at+" is no base64", "")
			}
			*dst = append([]byte{}, b...)
		}
	}
	seen := r.object(n, at, fields{
		"topic":     r.name(&m.Topic),
		"partition": r.whole(&m.Partition, 0, math.MaxInt32),
		"timestamp": func(n *yaml.Node, at string) {
			s, _, ok := r.scalar(target(n), at, "a time")
			if !ok {
				return
			}
			when, err := time.Parse(time.RFC3339Nano, s)
			if err != nil {
				r.fail(target(n), fmt.Sprintf("%s: %q is no time", at, s), "like 2026-01-02T03:04:05Z")
			}
			m.Timestamp = when
		},
		"key": func(n *yaml.Node, at string) {
			if n = target(n); n.Kind != yaml.ScalarNode {
				if text, ok := r.json(n, at); ok {
					m.Key = []byte(text)
				}
			} else if n.ShortTag() != "!!null" {
				if s, _, ok := r.scalar(n, at, "a key"); ok {
					m.Key = []byte(s)
				}
			}
		},
		"key_base64": coded(&m.Key),
		"value": func(n *yaml.Node, at string) {
			if n = target(n); n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
				return
			}
			if text, ok := r.json(n, at); ok {
				m.Value = []byte(text)
			}
		},
		"text":   raw(&m.Value),
		"base64": coded(&m.Value),
		"headers": func(n *yaml.Node, at string) {
			if n = target(n); n.Kind != yaml.MappingNode {
				r.wrong(n, at, "names with their texts")
				return
			}
			r.pairs(n, at, func(key, value *yaml.Node) {
				if s, _, ok := r.scalar(target(value), join(at, key.Value), "a text"); ok {
					m.Headers = append(m.Headers, [2]string{key.Value, s})
				}
			})
		},
		"outcome": choice(r, &m.Outcome, []string{"applied", "duplicate", "stale", "superseded", "dead", "skipped"}),
		"class":   choice(r, &m.Class, []string{"decode", "missing-id", "collision", "value", "constraint", "handler"}),
	})
	forms := 0
	for _, f := range []string{"value", "text", "base64"} {
		if seen[f] != nil {
			forms++
		}
	}
	if forms != 1 {
		r.fail(target(n), at+" needs exactly one of value, text, base64", "value: null is a tombstone, text a value that is no JSON")
	}
	if seen["key"] != nil && seen["key_base64"] != nil {
		r.failPath(at+".key_base64", "without effect: key is there", "")
	}
	if seen["outcome"] != nil && m.Outcome == "" {
		m.Outcome = "?" // said already
	}
	if m.Class != "" && m.Outcome != "dead" {
		r.failPath(at+".class", "without effect: only dead letters have one", "outcome: dead")
	}
	return m
}

// json is a node's value as JSON: numbers digit by digit as they stand there.
func (r *reader) json(n *yaml.Node, at string) (string, bool) {
	n = target(n)
	switch n.Kind {
	case yaml.MappingNode:
		var b strings.Builder
		ok := true
		r.pairs(n, at, func(key, value *yaml.Node) {
			text, good := r.json(value, join(at, key.Value))
			if ok = ok && good; b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quoted(key.Value) + ": " + text)
		})
		return "{" + b.String() + "}", ok
	case yaml.SequenceNode:
		parts, ok := make([]string, len(n.Content)), true
		for i, c := range n.Content {
			text, good := r.json(c, fmt.Sprintf("%s[%d]", at, i))
			parts[i], ok = text, ok && good
		}
		return "[" + strings.Join(parts, ", ") + "]", ok
	}
	switch n.ShortTag() {
	case "!!null":
		return "null", true
	case "!!bool", "!!int", "!!float":
		if !json.Valid([]byte(n.Value)) {
			r.fail(n, fmt.Sprintf("%s: %s is no value of JSON", at, n.Value), "in quotes it is a text")
			return "", false
		}
		return n.Value, true
	case "!!str", "!!timestamp":
		s, _, ok := r.scalar(n, at, "a text")
		return quoted(s), ok
	}
	r.wrong(n, at, "a value of JSON")
	return "", false
}

func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // a text can always be written
	return strings.TrimSuffix(b.String(), "\n")
}
