package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/nearest"
)

// reader walks the nodes of a file. It goes on after a mistake, so that one run
// shows them all.
type reader struct {
	file              *File
	env               func(string) (string, bool)
	brokers, database string // from above the file
	errs              []*Error
	registered        bool // the file names a schema registry, here or further down
}

type pos struct{ line, column int }

func (r *reader) fail(n *yaml.Node, what, hint string) {
	r.failAt(n.Line, n.Column, what, hint)
}

func (r *reader) failAt(line, column int, what, hint string) {
	r.errs = append(r.errs, &Error{File: r.file.Name, Line: max(line, 1), Column: max(column, 1), What: what, Hint: hint})
}

// blank says whether there is nothing but white space and comments.
func blank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// document is the node of the file's content, or nil.
func (r *reader) document(data []byte) *yaml.Node {
	if !utf8.Valid(data) {
		line, column := 1, 1
		for len(data) > 0 {
			c, size := utf8.DecodeRune(data)
			if c == utf8.RuneError && size == 1 {
				break
			}
			if column++; c == '\n' {
				line, column = line+1, 1
			}
			data = data[size:]
		}
		r.failAt(line, column, "not valid UTF-8", "")
		return nil
	}
	if blank(data) {
		r.failAt(1, 1, "the file is empty", "it begins like kafka: {brokers: localhost:9092}")
		return nil
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		var one *yaml.LoadError
		if errors.As(err, &one) {
			what := strings.TrimPrefix(one.Message, "yaml: ")
			if one.ContextMsg != "" {
				what += " " + one.ContextMsg
				if one.ContextMark.Line > 0 && one.ContextMark.Line != one.Mark.Line {
					what += fmt.Sprintf(" that begins in line %d", one.ContextMark.Line)
				}
			}
			r.failAt(one.Mark.Line, one.Mark.Column, what, "")
			return nil
		}
		r.failAt(1, 1, strings.TrimPrefix(err.Error(), "yaml: "), "")
		return nil
	}
	if len(doc.Content) != 1 {
		r.failAt(1, 1, "the file is empty", "")
		return nil
	}
	return doc.Content[0]
}

// field reads the value of a field, whose path is at.
type field func(n *yaml.Node, at string)

type fields map[string]field

// object reads a mapping by its fields. It says which ones are there.
func (r *reader) object(n *yaml.Node, at string, fs fields) (seen map[string]*yaml.Node) {
	seen = map[string]*yaml.Node{}
	if n = target(n); n.Kind != yaml.MappingNode {
		r.wrong(n, at, "fields: "+strings.Join(slices.Sorted(maps.Keys(fs)), ", "))
		return seen
	}
	r.pairs(n, at, func(key, value *yaml.Node) {
		read, ok := fs[key.Value]
		if !ok {
			hint := ""
			if near := nearest.Name(key.Value, slices.Collect(maps.Keys(fs))); near != "" {
				hint = "did you mean " + near + "?"
				if seen[near] == nil {
					seen[near] = value // so that it is not called missing as well
				}
			} else {
				hint = "there are " + strings.Join(slices.Sorted(maps.Keys(fs)), ", ")
			}
			r.fail(key, "unknown field "+join(at, key.Value), hint)
			return
		}
		seen[key.Value] = value
		read(value, join(at, key.Value))
	})
	return seen
}

// pairs goes through a mapping whose keys are texts, each once.
func (r *reader) pairs(n *yaml.Node, at string, each func(key, value *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			r.fail(key, "merge keys (<<) are not read here", "write the fields out")
			continue
		case key.Kind != yaml.ScalarNode:
			r.fail(key, "a field's name must be a word", "")
			continue
		}
		if line, twice := lines[key.Value]; twice {
			r.fail(key, fmt.Sprintf("%s twice: first in line %d", join(at, key.Value), line), "")
			continue
		}
		lines[key.Value] = key.Line
		r.file.at[join(at, key.Value)] = pos{key.Line, key.Column}
		each(key, value)
	}
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// target is the node itself, or the one that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// later refuses a field of a later version.
func (r *reader) later(n *yaml.Node, at string) {
	p, ok := r.file.at[at]
	if !ok {
		p = pos{n.Line, n.Column}
	}
	r.failAt(p.line, p.column, at+" is not in this version", "")
}

// wrong says that a value has the wrong type, without showing it.
func (r *reader) wrong(n *yaml.Node, at, needs string) {
	is := map[string]string{
		"!!str": "a text", "!!int": "a whole number", "!!float": "a number", "!!bool": "true or false",
		"!!null": "empty", "!!timestamp": "a time", "!!map": "a list of fields", "!!seq": "a list",
	}[n.ShortTag()]
	if is == "" {
		is = n.ShortTag()
	}
	r.fail(n, fmt.Sprintf("%s is %s, it needs %s", at, is, needs), "")
}

