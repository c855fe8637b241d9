package jsonschema_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel/sink/jsonschema"
)

const order = `{"type":"object","required":["id"],"additionalProperties":false,"properties":{
	"id":{"type":"integer","minimum":1},
	"total":{"type":"number","multipleOf":0.01},
	"mail":{"type":"string","format":"email"},
	"lines":{"type":"array","items":{"$ref":"#/definitions/line"}},
	"to":{"oneOf":[{"type":"null"},{"$ref":"address.json"}]}},
	"definitions":{"line":{"type":"object","properties":{"sku":{"type":"string","pattern":"^[A-Z]+$"},"n":{"type":"integer"}}}}}`

const address = `{"type":"object","properties":{"city":{"type":"string","maxLength":5}},"required":["city"]}`

func parse(t testing.TB, schema string, references map[string]string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.Parse(schema, references)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatTheSchemaAllowsIsHandedOnAsItIs(t *testing.T) {
	t.Parallel()
	s := parse(t, order, map[string]string{"address.json": address})
	for _, text := range []string{
		`{"id":9007199254740993,"total":1.10}`, ` {"id": 1.0, "total": 12345678901234567890.01}`, `{"id":1e2,"lines":[{"sku":"A","n":1}],"to":{"city":"Łódź"}}`, `{"id":1,"to":null}`,
	} {
		if got, err := s.AppendJSON([]byte("x"), []byte(text)); err != nil || string(got) != "x"+text {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
}

func TestWhatTheSchemaForbidsIsNamedWithItsPlace(t *testing.T) {
	t.Parallel()
	s := parse(t, order, map[string]string{"address.json": address})
	for text, want := range map[string]string{
		`{}`:                                    `the whole: missing property 'id'`,
		`[]`:                                    `the whole: got array, want object`,
		`{"id":"1"}`:                            `/id: got string, want integer`,
		`{"id":0}`:                              `/id: minimum: got 0, want 1`,
		`{"id":0,"total":"x"}`:                  `/id: minimum: got 0, want 1, and 1 more`,
		`{"id":1,"total":9007199254740993.001}`: `/total: multipleOf`,
		`{"id":1,"other":2}`:                    `the whole: additional properties 'other' not allowed`,
		`{"id":1,"lines":[{"sku":"A"},{"sku":"a b","n":1.5}]}`: `/lines/1/n: got number, want integer, and 1 more`,
		`{"id":1,"to":{"city":"too long"}}`:                    `/to: got object, want null, and 1 more`,
		`{"id":1,"mail":"no address"}`:                         `/mail: 'no address' is not valid email`,
	} {
		err := s.Validate([]byte(text))
		var e *jsonschema.Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if again := s.Validate([]byte(text)); again.Error() != err.Error() {
			t.Errorf("%s, and again %s", err, again)
		}
	}
}

func TestWhatIsNoJSONIsRefused(t *testing.T) {
	t.Parallel()
	s := parse(t, `{}`, nil)
	for _, text := range []string{``, ` `, `{`, `{"a":1}x`, `{"a":1}{}`, `{"a":1e99999999999}`, `{"a":[1e-10001]}`, `nul`} {
		if err := s.Validate([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if err := s.Validate([]byte(` {"a":1e0010000} `)); err != nil {
		t.Error(err)
	}
}

func TestReferencesAreThoseThatAreGiven(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`{"$ref":"address.json"}`, `{"$id":"https://shop.example/schemas/order.json","$ref":"address.json"}`, `{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"$ref":"./address.json"}},"$ref":"address.json"}`,
	} {
		s := parse(t, schema, map[string]string{"address.json": address})
		if err := s.Validate([]byte(`{"city":"too long"}`)); err == nil {
			t.Errorf("%s: what it refers to isn't looked at", schema)
		}
	}
	if _, err := jsonschema.Parse(`{"$ref":"https://example.com/other.json"}`, nil); !errors.Is(err, jsonschema.ErrUnknownReference) {
		t.Errorf("a reference that isn't there: %v", err)
	}
	for _, wrong := range []string{`{"type":"strin"}`, `{`, `[]`, `{"pattern":"("}`} {
		if _, err := jsonschema.Parse(wrong, nil); err == nil {
			t.Errorf("%s is a schema", wrong)
		}
	}
}

func TestFieldsAreKnownOfAClosedObject(t *testing.T) {
	t.Parallel()
	if names, ok := parse(t, order, map[string]string{"address.json": address}).Fields(); !ok || !slices.Equal(names, []string{"id", "lines", "mail", "to", "total"}) {
		t.Error(names, ok)
	}
	for _, open := range []string{`{"properties":{"a":{}}}`, `{}`, `{"additionalProperties":false,"patternProperties":{"^x":{}}}`, `true`} {
		if names, ok := parse(t, open, nil).Fields(); ok {
			t.Error(open, names)
		}
	}
}

func FuzzAnyTextIsJudged(f *testing.F) {
	s := parse(f, order, map[string]string{"address.json": address})
	for _, text := range []string{`{"id":1}`, `{"id":1,"total":1e-5,"lines":[{}]}`, `{"id":1e9999}`, `{"to":{"city":"x"}}`, "\xff", `{"id":1,"id":2}`, `[[[[`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := s.AppendJSON(nil, text)
		if err == nil && (string(got) != string(text) || !json.Valid(text)) {
			t.Fatalf("%q is taken", text)
		}
	})
}
