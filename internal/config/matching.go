package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// template is a part of a topic's name in a table's: {0} is all of it, {1} the
// first group of topics_matching.
var template = regexp.MustCompile(`\{(\d+)\}`)

// regexp is topics_matching for whole names; it was checked when it was read.
func (f From) regexp() *regexp.Regexp { return regexp.MustCompile("^(?:" + f.Matching + ")$") }

// Reads says whether the route reads the topic.
func (f From) Reads(topic string) bool {
	if f.Matching != "" {
		return f.regexp().MatchString(topic)
	}
	for _, t := range f.Topics {
		if t == topic {
			return true
		}
	}
	return false
}

// Several says that there may be more than one topic.
func (f From) Several() bool { return f.Matching != "" || len(f.Topics) > 1 }

// Words are the topics for people.
func (f From) Words() string {
	switch {
	case f.Matching != "":
		return "topics matching " + f.Matching
	case len(f.Topics) == 1:
		return "topic " + f.Topics[0]
	}
	return "topics " + strings.Join(f.Topics, ", ")
}

// Target is the table as the file has it, or the template; of SQL the name of its
// relation.
func (t To) Target() string {
	if t.Query.SQL != "" {
		return "batch"
	}
	if t.Template != "" {
		return t.Template
	}
	return t.Table.String()
}

// TableOf is the table of a topic, as in SQL. Inside of double quotes a part of the
// topic's name is exact, outside it is folded, as if it had been written there.
func (r Route) TableOf(topic string) (string, error) {
	if r.To.Template == "" {
		return r.To.Table.String(), nil
	}
	groups := r.From.groups(topic)
	if groups == nil {
		return r.To.Template, fmt.Errorf("topic %s doesn't match %s", topic, r.From.Matching)
	}
	return fill(r.To.Template, groups)
}

// groups are what stands for {0}, {1}, …; nil if the topic doesn't match.
func (f From) groups(topic string) []string {
	if f.Matching == "" {
		return []string{topic}
	}
	return f.regexp().FindStringSubmatch(topic)
}

// fill puts groups into a template. One that is empty is an error.
func fill(text string, groups []string) (string, error) {
	var empty error
	name := template.ReplaceAllStringFunc(text, func(place string) string {
		n, _ := strconv.Atoi(place[1 : len(place)-1])
		if groups[n] == "" {
			empty = fmt.Errorf("%s is empty in topic %s", place, groups[0])
		}
		return groups[n]
	})
	return name, empty
}

// ValueSubject is what the schema registry calls the schemas of a topic's values.
func (r Route) ValueSubject(topic string) string { return r.subject(r.Schema, topic, "-value") }

// KeySubject is that of its keys.
func (r Route) KeySubject(topic string) string { return r.subject(r.From.KeySchema, topic, "-key") }

func (r Route) subject(s Schema, topic, usual string) string {
	groups := r.From.groups(topic)
	if s.Subject == "" || groups == nil {
		return topic + usual
	}
	name, _ := fill(s.Subject, groups) // the registry doesn't know it then
	return name
}
