package protobuf_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	"github.com/semelhq/semel/sink/internal/exact"
	"github.com/semelhq/semel/sink/protobuf"
)

const all = `syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "confluent/type/decimal.proto";
import "google/type/date.proto";
enum Kind { UNKNOWN = 0; SMALL = 1; LARGE = 2; }
message All {
  bool b = 1; int32 i32 = 2; int64 i64 = 3; uint32 u32 = 4; uint64 u64 = 5;
  sint32 s32 = 6; sint64 s64 = 7; fixed32 f32 = 8; fixed64 f64 = 9; sfixed32 sf32 = 10; sfixed64 sf64 = 11;
  float fl = 12; double db = 13; string text = 14; bytes raw = 15; Kind kind = 16;
  optional int64 maybe = 17; optional string maybe_text = 18;
  repeated int64 numbers = 19; repeated string words = 20; repeated Kind kinds = 21; repeated Line lines = 22;
  map<string, int64> by_name = 23; map<int32, Line> by_number = 24; map<bool, Kind> by_bool = 25;
  oneof choice { string left = 26; Line right = 27; int64 up = 28; }
  Line line = 29; All child = 300;
  repeated double doubles = 31; repeated fixed32 fixeds = 32 [packed = false];
  repeated sint64 zigzags = 33;
  message Line { string sku = 1; int64 unit_price = 2; repeated int32 n = 3; message Deep { bool x = 1; } Deep deep = 4; }
}
message Known {
  google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2;
  google.protobuf.Int64Value i = 3; google.protobuf.StringValue s = 4; google.protobuf.BoolValue b = 5;
  google.protobuf.Struct doc = 6; google.protobuf.Value any = 7; google.protobuf.ListValue list = 8;
  confluent.type.Decimal total = 9; google.type.Date day = 10;
}
`

// pair is a message type as we read it, and as the library has it.
type pair struct {
	ours   *protobuf.Message
	theirs protoreflect.MessageDescriptor
}

func types(t testing.TB, name string) pair {
	t.Helper()
	files, err := protobuf.Compile("all.proto", map[string]string{"all.proto": all})
	if err != nil {
		t.Fatal(err)
	}
	m, err := files.Message(name)
	if err != nil {
		t.Fatal(err)
	}
	return pair{m, descriptor(t, name)}
}

// descriptor is compiled apart, with stand-ins for the files that we bring.
func descriptor(t testing.TB, name string) protoreflect.MessageDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{
			"all.proto":                    all,
			"confluent/type/decimal.proto": `syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }`,
			"google/type/date.proto":       `syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }`,
		}),
	})}
	files, err := c.Compile(t.Context(), "all.proto")
	if err != nil {
		t.Fatal(err)
	}
	return files[0].FindDescriptorByName(protoreflect.FullName(name)).(protoreflect.MessageDescriptor)
}

func appendJSON(t testing.TB, m *protobuf.Message, data []byte) string {
	t.Helper()
	got, err := m.AppendJSON(nil, data)
	if err != nil {
		t.Fatalf("%x: %v", data, err)
	}
	if !json.Valid(got) {
		t.Fatalf("%s is no JSON", got)
	}
	return string(got)
}

// draw fills a message with anything.
func draw(t *rapid.T, m protoreflect.Message, depth int) {
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		fd := fs.Get(i)
		if rapid.IntRange(0, 2).Draw(t, "set") == 0 {
			continue
		}
		one := func() (protoreflect.Value, bool) {
			if fd.Message() == nil {
				return drawScalar(t, fd), true
			}
			if depth == 0 {
				return protoreflect.Value{}, false
			}
			sub := dynamicpb.NewMessage(fd.Message())
			draw(t, sub, depth-1)
			return protoreflect.ValueOfMessage(sub), true
		}
		switch {
		case fd.IsMap():
			mv := m.Mutable(fd).Map()
			for range rapid.IntRange(0, 3).Draw(t, "pairs") {
				key := drawScalar(t, fd.MapKey()).MapKey()
				if fd.MapValue().Message() == nil {
					mv.Set(key, drawScalar(t, fd.MapValue()))
				} else if depth > 0 {
					sub := dynamicpb.NewMessage(fd.MapValue().Message())
					draw(t, sub, depth-1)
					mv.Set(key, protoreflect.ValueOfMessage(sub))
				}
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			for range rapid.IntRange(0, 3).Draw(t, "items") {
				if v, ok := one(); ok {
					l.Append(v)
				}
			}
		default:
			if v, ok := one(); ok {
				m.Set(fd, v)
			}
		}
	}
}

func drawScalar(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32Range(-1, 3).Draw(t, "enum")))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint32"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "uint64"))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(rapid.Float32().Draw(t, "float"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.Float64().Draw(t, "double"))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, "string"))
	}
	return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
}

