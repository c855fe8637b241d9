package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/semelhq/semel/registry"
)

func TestTheNewestSchemaOfASubjectSaysTypes(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("a", 1, 1, sr.Schema{Schema: `{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}`})
	f.SeedSchema("a", 2, 2, sr.Schema{Schema: `{"type":"record","name":"A","fields":[{"name":"x","type":"int"},{"name":"y","type":"int"}]}`})
	f.SeedSchema("p", 1, 3, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message P { int64 x = 1; }`})
	f.SeedSchema("q", 1, 4, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message P { int64 x = 1; } message Q { P p = 1; }`})
	f.SeedSchema("j", 1, 5, sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"object","properties":{"x":{"type":"string"}}}`})
	r := client(t, f)
	for subject, c := range map[string]struct {
		format registry.Format
		fields int
		data   []byte
	}{"a": {registry.Avro, 2, wire(2, 0, 0)}, "p": {registry.Protobuf, 1, wire(3, 0)}, "j": {registry.JSON, 1, wire(5, '{', '}')}} {
		d := r.Decoder(c.format)
		newest, err := d.Type(context.Background(), subject)
		if err != nil || len(newest.Fields) != c.fields {
			t.Errorf("%s: %v %v", subject, newest, err)
		}
		first, again := d.TypeOf(c.data), d.TypeOf(c.data)
		if first == nil || len(first.Fields) != c.fields || first != again {
			t.Errorf("a message of %s: %v, %v", subject, first, again)
		}
	}
	if _, err := r.Decoder(registry.Protobuf).Type(context.Background(), "q"); err == nil || !strings.Contains(err.Error(), "several messages") {
		t.Error(err)
	}
	if _, err := r.Decoder(registry.Avro).Type(context.Background(), "none"); !errors.Is(err, registry.ErrUnknown) {
		t.Error(err)
	}
	if got := r.Decoder(registry.Avro).TypeOf([]byte{1}); got != nil {
		t.Error(got)
	}
}
