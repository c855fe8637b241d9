package jsonschema_test

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/jsonschema"
)

// shape writes a type in one line.
func shape(t *sink.Type, depth int) string {
	switch {
	case t == nil || depth > 4:
		return "…"
	case t.Kind == sink.TypeRecord:
		var parts []string
		for _, f := range t.Fields {
			parts = append(parts, f.Name+": "+shape(f.Type, depth+1))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case t.Kind == sink.TypeMap:
		return "map of " + shape(t.Elem, depth+1)
	}
	return t.String()
}

func TestJSONSchemasSayTypesThatHoldEachValue(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"type":"integer"}`: "decimal",
		`{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}`: "integer of 64 bits",
		`{"type":"integer","minimum":-9223372036854775809,"maximum":9223372036854775807}`: "decimal",
		`{"type":"integer","minimum":0}`:                                                 "decimal",
		`{"type":"integer","exclusiveMinimum":0,"maximum":1e3}`:                          "decimal",
		`{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":9223372036854775807}`: "integer of 64 bits",
		`{"type":"integer","connect.type":"int32"}`:                                      "integer of 32 bits",
		`{"type":"number"}`:                                          "decimal",
		`{"type":"number","connect.type":"float64"}`:                 "double",
		`{"type":"string"}`:                                          "text",
		`{"type":["null","string"],"format":"date-time"}`:            "instant",
		`{"type":"string","format":"date"}`:                          "date",
		`{"type":"string","format":"time"}`:                          "text",
		`{"type":"string","format":"uuid"}`:                          "UUID",
		`{"type":"string","connect.type":"bytes"}`:                   "bytes",
		`{"enum":["a",null]}`:                                        "text",
		`{"enum":["a",1]}`:                                           "any value",
		`{"const":"a"}`:                                              "text",
		`{"type":["integer","string"]}`:                              "any value",
		`{"oneOf":[{"type":"null"},{"type":"boolean"}]}`:             "boolean",
		`{"anyOf":[{"type":"string"},{"type":"boolean"}]}`:           "any value",
		`{"allOf":[{"type":"string"}]}`:                              "any value",
		`true`:                                                       "any value",
		`{}`:                                                         "any value",
		`{"type":"array","items":{"type":"string"}}`:                 "array of any value",
		`{"type":"object"}`:                                          "map of any value",
		`{"type":"object","additionalProperties":{"type":"string"}}`: "map of text",
		`{"properties":{"b":{"type":"string"},"a":{"$ref":"#/definitions/x~1y"}},"definitions":{"x/y":{"type":"boolean"}}}`: "{a: boolean, b: text}",
		`{"type":"object","properties":{"z":{"type":"string","connect.index":0},"a":{"type":"string","connect.index":1}}}`:  "{z: text, a: text}",
		`{"type":"object","properties":{"next":{"$ref":"#"},"n":{"$ref":"other.json"}}}`:                                    "{n: {x: boolean}, next: {n: {x: boolean}, next: {n: {x: boolean}, next: {n: {x: …}, next: {n: …, next: …}}}}}",
		`{"type":"object","properties":{"x":{"$ref":"nowhere.json"},"y":{"$ref":"#name"},"z":{"$ref":"#/$defs/no"}}}`:       "{x: any value, y: any value, z: any value}",
	} {
		got, err := jsonschema.Type(in, map[string]string{"other.json": `{"type":"object","properties":{"x":{"type":"boolean"}}}`})
		if err != nil || shape(got, 0) != want {
			t.Errorf("%s\n got %s %v\nwant %s", in, shape(got, 0), err, want)
		}
	}
	if _, err := jsonschema.Type("{", nil); err == nil {
		t.Error("no schema is read as one")
	}
}