// plain is the dumb model: what the text of a message must say once it is read.
func plain(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		fd := fs.Get(i)
		name := string(fd.Name())
		switch {
		case fd.IsMap():
			o := map[string]any{}
			m.Get(fd).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				o[k.String()] = plainValue(fd.MapValue(), v)
				return true
			})
			out[name] = o
		case fd.IsList():
			l := m.Get(fd).List()
			a := []any{}
			for i := range l.Len() {
				a = append(a, plainValue(fd, l.Get(i)))
			}
			out[name] = a
		case fd.HasPresence() && !m.Has(fd):
		default:
			out[name] = plainValue(fd, m.Get(fd))
		}
	}
	return out
}

func plainValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	number := func(f float64, size int) any {
		switch {
		case math.IsNaN(f):
			return "NaN"
		case math.IsInf(f, 0):
			return map[bool]string{true: "Infinity", false: "-Infinity"}[f > 0]
		}
		return json.Number(strconv.FormatFloat(f, 'g', -1, size))
	}
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return plain(x)
	case protoreflect.EnumNumber:
		if e := fd.Enum().Values().ByNumber(x); e != nil {
			return string(e.Name())
		}
		return json.Number(fmt.Sprint(x))
	case []byte:
		return `\x` + hex.EncodeToString(x)
	case string, bool:
		return x
	case float32:
		return number(float64(x), 32)
	case float64:
		return number(x, 64)
	}
	return json.Number(fmt.Sprint(v.Interface()))
}

// parsed reads a text without losing digits.
func parsed(t interface{ Fatal(...any) }, text []byte) any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(string(text), err)
	}
	return spelled(v)
}

// spelled gives equal numbers one spelling.
func spelled(v any) any {
	switch x := v.(type) {
	case json.Number:
		r, _ := new(big.Rat).SetString(string(x))
		return r.RatString()
	case map[string]any:
		for k := range x {
			x[k] = spelled(x[k])
		}
	case []any:
		for i := range x {
			x[i] = spelled(x[i])
		}
	}
	return v
}

func TestAnyMessageIsReadAsTheLibraryReadsIt(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.All")
	rapid.Check(t, func(t *rapid.T) {
		m := dynamicpb.NewMessage(p.theirs)
		draw(t, m, 2)
		data, err := proto.Marshal(m)
		if err != nil {
			t.Skip(err)
		}
		if rapid.Bool().Draw(t, "twice") { // a message after a message is their sum
			more := dynamicpb.NewMessage(p.theirs)
			draw(t, more, 2)
			for fs, i := p.theirs.Fields(), 0; i < fs.Len(); i++ {
				if fs.Get(i).IsMap() { // whose names would stand twice
					more.Clear(fs.Get(i))
				}
			}
			b, err := proto.Marshal(more)
			if err != nil {
				t.Skip(err)
			}
			data = append(data, b...)
			m = dynamicpb.NewMessage(p.theirs)
			if err := proto.Unmarshal(data, m); err != nil {
				t.Fatal(err)
			}
		}
		got, err := p.ours.AppendJSON([]byte("before"), data)
		if err != nil {
			t.Fatal(err)
		}
		if have, want := parsed(t, got[len("before"):]), spelled(plain(m)); !reflect.DeepEqual(have, want) {
			t.Fatalf("got  %v\nwant %v", have, want)
		}
	})
}

