package protobuf

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/internal/exact"
)

// Files are compiled schema files. They don't change once they are made.
type Files struct {
	main protoreflect.FileDescriptor // the one that was asked for; nil: none in particular
	all  []protoreflect.FileDescriptor
}

// Compile reads the .proto file of that name, and what it imports. sources holds
// texts by the name under which they are imported; Google's well-known files, and
// those that Confluent's registry takes for known, need not be there. A text may
// be a compiled file in base64 instead, as some serializers register it.
func Compile(name string, sources map[string]string) (*Files, error) {
	texts := maps.Clone(known)
	maps.Copy(texts, sources)
	return compile(name, protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		text, ok := texts[path]
		if !ok {
			return protocompile.SearchResult{}, protoregistry.NotFound
		}
		if f := compiled(text); f != nil {
			f.Name = &path
			return protocompile.SearchResult{Proto: f}, nil
		}
		return protocompile.SearchResult{Source: strings.NewReader(text)}, nil
	}))
}

// compiled is the file that a text is in base64; nil if it is source.
func compiled(text string) *descriptorpb.FileDescriptorProto {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(data) == 0 {
		return nil
	}
	f := new(descriptorpb.FileDescriptorProto)
	if proto.Unmarshal(data, f) != nil {
		return nil
	}
	// Python leaves the names for JSON out, which nobody needs here but the
	// compiler, who then finds them all the same.
	for _, m := range f.MessageType {
		nameFields(m)
	}
	return f
}

func nameFields(m *descriptorpb.DescriptorProto) {
	for _, f := range m.Field {
		if f.JsonName == nil {
			f.JsonName = f.Name
		}
	}
	for _, in := range m.NestedType {
		nameFields(in)
	}
}

// CompileDir is Compile for files below a directory.
func CompileDir(dir, name string) (*Files, error) {
	return compile(name, protocompile.CompositeResolver{
		&protocompile.SourceResolver{ImportPaths: []string{dir}},
		&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(known)},
	})
}

func compile(name string, from protocompile.Resolver) (*Files, error) {
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(from)}
	files, err := c.Compile(context.Background(), name)
	if err != nil {
		return nil, err
	}
	f := &Files{main: files[0]}
	f.collect(files[0], map[string]bool{})
	return f, nil
}

// ParseSet reads a compiled set of files (protoc --include_imports
// --descriptor_set_out).
func ParseSet(set []byte) (*Files, error) {
	var fds descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(set, &fds); err != nil {
		return nil, errors.New("not a compiled set of .proto files")
	}
	files, err := protodesc.NewFiles(&fds)
	if err != nil {
		return nil, err
	}
	f := new(Files)
	files.RangeFiles(func(d protoreflect.FileDescriptor) bool {
		f.all = append(f.all, d)
		return true
	})
	return f, nil
}

func (f *Files) collect(d protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[d.Path()] {
		return
	}
	seen[d.Path()] = true
	f.all = append(f.all, d)
	for i := range d.Imports().Len() {
		f.collect(d.Imports().Get(i).FileDescriptor, seen)
	}
}

// UnknownMessageError says that files have no message of that name.
type UnknownMessageError struct {
	Name string
	Have []string // the messages of the file itself
}

func (e *UnknownMessageError) Error() string { return fmt.Sprintf("there is no message %q", e.Name) }

// Message looks a message up by its full name, like shop.Order.
func (f *Files) Message(name string) (*Message, error) {
	for _, d := range f.all {
		if !protoreflect.FullName(name).IsValid() {
			break
		}
		if m, ok := find(d.Messages(), protoreflect.FullName(name)); ok {
			return newMessage(m), nil
		}
	}
	return nil, &UnknownMessageError{name, f.Names()}
}

func find(ms protoreflect.MessageDescriptors, name protoreflect.FullName) (protoreflect.MessageDescriptor, bool) {
	for i := range ms.Len() {
		m := ms.Get(i)
		if m.FullName() == name {
			return m, true
		}
		if in, ok := find(m.Messages(), name); ok {
			return in, true
		}
	}
	return nil, false
}

// Names are the full names of the messages at the top of the file; of all files
// if it is a set.
func (f *Files) Names() (names []string) {
	for _, d := range f.all {
		if f.main != nil && d != f.main {
			continue
		}
		for i := range d.Messages().Len() {
			names = append(names, string(d.Messages().Get(i).FullName()))
		}
	}
	slices.Sort(names)
	return names
}

// ErrNoSuchMessage says that a file has no message at a path of indexes.
var ErrNoSuchMessage = errors.New("a message that the schema doesn't have")

// At looks a message up by its place: in the compiled file, then in the message
// around it. No index means the first message. The messages that a compiler makes
// of maps don't count, as Java's serializer, whose form this is, doesn't see them.
func (f *Files) At(path []int) (*Message, error) {
	if len(path) == 0 {
		path = []int{0}
	}
	in := f.main.Messages()
	var m protoreflect.MessageDescriptor
	for _, i := range path {
		m = nil
		for k := range in.Len() {
			if in.Get(k).IsMapEntry() {
				continue
			}
			if i--; i == -1 {
				m = in.Get(k)
				break
			}
		}
		if m == nil {
			return nil, ErrNoSuchMessage
		}
		in = m.Messages()
	}
	return newMessage(m), nil
}

