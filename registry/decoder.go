package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
	"github.com/semelhq/semel/sink/jsonschema"
	"github.com/semelhq/semel/sink/protobuf"
)

// Format is what the data behind the schema's ID is.
type Format uint8

const (
	Avro Format = iota
	Protobuf
	JSON // JSON text, whose schema is looked up, and applied where Reading says so
)

// types are the registry's names of formats.
var types = [...]string{"AVRO", "PROTOBUF", "JSON"}

func (f Format) String() string { return types[f] }

// Decoder is a [sink.Decoder] of messages that name their schema.
type Decoder struct {
	registry *Registry
	format   Format
	how      Reading

	known sync.Map // int -> *known: schemas, for good

	mu      sync.Mutex        // of asking; one question at a time
	unknown map[int]time.Time // when the registry last said so
	down    error             // the last answer was an outage
	downAt  time.Time
}

var _ sink.FieldDecoder = (*Decoder)(nil)

// Decoder reads messages of a format. All that ask for one share it.
func (r *Registry) Decoder(f Format) *Decoder { return r.decoders[f] }

// Reading is more than reading by the writer's schema.
type Reading struct {
	// As is what Avro's data is read as; nil: as it was written.
	As *avro.Schema
	// Validate checks JSON by its schema.
	Validate bool
}

// Reader is a [Registry.Decoder] of its own.
func (r *Registry) Reader(f Format, how Reading) *Decoder {
	if how == (Reading{}) {
		return r.Decoder(f)
	}
	return &Decoder{registry: r, format: f, how: how}
}

// known is a schema ready for reading, or why it can't be used.
type known struct {
	avro  *avro.Schema
	files *protobuf.Files
	json  *jsonschema.Schema // nil: it is not applied
	typ   *sink.Type         // of JSON
	err   error

	mu       sync.RWMutex
	messages map[string]*protobuf.Message // by place, as it stands in the data
}

var (
	errShort = errors.New("too short for the ID of a schema")
	errMagic = errors.New("no zero in front of the ID of a schema: not written by a serializer with a schema registry")
	errPlace = errors.New("the place of the message in its schema is not readable")
)

// header is the zero and the ID.
const header = 5

// ID is the ID of the schema that the data names.
func ID(data []byte) (int, error) {
	switch {
	case len(data) < header:
		return 0, errShort
	case data[0] != 0:
		return 0, errMagic
	}
	return int(binary.BigEndian.Uint32(data[1:])), nil
}

// AppendJSON reads a message in wire format.
func (d *Decoder) AppendJSON(dst, data []byte) ([]byte, error) {
	id, err := ID(data)
	if err != nil {
		return dst, err
	}
	k, err := d.schema(id)
	if err != nil {
		return dst, err
	}
	data = data[header:]
	switch d.format {
	case Avro:
		dst, err = k.avro.AppendJSON(dst, data)
	case Protobuf:
		var m *protobuf.Message
		if m, data, err = k.message(data); err == nil {
			dst, err = m.AppendJSON(dst, data)
		}
	default:
		if k.json == nil {
			return append(dst, data...), nil
		}
		dst, err = k.json.AppendJSON(dst, data)
	}
	if err != nil {
		err = fmt.Errorf("by schema %d: %w", id, err)
	}
	return dst, err
}

// AppendFields implements [sink.FieldDecoder].
func (d *Decoder) AppendFields(dst, data []byte, names []string, spans []sink.Span) (out []byte, other int, err error) {
	id, err := ID(data)
	if err != nil || d.format == JSON {
		out, err = d.AppendJSON(dst, data)
		return out, -1, err
	}
	k, err := d.schema(id)
	if err != nil {
		return dst, -1, err
	}
	if data = data[header:]; d.format == Avro {
		out, other, err = k.avro.AppendFields(dst, data, names, spans)
	} else {
		var m *protobuf.Message
		if m, data, err = k.message(data); err == nil {
			out, other, err = m.AppendFields(dst, data, names, spans)
		}
	}
	if err != nil {
		err = fmt.Errorf("by schema %d: %w", id, err)
	}
	return out, other, err
}

// schema is the schema of an ID: from memory, or the registry's.
func (d *Decoder) schema(id int) (*known, error) {
	v, ok := d.known.Load(id)
	if !ok {
		var err error
		if v, err = d.ask(id); err != nil {
			return nil, err
		}
	}
	k := v.(*known)
	return k, k.err
}

