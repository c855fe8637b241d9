package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/sink"
)

// encoded says whether a format is more than text that is read as it is.
func encoded(f Format) bool {
	return f == FormatAvro || f == FormatProtobuf || f == FormatJSONSchema
}

func (r *reader) registry(n *yaml.Node, at string) {
	g := &Registry{}
	r.file.Registry = g
	seen := r.object(n, at, fields{
		"url": func(n *yaml.Node, at string) {
			n = target(n)
			s, ok := r.string(n, at, "a URL")
			if !ok {
				return
			}
			for one := range strings.SplitSeq(s, ",") {
				one = strings.TrimSpace(one)
				u, err := url.Parse(one)
				switch {
				case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
					r.fail(n, at+": no URL", "like http://localhost:8081")
					return
				case u.User != nil:
					r.fail(n, at+": user and password are fields of their own", "")
					return
				}
				g.URLs = append(g.URLs, one)
			}
		},
		"tls":      r.tls(&g.TLS),
		"user":     r.name(&g.User),
		"password": r.secret(&g.Password),
		"token":    r.secret(&g.Token),
	})
	n = target(n)
	if seen["url"] == nil {
		r.missing(n, join(at, "url"), "url: http://localhost:8081")
	}
	switch {
	case seen["token"] != nil && (seen["user"] != nil || seen["password"] != nil):
		r.fail(n, at+": either token, or user and password", "")
	case (seen["user"] == nil) != (seen["password"] == nil):
		r.fail(n, at+": user and password belong together", "")
	}
}

func (r *reader) schema(dst *Schema) field {
	return func(n *yaml.Node, at string) {
		seen := r.object(n, at, fields{"file": r.name(&dst.File), "subject": r.name(&dst.Subject), "message": r.name(&dst.Message), "reader": r.name(&dst.Reader), "validate": r.bool(&dst.Validate)})
		if n = target(n); seen["file"] == nil && (seen["reader"] == nil && seen["validate"] == nil && seen["subject"] == nil || seen["message"] != nil) {
			r.missing(n, join(at, "file"), "file: order.avsc, order.proto, or order.schema.json")
		}
	}
}

// checkFormats finds formats without a schema, schemas without a format, and what
// can't be taken of bytes.
func (r *reader) checkFormats(at string, t *Route) {
	r.checkSchema(at, "format", "schema", t.Format, t.Schema)
	key := t.From.KeyEncoding
	if key == "" && t.From.KeySchema != (Schema{}) {
		key = FormatJSON
	}
	r.checkSchema(join(at, "from"), "key_format", "key_schema", key, t.From.KeySchema)
	r.checkPlaces(join(at, "schema.subject"), t.Schema.Subject, t.From)
	r.checkPlaces(join(at, "from.key_schema.subject"), t.From.KeySchema.Subject, t.From)
	if t.Format != FormatRaw {
		return
	}
	const hint = "value as a whole is what there is"
	if t.Envelope != EnvelopeNone {
		r.failPath(join(at, "envelope"), "bytes have no envelope", "")
	}
	if t.To.Columns == nil && t.To.Write != "" {
		r.failPath(join(at, "to"), "format: raw needs columns: bytes have no fields", "columns: {raw: value}")
	}
	each(at, t, func(path string, p sink.Path) {
		if p.Root == sink.RootValue && len(p.Names) > 0 {
			r.failPath(path, p.String()+" is a field of the value, and bytes have none", hint)
		}
	})
}

// checkFit refuses to make tables of messages that have no schema.
func (r *reader) checkFit(at string, t *Route) {
	if encoded(t.Format) || t.To.Query.SQL != "" || t.Format == FormatJSON && t.Envelope == EnvelopeDebezium {
		return
	}
	refuse := func(field string, asked bool) {
		if asked {
			r.failPath(join(at, "to."+field), fmt.Sprintf("format: %s has no schema that says what columns there are and of what types", t.Format),
				"write the CREATE TABLE yourself (check --plan can't know the types either), or send avro, protobuf, json-schema, or change events with their schema")
		}
	}
	refuse("create", t.To.Create)
	refuse("evolve", t.To.Evolve == EvolveAdd)
}

func (r *reader) checkSchema(at, format, schema string, f Format, s Schema) {
	local := s.File != "" || s.Message != ""
	path := join(at, schema)
	if s.Reader != "" && f != FormatAvro {
		r.failPath(join(path, "reader"), "without effect: only Avro reads by two schemas", "")
	}
	if s.Subject != "" && local {
		r.failPath(join(path, "subject"), "without effect: the schema is in a file", "")
	}
	switch {
	case s.Validate && (f != FormatJSONSchema || local):
		r.failPath(join(path, "validate"), "without effect: "+map[bool]string{true: "by a schema in a file every message is checked", false: "only json-schema is checked"}[f == FormatJSONSchema], "")
	case !encoded(f) && s != (Schema{}):
		r.failPath(path, "without effect: this "+format+" needs no schema", "")
	case encoded(f) && !local && !r.registered:
		r.failPath(join(at, format), string(f)+" needs a schema", "schema_registry: {url: http://localhost:8081}, or "+schema+": {file: …}")
	case !local || s.File == "":
	case f != FormatProtobuf && s.Message != "":
		r.failPath(join(path, "message"), "without effect: a schema of "+string(f)+" is one type", "")
	case f == FormatProtobuf && s.Message == "":
		r.failPath(path, "message is missing: a file of Protobuf has many", "message: shop.Order")
	case f == FormatProtobuf && filepath.Ext(s.File) == ".avsc", f != FormatProtobuf && (filepath.Ext(s.File) == ".proto" || filepath.Ext(s.File) == ".desc"):
		r.failPath(join(path, "file"), "is no schema of "+string(f), "")
	}
}

// each visits what a route takes of its messages.
func each(at string, t *Route, visit func(path string, p sink.Path)) {
	for _, c := range t.To.Columns {
		visit(join(at, "to.columns."+c.Name), c.From)
	}
	for i, p := range t.ID.Fields {
		visit(fmt.Sprintf("%s.id.fields[%d]", at, i), p)
	}
	visit(join(at, "to.version"), t.To.Version)
}
