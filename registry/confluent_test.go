package registry_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/semelhq/semel/registry"
)

// What Confluent's own serializers wrote and registered; the file says which.
func TestConfluentsSerializersAreRead(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/confluent.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Schemas []struct {
			Subject, Type, Schema string
			Version, ID           int
			References            []sr.SchemaReference
		}
		Messages []struct {
			Format, Want string
			Data         []byte
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	f := fake(t)
	for _, s := range file.Schemas {
		var typ sr.SchemaType
		if err := typ.UnmarshalText([]byte(s.Type)); err != nil {
			t.Fatal(err)
		}
		f.SeedSchema(s.Subject, s.Version, s.ID, sr.Schema{Type: typ, Schema: s.Schema, References: s.References})
	}
	r := client(t, f)
	of := map[string]registry.Format{"AVRO": registry.Avro, "PROTOBUF": registry.Protobuf, "JSON": registry.JSON}
	for _, m := range file.Messages {
		if got := read(t, r.Decoder(of[m.Format]), m.Data); got != m.Want {
			t.Errorf("%s: got  %s\nwant %s", m.Format, got, m.Want)
		}
	}
	if len(file.Messages) != 7 {
		t.Errorf("%d messages", len(file.Messages))
	}
}
