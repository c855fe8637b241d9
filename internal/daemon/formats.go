package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/nearest"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/registry"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
	"github.com/semelhq/semel/sink/jsonschema"
	"github.com/semelhq/semel/sink/protobuf"
)

// decoders read a route's values and keys; nil: they are read as they are.
type decoders struct{ value, key sink.Decoder }

// formats makes the decoders of all routes. Schemas in files are read now; what is
// wrong with them is a mistake of the file's.
func (p *parts) formats() error {
	if g := p.file.Registry; g != nil {
		var err error
		if p.registry, err = newRegistry(g); err != nil {
			return &StartError{What: "schema registry", Err: err, Hint: "schema_registry in the file says where it is"}
		}
	}
	p.decoders = map[string]decoders{}
	for _, r := range p.file.Routes {
		value, err := p.decoder(r.Format, r.Schema, r.Path+".schema")
		if err != nil {
			return err
		}
		key, err := p.decoder(r.From.KeyEncoding, r.From.KeySchema, r.Path+".from.key_schema")
		if err != nil {
			return err
		}
		if value != nil || key != nil {
			p.decoders[r.Name] = decoders{value, key}
		}
	}
	return nil
}

func newRegistry(g *config.Registry) (*registry.Registry, error) {
	cfg := registry.Config{URLs: g.URLs, User: g.User}
	if g.Password.IsSet() {
		cfg.Password = g.Password.Reveal
	}
	if g.Token.IsSet() {
		cfg.Token = g.Token.Reveal
	}
	if g.TLS != nil {
		t := &kafka.TLS{CA: g.TLS.CA, Cert: g.TLS.Cert, Key: g.TLS.Key}
		if err := t.Check(); err != nil {
			return nil, err
		}
		cfg.DialTLS = t.Dial
	}
	return registry.New(cfg)
}

var registryFormats = map[config.Format]registry.Format{
	config.FormatAvro: registry.Avro, config.FormatProtobuf: registry.Protobuf, config.FormatJSONSchema: registry.JSON,
}

// decoder is nil for what is read as it is.
func (p *parts) decoder(f config.Format, s config.Schema, at string) (sink.Decoder, error) {
	of, encoded := registryFormats[f]
	if !encoded {
		return nil, nil
	}
	how := registry.Reading{Validate: s.Validate}
	if s.Reader != "" {
		var err error
		if how.As, err = avroFile(s.Reader); err != nil {
			return nil, p.file.ErrorAt(at+".reader", oneLine(err), "")
		}
	}
	if s.File == "" {
		return p.registry.Reader(of, how), nil
	}
	d, err := fromFile(f, s, how.As)
	if err != nil {
		hint := ""
		var unknown *protobuf.UnknownMessageError
		if errors.As(err, &unknown) {
			hint = "its messages: " + strings.Join(unknown.Have, ", ")
			if near := nearest.Name(s.Message, unknown.Have); near != "" {
				hint = "did you mean " + near + "?"
			}
		}
		return nil, p.file.ErrorAt(at, oneLine(err), hint)
	}
	return d, nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func avroFile(name string) (*avro.Schema, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return avro.Parse(string(data))
}

// fromFile reads a schema in a file: Avro's .avsc, a JSON Schema, Protobuf's .proto,
// or anything else as files that protoc compiled.
func fromFile(f config.Format, s config.Schema, as *avro.Schema) (sink.Decoder, error) {
	switch f {
	case config.FormatJSONSchema:
		return jsonschema.ParseFile(s.File)
	case config.FormatAvro:
		w, err := avroFile(s.File)
		if err != nil || as == nil {
			return w, err
		}
		return w.As(as)
	}
	if filepath.Ext(s.File) == ".proto" {
		files, err := protobuf.CompileDir(filepath.Dir(s.File), filepath.Base(s.File))
		if err != nil {
			return nil, err
		}
		return files.Message(s.Message)
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return nil, err
	}
	files, err := protobuf.ParseSet(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.File, err)
	}
	return files.Message(s.Message)
}