// scalar is a value's text with variables in place. plain says that nothing but
// a variable stood there, so that its text takes the field's type.
func (r *reader) scalar(n *yaml.Node, at, needs string) (text string, plain, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		r.wrong(n, at, needs)
		return "", false, false
	}
	if n.ShortTag() != "!!str" {
		return n.Value, false, true
	}
	return r.expand(n, at)
}

// expand puts variables in place: ${NAME}, ${NAME:-default}; $${ is ${. What a
// variable holds is not looked at again.
func (r *reader) expand(n *yaml.Node, at string) (text string, only, ok bool) {
	var b strings.Builder
	ok = true
	for rest := n.Value; rest != ""; {
		i := strings.IndexByte(rest, '$')
		if i < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		rest = rest[i:]
		switch {
		case strings.HasPrefix(rest, "$${"):
			b.WriteString("${")
			rest = rest[3:]
		case strings.HasPrefix(rest, "${"):
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				r.fail(n, at+": ${ without }", "$${ stands for ${ itself")
				return "", false, false
			}
			name, fallback, has := strings.Cut(rest[2:end], ":-")
			only = end+1 == len(n.Value)
			rest = rest[end+1:]
			if !variable(name) {
				r.fail(n, at+": no name of a variable stands in ${…}", "$${ stands for ${ itself")
				ok = false
				continue
			}
			value, set := r.env(name)
			switch {
			case has && value == "":
				value = fallback
			case !set:
				r.fail(n, at+": the variable "+name+" is not set", "set it, or write ${"+name+":-default}")
				ok = false
			}
			b.WriteString(value)
		default:
			b.WriteByte('$')
			rest = rest[1:]
		}
	}
	return b.String(), only, ok
}

func variable(s string) bool {
	for i, c := range s {
		if !(c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return s != ""
}

// text reads a text into dst.
func (r *reader) text(dst *string) field {
	return func(n *yaml.Node, at string) {
		if s, ok := r.string(n, at, "a text"); ok {
			*dst = s
		}
	}
}

func (r *reader) string(n *yaml.Node, at, needs string) (string, bool) {
	n = target(n)
	s, _, ok := r.scalar(n, at, needs)
	if ok && n.ShortTag() != "!!str" {
		r.wrong(n, at, needs+" (in quotes, if it is one)")
		return "", false
	}
	if strings.ContainsRune(s, 0) {
		r.fail(n, at+" holds a NUL", "")
		return "", false
	}
	return s, ok
}

// name reads a text that is not empty and has no control characters.
func (r *reader) name(dst *string) field {
	return func(n *yaml.Node, at string) {
		s, ok := r.string(n, at, "a name")
		switch {
		case !ok:
		case strings.TrimSpace(s) == "":
			r.fail(target(n), at+" is empty", "")
		case len(s) > 249 || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7F }):
			r.fail(target(n), at+" is no name: too long, or with control characters", "")
		default:
			*dst = s
		}
	}
}

// choice reads one of a few words.
func choice[T ~string](r *reader, dst *T, words []T, later ...T) field {
	return func(n *yaml.Node, at string) {
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = string(w)
		}
		s, ok := r.string(n, at, "one of "+strings.Join(all, ", "))
		switch {
		case !ok:
		case slices.Contains(all, s):
			*dst = T(s)
		case slices.Contains(later, T(s)):
			r.fail(target(n), at+": "+s+" is not in this version", "there is "+strings.Join(all, ", "))
		default:
			hint := "there is " + strings.Join(all, ", ")
			if near := nearest.Name(s, all); near != "" {
				hint = "did you mean " + near + "?"
			}
			r.fail(target(n), fmt.Sprintf("%s: there is no %q", at, s), hint)
		}
	}
}

func (r *reader) bool(dst *bool) field {
	return func(n *yaml.Node, at string) {
		n = target(n)
		s, only, ok := r.scalar(n, at, "true or false")
		switch {
		case !ok:
		case n.ShortTag() != "!!bool" && !only, s != "true" && s != "false":
			r.wrong(n, at, "true or false")
		default:
			*dst = s == "true"
		}
	}
}

// whole reads a whole number within bounds.
func (r *reader) whole(dst *int, least, most int) field {
	return func(n *yaml.Node, at string) {
		n = target(n)
		s, only, ok := r.scalar(n, at, "a whole number")
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		switch {
		case n.ShortTag() != "!!int" && !only, err != nil:
			r.wrong(n, at, "a whole number")
		case v < least || v > most:
			r.fail(n, fmt.Sprintf("%s is %d, it must lie between %d and %d", at, v, least, most), "")
		default:
			*dst = v
		}
	}
}

