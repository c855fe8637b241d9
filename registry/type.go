package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semelhq/semel/sink"
)

var _ sink.Typed = (*Decoder)(nil)

// TypeOf implements [sink.Typed] for a message in wire format. It answers of
// schemas that AppendJSON would read by.
func (d *Decoder) TypeOf(data []byte) *sink.Type {
	id, err := ID(data)
	if err != nil {
		return nil
	}
	k, err := d.schema(id)
	if err != nil {
		return nil
	}
	switch d.format {
	case Avro:
		return k.avro.Type()
	case Protobuf:
		m, _, err := k.message(data[header:])
		if err != nil {
			return nil
		}
		return m.Type()
	}
	return k.typ
}

// errSeveral says that a schema doesn't tell which of its messages is meant.
var errSeveral = errors.New("several messages, and which one the topic holds is not known before they come")

// Type is the type of the newest schema of a subject, or of what all is read as:
// ErrUnknown if the registry
// doesn't have the subject, a *semel.OutageError if it can't be asked.
func (d *Decoder) Type(ctx context.Context, subject string) (*sink.Type, error) {
	if d.how.As != nil {
		return d.how.As.Type(), nil
	}
	s, err := d.registry.Latest(ctx, subject)
	if err != nil {
		return nil, err
	}
	k := d.compile(s)
	if k.err != nil {
		return nil, fmt.Errorf("schema %d of %s: %w", s.ID, subject, k.err)
	}
	switch {
	case k.avro != nil:
		return k.avro.Type(), nil
	case k.files != nil:
		if names := k.files.Names(); len(names) > 1 {
			return nil, fmt.Errorf("schema %d of %s has %w: %s", s.ID, subject, errSeveral, strings.Join(names, ", "))
		}
		m, err := k.files.At(nil)
		if err != nil {
			return nil, fmt.Errorf("schema %d of %s: %w", s.ID, subject, err)
		}
		return m.Type(), nil
	case k.typ != nil:
		return k.typ, nil
	}
	return nil, fmt.Errorf("schema %d of %s says nothing of types", s.ID, subject)
}