// Message is a message type. It doesn't change, and may be used from several
// goroutines.
type Message struct {
	of   *message
	typ  *sink.Type
	last atomic.Pointer[plan] // of the names that were asked for last
}

func newMessage(d protoreflect.MessageDescriptor) *Message {
	c := compiler{}
	m := c.message(d)
	return &Message{of: m, typ: types{}.message(m)}
}

// Fields are the names of the fields.
func (m *Message) Fields() (names []string) {
	for i := range m.of.fields {
		names = append(names, m.of.fields[i].name)
	}
	return names
}

// special is a message that stands for something else than its fields.
type special uint8

const (
	none special = iota
	timestamp
	period
	wrapper
	structure
	value
	list
	decimal // Confluent's
	date    // Google's
	clock   // Google's
)

var specials = map[protoreflect.FullName]special{
	"google.protobuf.Timestamp":   timestamp,
	"google.protobuf.Duration":    period,
	"google.protobuf.DoubleValue": wrapper,
	"google.protobuf.FloatValue":  wrapper,
	"google.protobuf.Int64Value":  wrapper,
	"google.protobuf.UInt64Value": wrapper,
	"google.protobuf.Int32Value":  wrapper,
	"google.protobuf.UInt32Value": wrapper,
	"google.protobuf.BoolValue":   wrapper,
	"google.protobuf.StringValue": wrapper,
	"google.protobuf.BytesValue":  wrapper,
	"google.protobuf.Struct":      structure,
	"google.protobuf.Value":       value,
	"google.protobuf.ListValue":   list,
	"confluent.type.Decimal":      decimal,
	"google.type.Date":            date,
	"google.type.TimeOfDay":       clock,
}

// message is a type ready for reading.
type message struct {
	special special
	fields  []field
	low     []int16 // by number, as far as it goes: the field's place, or -1
	high    map[protoreflect.FieldNumber]int16
}

type field struct {
	name     string
	text     []byte // quoted, with the colon
	kind     protoreflect.Kind
	repeated bool
	presence bool
	oneof    int      // -1: in none
	of       *message // of a message, a group
	entry    *message // of a map: its key and value
	enum     *enum
	zero     []byte // what an unset one without presence is
}

type enum struct {
	names map[int32][]byte // quoted
	null  bool             // google.protobuf.NullValue
}

type compiler map[protoreflect.FullName]*message

func (c compiler) message(d protoreflect.MessageDescriptor) *message {
	if m := c[d.FullName()]; m != nil {
		return m
	}
	m := &message{special: specials[d.FullName()]}
	c[d.FullName()] = m
	fs := d.Fields()
	m.fields = make([]field, fs.Len())
	for i := range m.fields {
		fd := fs.Get(i)
		m.place(fd.Number(), i)
		f := &m.fields[i]
		*f = field{
			name: string(fd.Name()), text: append(exact.Quote(nil, string(fd.Name())), ':'),
			kind: fd.Kind(), repeated: fd.Cardinality() == protoreflect.Repeated, presence: fd.HasPresence(), oneof: -1,
		}
		if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
			f.oneof = o.Index()
		}
		switch {
		case fd.IsMap():
			f.entry = c.message(fd.Message())
		case fd.Message() != nil:
			f.of = c.message(fd.Message())
		case fd.Enum() != nil:
			f.enum = newEnum(fd.Enum())
		}
		f.zero = f.none(fd)
	}
	return m
}

// place notes where a field is. Numbers are nearly always small.
func (m *message) place(n protoreflect.FieldNumber, i int) {
	if n >= 256 {
		if m.high == nil {
			m.high = map[protoreflect.FieldNumber]int16{}
		}
		m.high[n] = int16(i)
		return
	}
	for len(m.low) <= int(n) {
		m.low = append(m.low, -1)
	}
	m.low[n] = int16(i)
}

func (m *message) find(n protoreflect.FieldNumber) int {
	if int(n) < len(m.low) {
		return int(m.low[n])
	}
	if i, ok := m.high[n]; ok {
		return int(i)
	}
	return -1
}

func newEnum(d protoreflect.EnumDescriptor) *enum {
	e := &enum{names: map[int32][]byte{}, null: d.FullName() == "google.protobuf.NullValue"}
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		if e.names[int32(v.Number())] == nil { // the first of several names is the one
			e.names[int32(v.Number())] = exact.Quote(nil, string(v.Name()))
		}
	}
	return e
}

// none is the text of a field that is not in the data; nil leaves it out.
func (f *field) none(fd protoreflect.FieldDescriptor) []byte {
	switch {
	case fd.IsMap():
		return []byte("{}")
	case f.repeated:
		return []byte("[]")
	case f.presence || f.of != nil:
		return nil
	}
	return f.zeroOf()
}

func (f *field) zeroOf() []byte {
	switch f.kind {
	case protoreflect.BoolKind:
		return []byte("false")
	case protoreflect.StringKind:
		return []byte(`""`)
	case protoreflect.BytesKind:
		return exact.Bytes(nil, nil)
	case protoreflect.EnumKind:
		return f.enum.text(nil, 0)
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return nil
	}
	return []byte("0")
}