// duration reads 7d, 1h30m, 0.
func (r *reader) duration(dst *time.Duration, least time.Duration) field {
	return func(n *yaml.Node, at string) {
		n = target(n)
		const needs = "a duration, like 7d or 1h30m"
		s, _, ok := r.scalar(n, at, needs)
		if !ok {
			return
		}
		d, err := model.ParseDuration(s)
		switch {
		case err != nil && n.ShortTag() == "!!str":
			r.fail(n, fmt.Sprintf("%s: %q is no duration", at, s), "durations are like 7d, 1h30m, 500ms")
		case err != nil:
			r.wrong(n, at, needs)
		case time.Duration(d) < least:
			r.fail(n, fmt.Sprintf("%s is %s, it must be at least %s", at, d, model.Duration(least)), "")
		default:
			*dst = time.Duration(d)
		}
	}
}

// size reads 16MiB, in bytes.
func (r *reader) size(dst *int64, least int64) field {
	return func(n *yaml.Node, at string) {
		n = target(n)
		const needs = "a size, like 16MiB"
		s, only, ok := r.scalar(n, at, needs)
		if !ok {
			return
		}
		v, err := humanize.ParseBytes(s)
		if tag := n.ShortTag(); tag != "!!str" && tag != "!!int" && !only {
			r.wrong(n, at, needs)
			return
		}
		switch {
		case err != nil || v > math.MaxInt64 || strings.HasPrefix(s, "-"):
			r.fail(n, fmt.Sprintf("%s: %q is no size", at, s), "sizes are like 16MiB, 500kB")
		case int64(v) < least:
			r.fail(n, fmt.Sprintf("%s is %s, it must be at least %s", at, s, sizeForm.Replace(humanize.IBytes(uint64(least)))), "")
		default:
			*dst = int64(v)
		}
	}
}

// sizeForm writes humanize's "1.0 MiB" as the file does: 1MiB.
var sizeForm = strings.NewReplacer(".0 ", "", " ", "")

// share reads 5%.
func (r *reader) share(dst *float64) field {
	return func(n *yaml.Node, at string) {
		s, ok := r.string(n, at, "a share, like 5%")
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil || !strings.HasSuffix(s, "%") || !(v >= 0 && v <= 100) {
			r.fail(target(n), fmt.Sprintf("%s: %q is no share", at, s), "shares are like 5%, from 0% to 100%")
			return
		}
		*dst = v / 100
	}
}

var rateForm = regexp.MustCompile(`^([1-9][0-9]{0,8})/(s|m)$`)

// rate reads 5000/s or 300/m.
func (r *reader) rate(dst *Rate) field {
	return func(n *yaml.Node, at string) {
		s, ok := r.string(n, at, "a rate, like 5000/s")
		if !ok {
			return
		}
		m := rateForm.FindStringSubmatch(s)
		if m == nil {
			r.fail(target(n), fmt.Sprintf("%s: %q is no rate", at, s), "rates are like 5000/s or 300/m: whole numbers above 0, a second or a minute")
			return
		}
		dst.Messages, _ = strconv.Atoi(m[1])
		dst.Per = map[string]time.Duration{"s": time.Second, "m": time.Minute}[m[2]]
	}
}

// list reads a list, each element at path[i].
func (r *reader) list(n *yaml.Node, at, needs string, each field) {
	n = target(n)
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, at, needs)
		return
	}
	if len(n.Content) == 0 {
		r.fail(n, at+" is empty", "")
	}
	for i, c := range n.Content {
		path := fmt.Sprintf("%s[%d]", at, i)
		r.file.at[path] = pos{c.Line, c.Column}
		each(c, path)
	}
}

// names reads a list of names, each once.
func (r *reader) names(dst *[]string) field {
	return func(n *yaml.Node, at string) {
		r.list(n, at, "a list of names", func(n *yaml.Node, at string) {
			var s string
			r.name(&s)(n, at)
			if s == "" {
				return
			}
			if slices.Contains(*dst, s) {
				r.fail(n, fmt.Sprintf("%s: %q twice", at, s), "")
				return
			}
			*dst = append(*dst, s)
		})
	}
}

// secret reads a text, or {file: PATH}. Mistakes in it never show it.
func (r *reader) secret(dst *Secret) field {
	return func(n *yaml.Node, at string) {
		n = target(n)
		if n.Kind == yaml.MappingNode {
			var file string
			if r.object(n, at, fields{"file": r.name(&file)}); file != "" {
				*dst = SecretFile(file)
			}
			return
		}
		s, _, ok := r.scalar(n, at, "a text or {file: …}")
		if ok && n.ShortTag() != "!!str" {
			r.wrong(n, at, "a text (in quotes, if it is one) or {file: …}")
			return
		}
		if ok {
			*dst = NewSecret(s)
		}
	}
}
