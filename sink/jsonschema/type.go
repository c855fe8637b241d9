package jsonschema

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/semelhq/semel/sink"
)

// Type is what a schema says of the types of values; references as in [Parse].
//
// The rule is that a type holds whatever the schema allows, digit by digit: an
// integer is a decimal of any size unless bounds, or what Kafka Connect wrote
// beside it, say that 64 bits are enough; what may be of several types is any
// value.
func Type(schema string, references map[string]string) (*sink.Type, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return nil, err
	}
	return typeOf(doc, given(references)), nil
}

func typeOf(doc any, from jsonschema.URLLoader) *sink.Type {
	j := types{from: from, docs: map[string]any{}, done: map[string]*sink.Type{}}
	return j.of(doc, doc, 0)
}

// TypeOf implements [sink.Typed]: all texts are by this schema.
func (s *Schema) TypeOf([]byte) *sink.Type { return s.typ }

var _ sink.Typed = (*Schema)(nil)

type types struct {
	from jsonschema.URLLoader
	docs map[string]any        // what it has loaded
	done map[string]*sink.Type // by reference, so that schemas may contain themselves
}

var (
	ofText    = &sink.Type{Kind: sink.TypeText}
	ofBytes   = &sink.Type{Kind: sink.TypeBytes}
	ofInstant = &sink.Type{Kind: sink.TypeInstant}
	ofInt32   = &sink.Type{Kind: sink.TypeInt32}
	ofInt64   = &sink.Type{Kind: sink.TypeInt64}
	ofDecimal = &sink.Type{Kind: sink.TypeDecimal}
	ofBool    = &sink.Type{Kind: sink.TypeBool}
)

// maxSchemaDepth bounds what is followed; below it is any value.
const maxSchemaDepth = 100

// of is the type of a schema; doc is the document that its references are in.
func (j *types) of(v, doc any, depth int) *sink.Type {
	s, ok := v.(map[string]any)
	if !ok || depth > maxSchemaDepth {
		return &sink.Type{} // true and false are schemas too
	}
	if ref, ok := s["$ref"].(string); ok {
		return j.ref(ref, doc, depth)
	}
	for _, word := range []string{"oneOf", "anyOf"} {
		if all, ok := s[word].([]any); ok {
			return j.union(all, doc, depth)
		}
	}
	if _, both := s["allOf"]; both {
		return &sink.Type{}
	}
	switch kinds := kindsOf(s); {
	case len(kinds) != 1:
		return &sink.Type{}
	case kinds[0] == "boolean":
		return ofBool
	case kinds[0] == "integer":
		return integer(s)
	case kinds[0] == "number":
		switch s["connect.type"] {
		case "float32":
			return &sink.Type{Kind: sink.TypeFloat32}
		case "float64":
			return &sink.Type{Kind: sink.TypeFloat64}
		}
		return ofDecimal
	case kinds[0] == "string":
		return text(s)
	case kinds[0] == "array":
		return &sink.Type{Kind: sink.TypeArray, Elem: &sink.Type{}}
	case kinds[0] == "object":
		return j.object(s, doc, depth)
	}
	return &sink.Type{}
}

// kindsOf are the types that a value may have beside null. An enumeration may
// leave them out, and so may an object with properties.
func kindsOf(s map[string]any) (kinds []string) {
	switch t := s["type"].(type) {
	case string:
		kinds = []string{t}
	case []any:
		for _, k := range t {
			if k, _ := k.(string); k != "null" {
				kinds = append(kinds, k)
			}
		}
	case nil:
		values, _ := s["enum"].([]any)
		if one, ok := s["const"]; ok {
			values = []any{one}
		}
		for _, v := range values {
			if _, text := v.(string); !text && v != nil {
				return nil
			}
		}
		if len(values) > 0 {
			return []string{"string"}
		}
		if _, ok := s["properties"]; ok {
			return []string{"object"}
		}
	}
	return kinds
}