// formatWords say how messages are read; "" for JSON.
func formatWords(r config.Route) string {
	words := map[config.Format]string{config.FormatAvro: "Avro", config.FormatProtobuf: "Protobuf", config.FormatJSONSchema: "JSON Schema", config.FormatRaw: "bytes"}
	values, keys := words[r.Format], words[r.From.KeyEncoding]
	var s string
	switch {
	case r.Format == config.FormatRaw:
		s = "Values are bytes, taken whole."
	case values != "" && r.Schema.File != "":
		s = "Values are " + values + ", all by the schema in " + r.Schema.File + howWords(r.Schema) + "."
	case values != "":
		s = "Values are " + values + ", each read by the schema that its writer registered" + howWords(r.Schema) + "."
	}
	switch {
	case keys == "":
	case r.From.KeySchema.File != "":
		s += " Keys are " + keys + ", by the schema in " + r.From.KeySchema.File + howWords(r.From.KeySchema) + "."
	default:
		s += " Keys are " + keys + ", by registered schemas" + howWords(r.From.KeySchema) + "."
	}
	if values != "" && r.Format != config.FormatRaw && r.Schema.File == "" || keys != "" && r.From.KeySchema.File == "" {
		s += " A registry that can't be used is an outage, and waited out; a schema that it doesn't know makes a dead letter."
	}
	return strings.TrimSpace(s)
}

func howWords(s config.Schema) string {
	switch {
	case s.Reader != "":
		return ", as the one in " + s.Reader + " has it"
	case s.Validate:
		return ", and checked by it"
	}
	return ""
}

// fielder knows the fields of what it reads.
type fielder interface{ Fields() []string }

// formats looks at the registry, and at whether what a route takes is in a schema.
func (c *check) formats(r config.Route) error {
	d := c.decoders[r.Name]
	if d == (decoders{}) || r.Envelope != config.EnvelopeNone {
		return nil
	}
	fields, ok := []string(nil), false
	switch v := d.value.(type) {
	case fielder:
		fields, ok = v.Fields(), true
	case *avro.Schema:
		fields, ok = v.Fields()
	case *jsonschema.Schema:
		fields, ok = v.Fields()
	case *registry.Decoder:
		var err error
		if fields, ok, err = c.subjects(r, v); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	look := func(path string, p sink.Path) {
		if p.Root != sink.RootValue || len(p.Names) == 0 || slices.Contains(fields, p.Names[0]) {
			return
		}
		hint := ""
		if near := nearest.Name(p.Names[0], fields); near != "" {
			hint = "did you mean value." + near + "?"
		}
		c.wrong(path, fmt.Sprintf("%s: the schema has no field %q", p, p.Names[0]), hint)
	}
	for _, col := range r.To.Columns {
		look(r.Path+".to.columns."+col.Name, col.From)
	}
	for i, f := range r.ID.Fields {
		look(fmt.Sprintf("%s.id.fields[%d]", r.Path, i), f)
	}
	return nil
}

// subjects are the fields of the newest schemas of a route's topics, if all are
// known by the usual name.
func (c *check) subjects(r config.Route, d *registry.Decoder) (fields []string, ok bool, err error) {
	ok = len(r.From.Topics) > 0
	for i, topic := range r.From.Topics {
		subject, at := r.ValueSubject(topic), fmt.Sprintf("%s.from.topics[%d]", r.Path, i)
		if r.Schema.Subject != "" {
			at = r.Path + ".schema.subject"
		}
		some, known, err := d.Fields(c.ctx, subject)
		var down *semel.OutageError
		switch {
		case errors.Is(err, registry.ErrUnknown):
			c.weak(at, "the schema registry has no subject "+subject+": what its messages hold isn't known before they come", "")
			known = false
		case errors.As(err, &down):
			return nil, false, unreachable(down)
		case err != nil:
			c.wrong(r.Path+".format", err.Error(), "")
			known = false
		}
		fields, ok = append(fields, some...), ok && known
	}
	return fields, ok, nil
}

// pingRegistry asks whether the registry answers.
func (p *parts) pingRegistry(ctx context.Context) error {
	if p.registry == nil {
		return nil
	}
	var down *semel.OutageError
	if err := p.registry.Ping(ctx); errors.As(err, &down) {
		return unreachable(down)
	}
	return nil
}

func unreachable(down *semel.OutageError) error {
	return &StartError{What: "format", Err: down.Err, Hint: "schema_registry in the file says where it is, and who we are"}
}