func TestWellKnownTypesAreWhatTheyStandFor(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.Known")
	m := dynamicpb.NewMessage(p.theirs)
	set := func(path string, v protoreflect.Value) {
		in := protoreflect.Message(m)
		names := strings.Split(path, ".")
		for _, n := range names[:len(names)-1] {
			in = in.Mutable(in.Descriptor().Fields().ByName(protoreflect.Name(n))).Message()
		}
		in.Set(in.Descriptor().Fields().ByName(protoreflect.Name(names[len(names)-1])), v)
	}
	at := time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	set("at.seconds", protoreflect.ValueOfInt64(at.Unix()))
	set("at.nanos", protoreflect.ValueOfInt32(int32(at.Nanosecond())))
	set("took.seconds", protoreflect.ValueOfInt64(-1))
	set("took.nanos", protoreflect.ValueOfInt32(-500_000_000))
	set("i.value", protoreflect.ValueOfInt64(math.MaxInt64))
	set("b.value", protoreflect.ValueOfBool(false))
	doc := m.Mutable(p.theirs.Fields().ByName("doc")).Message()
	pairs := doc.Mutable(doc.Descriptor().Fields().ByName("fields")).Map()
	list := pairs.NewValue()
	lv := list.Message()
	items := lv.Mutable(lv.Descriptor().Fields().ByName("list_value")).Message()
	values := items.Mutable(items.Descriptor().Fields().ByName("values")).List()
	add := func(name string, v protoreflect.Value) {
		e := values.NewElement()
		e.Message().Set(e.Message().Descriptor().Fields().ByName(protoreflect.Name(name)), v)
		values.Append(e)
	}
	add("null_value", protoreflect.ValueOfEnum(0))
	add("number_value", protoreflect.ValueOfFloat64(1.5))
	pairs.Set(protoreflect.ValueOfString("a b").MapKey(), list)
	set("any.string_value", protoreflect.ValueOfString("x"))
	set("total.value", protoreflect.ValueOfBytes([]byte{0xcf, 0xc7}))
	set("total.scale", protoreflect.ValueOfInt32(2))
	set("day.year", protoreflect.ValueOfInt32(2026))
	set("day.month", protoreflect.ValueOfInt32(3))
	set("day.day", protoreflect.ValueOfInt32(9))
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"at":"1969-12-31T23:59:59.999999Z","took":"PT-1.5S","i":9223372036854775807,"b":false,"doc":{"a b":[null,1.5]},"any":"x","total":-123.45,"day":"2026-03-09"}`
	if got := appendJSON(t, p.ours, data); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWhatIsNotSetIsZeroOrAbsent(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.All.Line")
	if got := appendJSON(t, p.ours, nil); got != `{"sku":"","unit_price":0,"n":[]}` {
		t.Error(got)
	}
	if got := appendJSON(t, types(t, "shop.Known").ours, nil); got != `{}` {
		t.Error(got)
	}
}

func TestFieldsOfAnotherVersionAreLeftOut(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.All.Line")
	data := protowire.AppendTag(nil, 99, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte("new"))
	data = protowire.AppendTag(data, 1, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte("a"))
	data = protowire.AppendTag(data, 2, protowire.Fixed32Type) // of another type
	data = protowire.AppendFixed32(data, 7)
	if got := appendJSON(t, p.ours, data); got != `{"sku":"a","unit_price":0,"n":[]}` {
		t.Error(got)
	}
}

func TestMessagesAreFoundByNameAndByPlace(t *testing.T) {
	t.Parallel()
	files, err := protobuf.Compile("all.proto", map[string]string{"all.proto": all})
	if err != nil {
		t.Fatal(err)
	}
	m, err := files.At([]int{0, 0, 0}) // All.Line.Deep: the entries of maps don't count
	if err != nil || strings.Join(m.Fields(), " ") != "x" {
		t.Error(m, err)
	}
	if _, err := files.At([]int{7}); !errors.Is(err, protobuf.ErrNoSuchMessage) {
		t.Error(err)
	}
	var unknown *protobuf.UnknownMessageError
	if _, err := files.Message("shop.None"); !errors.As(err, &unknown) || strings.Join(unknown.Have, " ") != "shop.All shop.Known" {
		t.Error(err)
	}
}

func TestSchemasComeFromAFolderOrCompiled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"order.proto":                        `syntax = "proto3"; package shop; import "parts/line.proto"; message Order { Line line = 1; }`,
		filepath.Join("parts", "line.proto"): `syntax = "proto3"; package shop; message Line { int64 n = 1; }`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := protobuf.CompileDir(dir, "order.proto")
	if err != nil {
		t.Fatal(err)
	}
	data := []byte{0x0a, 2, 8, 5}
	order, err := files.Message("shop.Order")
	if err != nil {
		t.Fatal(err)
	}
	if got := appendJSON(t, order, data); got != `{"line":{"n":5}}` {
		t.Error(got)
	}
	d := descriptor(t, "shop.All").ParentFile()
	var set descriptorpb.FileDescriptorSet
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	add(d)
	b, err := proto.Marshal(&set)
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := protobuf.ParseSet(b)
	if err != nil {
		t.Fatal(err)
	}
	line, err := compiled.Message("shop.All.Line")
	if err != nil {
		t.Fatal(err)
	}
	if got := appendJSON(t, line, []byte{0x10, 7}); got != `{"sku":"","unit_price":7,"n":[]}` {
		t.Error(got)
	}
}

func TestFewBytesClaimLittle(t *testing.T) {
	t.Parallel()
	p := types(t, "shop.All")
	var data []byte
	for range 3000 { // each inside the one before
		data = protowire.AppendBytes(protowire.AppendTag(nil, 300, protowire.BytesType), data)
	}
	if _, err := p.ours.AppendJSON(nil, data); !errors.Is(err, exact.ErrDepth) && !errors.Is(err, exact.ErrLarge) {
		t.Error(err)
	}
	if _, err := p.ours.AppendJSON(nil, []byte{0x08}); err == nil {
		t.Error("data that is cut short was taken")
	}
	if _, err := p.ours.AppendJSON(nil, []byte{14<<3 | 2, 1, 0xff}); !errors.Is(err, exact.ErrUTF8) {
		t.Error(err)
	}
}

func FuzzAnyBytesMakeJSONOrAnError(f *testing.F) {
	all, known := types(f, "shop.All"), types(f, "shop.Known")
	f.Add(true, []byte{8, 1, 0x9a, 1, 2, 1, 2})
	f.Add(false, []byte{0x0a, 2, 8, 5, 0x32, 0})
	f.Fuzz(func(t *testing.T, first bool, data []byte) {
		p := known
		if first {
			p = all
		}
		got, err := p.ours.AppendJSON(nil, data)
		if len(got) > 2*exact.Limit(len(data))+1<<12 {
			t.Fatalf("%d bytes became %d", len(data), len(got))
		}
		if err != nil {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%s is no JSON", got)
		}
		if err := proto.Unmarshal(data, dynamicpb.NewMessage(p.theirs)); err != nil {
			t.Fatalf("%x is read as %s; another reader says %v", data, got, err)
		}
	})
}
