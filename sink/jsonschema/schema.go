// Package jsonschema checks JSON texts by a JSON Schema, and changes nothing in them.
//
// Schemas without $schema are read as draft 7, as Confluent's serializers do; drafts 4
// to 2020-12 are known. Numbers are compared exactly. Nothing is fetched: what a schema
// refers to is in it, or in what it is given with.
package jsonschema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/semelhq/semel/sink"
)

// Schema doesn't change, and may be used from several goroutines.
type Schema struct {
	of     *jsonschema.Schema
	fields []string
	typ    *sink.Type
}

// base is where a schema without $id stands, so that references are relative to
// something.
const (
	root = "semel:///"
	base = root + "schema"
)

// Parse reads a schema. references holds the texts that it refers to by name: the
// whole of a $ref, or the end of one.
func Parse(schema string, references map[string]string) (*Schema, error) {
	return parse(schema, given(references))
}

// ParseFile reads a schema in a file. What it refers to is looked for beside it.
func ParseFile(name string) (*Schema, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parse(string(text), beside(filepath.Dir(name)))
}

func parse(schema string, from jsonschema.URLLoader) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	c.UseLoader(from)
	if err := c.AddResource(base, doc); err != nil {
		return nil, err
	}
	s := &Schema{typ: typeOf(doc, from)}
	if s.of, err = c.Compile(base); err != nil {
		if load := (*jsonschema.LoadURLError)(nil); errors.As(err, &load) { // it hides its cause
			return nil, fmt.Errorf("failing loading %q: %w", load.URL, load.Err)
		}
		return nil, err
	}
	s.fields = properties(s.of)
	return s, nil
}

// given are schemas by the names under which others refer to them.
type given map[string]string

// ErrUnknownReference says that a schema refers to what it wasn't given with.
var ErrUnknownReference = errors.New("a reference that is neither in the schema nor among its references")

// Load implements the compiler's loader.
func (g given) Load(url string) (any, error) {
	for name, text := range g {
		if url == name || strings.HasSuffix(url, "/"+strings.TrimLeft(name, "./")) {
			return jsonschema.UnmarshalJSON(strings.NewReader(text))
		}
	}
	return nil, ErrUnknownReference
}

// beside are files in a folder, and below.
type beside string

// Load implements the compiler's loader.
func (b beside) Load(url string) (any, error) {
	name, relative := strings.CutPrefix(url, root)
	if !relative {
		name = path.Base(url) // beside a schema whose $id is a URL
	}
	if !filepath.IsLocal(name) {
		return nil, ErrUnknownReference
	}
	text, err := os.ReadFile(filepath.Join(string(b), name))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownReference, err)
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// properties are the fields that a schema names; nil if it doesn't say all of them.
func properties(s *jsonschema.Schema) (names []string) {
	for s.Ref != nil && len(s.Properties) == 0 {
		s = s.Ref
	}
	if no, ok := s.AdditionalProperties.(bool); !ok || no || len(s.PatternProperties) > 0 {
		return nil
	}
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Fields are the names of the fields of an object; ok is false if there may be others.
func (s *Schema) Fields() (names []string, ok bool) { return s.fields, s.fields != nil }

// Error says where a text is not what the schema says.
type Error struct {
	At  string // a JSON pointer; "": the whole
	Why string
	And int // how many other places there are
}

func (e *Error) Error() string {
	at := e.At
	if at == "" {
		at = "the whole"
	}
	more := ""
	if e.And > 0 {
		more = fmt.Sprintf(", and %d more", e.And)
	}
	return at + ": " + e.Why + more
}

// maxExponent is far beyond what any column takes, and bounds what comparing costs.
const maxExponent = 10_000

var (
	errMore     = errors.New("more after the JSON text")
	errExponent = errors.New("a number with an exponent beyond 10,000, which no schema is applied to")
)

// AppendJSON appends the text as it is, if the schema allows it; else the error is
// about the text, an *Error if it is JSON at all.
func (s *Schema) AppendJSON(dst, text []byte) ([]byte, error) {
	if err := s.Validate(text); err != nil {
		return dst, err
	}
	return append(dst, text...), nil
}

// Validate looks at a text.
func (s *Schema) Validate(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	if len(bytes.TrimLeft(text[d.InputOffset():], " \t\r\n")) > 0 {
		return errMore
	}
	if !bounded(v) {
		return errExponent
	}
	err := s.of.Validate(v)
	var wrong *jsonschema.ValidationError
	if !errors.As(err, &wrong) {
		return err
	}
	var all []Error
	english := message.NewPrinter(language.English)
	leaves(wrong, func(e *jsonschema.ValidationError) {
		all = append(all, Error{At: pointer(e.InstanceLocation), Why: e.ErrorKind.LocalizedString(english)})
	})
	// The order of a map's keys is not the library's to know.
	slices.SortFunc(all, func(a, b Error) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Why, b.Why)) })
	all = slices.Compact(all)
	first := all[0]
	first.And = len(all) - 1
	return &first
}

func leaves(e *jsonschema.ValidationError, visit func(*jsonschema.ValidationError)) {
	if len(e.Causes) == 0 {
		visit(e)
	}
	for _, c := range e.Causes {
		leaves(c, visit)
	}
}

func pointer(names []string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(n))
	}
	return b.String()
}

// bounded says that no number would be far more digits than it has bytes.
func bounded(v any) bool {
	switch v := v.(type) {
	case json.Number:
		i := strings.IndexAny(string(v), "eE")
		if i < 0 {
			return true
		}
		digits := strings.TrimLeft(string(v[i+1:]), "+-0")
		return len(digits) < 5 || len(digits) == 5 && digits <= fmt.Sprint(maxExponent)
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !bounded(e) })
	case map[string]any:
		for _, e := range v {
			if !bounded(e) {
				return false
			}
		}
	}
	return true
}
