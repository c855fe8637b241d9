package registry_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/registry"
	"github.com/semelhq/semel/sink/avro"
	"github.com/semelhq/semel/sink/jsonschema"
)

func TestWhatAWriterWroteIsReadAsTheReaderHasIt(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	f.SeedSchema("orders-value", 2, 2, sr.Schema{Schema: second})
	f.SeedSchema("other-value", 1, 3, sr.Schema{Schema: `{"type":"record","name":"Other","fields":[]}`})
	reader, err := avro.Parse(`{"type":"record","name":"Order","fields":[{"name":"no","aliases":["id"],"type":"double"},{"name":"state","type":"string","default":"new"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	d := client(t, f).Reader(registry.Avro, registry.Reading{As: reader})
	if got := read(t, d, wire(1, encode(t, first, map[string]any{"id": int64(7)})...)); got != `{"no":7,"state":"new"}` {
		t.Error(got)
	}
	if got := read(t, d, wire(2, encode(t, second, map[string]any{"id": int64(8), "note": "x"})...)); got != `{"no":8,"state":"new"}` {
		t.Error(got)
	}
	if err := poison(t, d, wire(3)); !strings.Contains(err.Error(), "schema 3: ") || !strings.Contains(err.Error(), "names do not match") {
		t.Error(err)
	}
	if names, ok, err := d.Fields(t.Context(), "orders-value"); strings.Join(names, " ") != "no state" || !ok || err != nil {
		t.Error(names, ok, err)
	}
}

func TestJSONIsCheckedWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("city", 1, 1, sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"string","maxLength":4}`})
	f.SeedSchema("address", 1, 2, sr.Schema{
		Type: sr.TypeJSON, Schema: `{"type":"object","properties":{"city":{"$ref":"city.json"}}}`,
		References: []sr.SchemaReference{{Name: "city.json", Subject: "city", Version: 1}},
	})
	f.SeedSchema("orders-value", 1, 3, sr.Schema{
		Type: sr.TypeJSON, Schema: `{"$id":"https://shop.example/order.json","type":"object","required":["id"],"additionalProperties":false,"properties":{"id":{"type":"integer"},"to":{"$ref":"address.json"}}}`,
		References: []sr.SchemaReference{{Name: "address.json", Subject: "address", Version: 1}},
	})
	f.SeedSchema("broken-value", 1, 4, sr.Schema{Type: sr.TypeJSON, Schema: `{"$ref":"nowhere.json"}`})
	r := client(t, f)
	d := r.Reader(registry.JSON, registry.Reading{Validate: true})
	if got := read(t, d, wire(3, []byte(` {"id":1.0,"to":{"city":"Łódź"}}`)...)); got != ` {"id":1.0,"to":{"city":"Łódź"}}` {
		t.Error(got)
	}
	var wrong *jsonschema.Error
	if err := poison(t, d, wire(3, []byte(`{"id":1,"to":{"city":"Warszawa"}}`)...)); !errors.As(err, &wrong) || wrong.At != "/to/city" || !strings.HasPrefix(err.Error(), "by schema 3: ") {
		t.Error(err)
	}
	if err := poison(t, d, wire(4, []byte(`{}`)...)); !errors.Is(err, jsonschema.ErrUnknownReference) {
		t.Error(err)
	}
	if got := read(t, r.Decoder(registry.JSON), wire(4, []byte(`{}`)...)); got != `{}` {
		t.Error("a schema that is not applied:", got)
	}
	if names, ok, err := d.Fields(t.Context(), "orders-value"); strings.Join(names, " ") != "id to" || !ok || err != nil {
		t.Error(names, ok, err)
	}
}

// What is behind the ID may be anything; what is before it too.
func FuzzAnyBytesAreAValueOrAnError(f *testing.F) {
	fake := srfake.New()
	f.Cleanup(fake.Close)
	fake.SeedSchema("a", 1, 1, sr.Schema{Schema: second})
	fake.SeedSchema("b", 1, 2, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message Order { int64 id = 1; repeated Line lines = 2; map<string, double> m = 3; message Line { string sku = 1; } } message Paid { bytes b = 1; }`})
	fake.SeedSchema("c", 1, 3, sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"object","properties":{"id":{"type":"integer"}}}`})
	r, err := registry.New(registry.Config{URLs: []string{fake.URL()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Close)
	decoders := []*registry.Decoder{r.Decoder(registry.Avro), r.Decoder(registry.Protobuf), r.Reader(registry.JSON, registry.Reading{Validate: true})}
	for which, data := range [][]byte{
		wire(1, 2, 'x', 4), wire(2, []byte("\x00\x08\x05\x12\x03\x0a\x01a\x1a\x0a\x0a\x01k\x11\x00\x00\x00\x00\x00\x00\xf0\x3f")...), wire(3, []byte(`{"id":7}`)...),
		wire(1), wire(2, []byte("\x02\x02\x0a\x01\xff")...),
		{},
		{0},
		{0, 0, 0, 0},
		[]byte(`{"id":7}`), wire(2, []byte("\x06\x00\x00\x02")...), wire(2, []byte("\x04\x00\x02\x08")...), wire(2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		{0xc3, 1},
		wire(3, 0xff),
	} {
		f.Add(uint8(which%3), data)
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		if len(data) >= 5 && data[0] == 0 { // schemas that are there: the fake is not what is tried
			data = append([]byte{0, 0, 0, 0, which%3 + 1}, data[5:]...)
		}
		got, err := decoders[which%3].AppendJSON(nil, data)
		var out *semel.OutageError
		switch {
		case errors.As(err, &out):
			t.Fatalf("%x is an outage: %v", data, err)
		case err == nil && !json.Valid(got):
			t.Fatalf("%x is read as %q", data, got)
		case err != nil && (err.Error() == "" || len(err.Error()) > 1000):
			t.Fatalf("%x: an error of %d bytes", data, len(err.Error()))
		}
	})
}