// How long an answer stands that may be another one soon: in between, a batch of
// messages would ask a thousand times.
const (
	downFor    = 500 * time.Millisecond
	unknownFor = 10 * time.Second
)

// maxUnknown bounds how many wrong IDs are remembered.
const maxUnknown = 1 << 14

func (d *Decoder) ask(id int) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.known.Load(id); ok {
		return v, nil
	}
	now := time.Now()
	if at, ok := d.unknown[id]; ok && now.Sub(at) < unknownFor {
		return nil, unknownID(id)
	}
	if d.down != nil && now.Sub(d.downAt) < downFor {
		return nil, d.down
	}
	s, err := d.registry.ByID(d.registry.ctx, id)
	var outage *semel.OutageError
	switch {
	case errors.As(err, &outage):
		d.down, d.downAt = err, time.Now()
		return nil, err
	case errors.Is(err, ErrUnknown):
		if d.unknown == nil || len(d.unknown) >= maxUnknown {
			d.unknown = map[int]time.Time{}
		}
		d.unknown[id], d.down = now, nil
		return nil, fmt.Errorf("schema %d: %w", id, err)
	}
	d.down = nil
	k := &known{err: err}
	if err == nil {
		k = d.compile(s)
	}
	if k.err != nil {
		k.err = fmt.Errorf("schema %d: %w", id, k.err)
	}
	d.known.Store(id, k)
	return k, nil
}

func unknownID(id int) error { return fmt.Errorf("schema %d: %w", id, ErrUnknown) }

// compile makes a schema ready for reading.
func (d *Decoder) compile(s Schema) *known {
	f := d.format
	k := &known{messages: map[string]*protobuf.Message{}}
	if s.Type != f.String() {
		k.err = fmt.Errorf("it is of type %s, where %s is expected", s.Type, f)
		return k
	}
	switch f {
	case Avro:
		var texts []string
		for _, r := range s.References {
			texts = append(texts, r.Text)
		}
		if k.avro, k.err = avro.Parse(s.Text, texts...); k.err == nil && d.how.As != nil {
			k.avro, k.err = k.avro.As(d.how.As)
		}
	case Protobuf:
		const name = "semel/schema.proto"
		sources := map[string]string{name: s.Text}
		for _, r := range s.References {
			sources[r.Name] = r.Text
		}
		k.files, k.err = protobuf.Compile(name, sources)
	case JSON:
		texts := map[string]string{}
		for _, r := range s.References {
			texts[r.Name] = r.Text
		}
		if d.how.Validate {
			k.json, k.err = jsonschema.Parse(s.Text, texts)
		}
		if t, err := jsonschema.Type(s.Text, texts); err == nil { // what isn't understood is not known
			k.typ = t
		}
	}
	return k
}

// maxPlace bounds how deep a message may be nested in others.
const maxPlace = 32

// message takes the place of the message from the front of the data.
func (k *known) message(data []byte) (*protobuf.Message, []byte, error) {
	n, size := binary.Varint(data)
	if size <= 0 || n < 0 || n > maxPlace {
		return nil, nil, errPlace
	}
	at := size
	path := make([]int, 0, 8)
	for range n {
		i, size := binary.Varint(data[at:])
		if size <= 0 || i < 0 || i > 1<<20 {
			return nil, nil, errPlace
		}
		at += size
		path = append(path, int(i))
	}
	k.mu.RLock()
	m := k.messages[string(data[:at])]
	k.mu.RUnlock()
	if m != nil {
		return m, data[at:], nil
	}
	m, err := k.files.At(path)
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	k.messages[string(data[:at])] = m
	k.mu.Unlock()
	return m, data[at:], nil
}

// Fields are the top-level fields of the newest schema of a subject, ok if they can
// be known: ErrUnknown if the registry doesn't have the subject.
func (d *Decoder) Fields(ctx context.Context, subject string) (names []string, ok bool, err error) {
	s, err := d.registry.Latest(ctx, subject)
	if err != nil {
		return nil, false, err
	}
	k := d.compile(s)
	switch {
	case k.err != nil:
		return nil, false, fmt.Errorf("schema %d of %s: %w", s.ID, subject, k.err)
	case k.avro != nil:
		names, ok = k.avro.Fields()
	case k.json != nil:
		names, ok = k.json.Fields()
	case k.files != nil && len(k.files.Names()) == 1: // else which one is the message's to say
		m, err := k.files.At(nil)
		if err != nil {
			return nil, false, err
		}
		return m.Fields(), true, nil
	}
	return names, ok, nil
}