// union is the type of the only alternative that isn't null.
func (j *types) union(all []any, doc any, depth int) *sink.Type {
	var one any
	for _, v := range all {
		s, _ := v.(map[string]any)
		switch {
		case s != nil && s["type"] == "null":
		case one != nil:
			return &sink.Type{}
		default:
			one = v
		}
	}
	if one == nil {
		return &sink.Type{}
	}
	return j.of(one, doc, depth+1)
}

// ref follows #, #/definitions/a/b, and the names of referred schemas.
func (j *types) ref(ref string, doc any, depth int) *sink.Type {
	name, pointer, _ := strings.Cut(ref, "#")
	if name != "" {
		other, ok := j.docs[name]
		if !ok {
			other, _ = j.from.Load(at(name))
			j.docs[name] = other
		}
		if doc = other; doc == nil {
			return &sink.Type{}
		}
	}
	if pointer != "" && pointer[0] != '/' {
		return &sink.Type{} // a name inside of the document
	}
	key := name + "#" + pointer
	if t := j.done[key]; t != nil {
		return t
	}
	in := doc
	for _, part := range strings.Split(pointer, "/")[1:] {
		part, _ = url.PathUnescape(part)
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		inside, _ := in.(map[string]any)
		in = inside[part]
	}
	t := &sink.Type{}
	j.done[key] = t
	*t = *j.of(in, doc, depth+1)
	return t
}

// at is where a name without a place of its own stands.
func at(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	return root + strings.TrimLeft(name, "./")
}

func (j *types) object(s map[string]any, doc any, depth int) *sink.Type {
	properties, ok := s["properties"].(map[string]any)
	if !ok {
		if of, ok := s["additionalProperties"].(map[string]any); ok {
			return &sink.Type{Kind: sink.TypeMap, Elem: j.of(of, doc, depth+1)}
		}
		return &sink.Type{Kind: sink.TypeMap, Elem: &sink.Type{}}
	}
	t := &sink.Type{Kind: sink.TypeRecord}
	for _, name := range order(properties) {
		t.Fields = append(t.Fields, sink.Field{Name: name, Type: j.of(properties[name], doc, depth+1)})
	}
	return t
}

// integer fits 64 bits where bounds say so.
func integer(s map[string]any) *sink.Type {
	switch s["connect.type"] {
	case "int8", "int16":
		return &sink.Type{Kind: sink.TypeInt16}
	case "int32":
		return ofInt32
	case "int64":
		return ofInt64
	}
	low, high := false, false
	for _, word := range []string{"minimum", "exclusiveMinimum"} {
		n, ok := bound(s[word])
		low = low || ok && n.Cmp(least) >= 0
	}
	for _, word := range []string{"maximum", "exclusiveMaximum"} {
		n, ok := bound(s[word])
		high = high || ok && n.Cmp(most) <= 0
	}
	if low && high {
		return ofInt64
	}
	return ofDecimal
}

var (
	least = new(big.Rat).SetInt64(-1 << 63)
	most  = new(big.Rat).SetInt64(1<<63 - 1)
)

// bound reads a bound that isn't beyond all measure.
func bound(v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if !ok || len(n) > 40 || strings.ContainsAny(string(n), "eE") {
		return nil, false
	}
	return new(big.Rat).SetString(string(n))
}

// text goes by the format where each value of it has a place in a type. A
// time of JSON Schema has a zone or hasn't: it stays a text.
func text(s map[string]any) *sink.Type {
	switch s["format"] {
	case "date-time":
		return ofInstant
	case "date":
		return &sink.Type{Kind: sink.TypeDate}
	case "uuid":
		return &sink.Type{Kind: sink.TypeUUID}
	}
	if s["connect.type"] == "bytes" {
		return ofBytes
	}
	return ofText
}

// order are the names of properties, by what Kafka Connect says of their
// places, then by name: the order of a JSON object means nothing.
func order(properties map[string]any) []string {
	at := func(name string) float64 {
		s, _ := properties[name].(map[string]any)
		n, _ := s["connect.index"].(json.Number)
		if f, err := n.Float64(); err == nil {
			return f
		}
		return 1e9
	}
	names := slices.Collect(maps.Keys(properties))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(at(a), at(b)), strings.Compare(a, b)) })
	return names
}
