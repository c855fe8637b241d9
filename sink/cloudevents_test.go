package sink_test

import (
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func cloudEvents(t testing.TB, exprs ...string) *sink.Mapping {
	t.Helper()
	cfg := sink.MappingConfig{Open: []sink.Opener{sink.NewCloudEvents()}, ID: []sink.Path{path(t, "envelope.source"), path(t, "envelope.id")}}
	for _, e := range exprs {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: e, From: path(t, e)})
	}
	return newMapping(t, cfg)
}

func ceHeaders(pairs ...string) (hs []semel.Header) {
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, semel.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func TestCloudEventsAreOneEventBinaryAndStructured(t *testing.T) {
	t.Parallel()
	m := cloudEvents(t, "value.no", "envelope.type", "envelope.subject", "envelope.myext", "headers.other")
	binary := ceHeaders("ce_specversion", "1.0", "ce_id", "old", "ce_id", "a\"1", "ce_source", "/shop", "ce_type", "order", "content-type", "application/json", "other", "o", "ce_myext", "é")
	want := `9007199254740993|order|absent|é|o`
	for name, msg := range map[string]semel.Message{
		"binary":     {Headers: binary, Value: []byte(`{"no":9007199254740993}`)},
		"structured": {Headers: ceHeaders("content-type", "application/cloudevents+json; charset=UTF-8", "other", "o"), Value: []byte(`{"specversion":"1.0","id":"a\"1","source":"/shop","type":"order","myext":"é","data":{"no":9007199254740993}}`)},
		"base64":     {Headers: ceHeaders("other", "o"), Value: []byte(`{"specversion":"1.0","id":"a\"1","source":"/shop","type":"order","myext":"é","datacontenttype":"application/vnd.x+json","data_base64":"eyJubyI6OTAwNzE5OTI1NDc0MDk5M30="}`)},
	} {
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := texts(&row); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if id, err := m.ID(&msg, &row); err != nil || id != semel.IDOf([]byte("/shop"), []byte(`a"1`)) {
			t.Errorf("%s: the ID is %s, %v", name, id, err)
		}
	}
}

func TestAnEventWithoutDataIsIdentifiedAllTheSame(t *testing.T) {
	t.Parallel()
	m := cloudEvents(t, "value.no", "envelope.type")
	for name, msg := range map[string]semel.Message{
		"binary":     {Headers: ceHeaders("ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "gone")},
		"structured": {Value: []byte(`{"specversion":"1.0","id":"1","source":"s","type":"gone"}`)},
	} {
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil || !row.Tombstone || texts(&row) != "absent|gone" {
			t.Errorf("%s: %s, %v", name, texts(&row), err)
		}
		if id, err := m.ID(&msg, &row); err != nil || id != semel.IDOf([]byte("s"), []byte("1")) {
			t.Errorf("%s: %s, %v", name, id, err)
		}
	}
	msg := semel.Message{Key: []byte("k")}
	var row sink.Row
	if err := m.Decode(&msg, &row); err != nil || !row.Tombstone {
		t.Error(err)
	}
}

func TestWhatIsNoCloudEventIsToldWhy(t *testing.T) {
	t.Parallel()
	m := cloudEvents(t, "value.no")
	for value, why := range map[string]string{
		`{"no":1}`: "no CloudEvent",
		`{"specversion":"1.0","data":{},"data_base64":""}`:                            "both data and data_base64",
		`{"specversion":"1.0","data_base64":"%"}`:                                     "no base64",
		`{"specversion":"1.0","data_base64":1}`:                                       "no text but a number",
		`{"specversion":"1.0","datacontenttype":"text/xml","data_base64":"PGEvPg=="}`: `"text/xml", not JSON`,
		`{"specversion":"1.0","data":"text"}`:                                         "not an object but a string",
		`[]`:                                                                          "not an object",
	} {
		e := decodeError(t, m, semel.Message{Value: []byte(value)})
		if e.Class != sink.ClassDecode || !strings.Contains(e.Error(), why) {
			t.Errorf("%s: %s %v", value, e.Class, e)
		}
	}
	e := decodeError(t, m, semel.Message{Headers: ceHeaders("content-type", "application/cloudevents-batch+json"), Value: []byte(`[]`)})
	if !strings.Contains(e.Error(), "a batch") {
		t.Error(e)
	}
	e = decodeError(t, m, semel.Message{Headers: ceHeaders("ce_specversion", "1.0", "ce_id", "\xff"), Value: []byte(`{}`)})
	if e.Class != sink.ClassValue || e.Field != "headers.ce_id" {
		t.Error(e)
	}
}
