package registry_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ref "github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"go.uber.org/goleak"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fake(t *testing.T, opts ...srfake.Option) *srfake.Registry {
	t.Helper()
	f := srfake.New(opts...)
	t.Cleanup(f.Close)
	return f
}

func client(t *testing.T, f *srfake.Registry, edit ...func(*registry.Config)) *registry.Registry {
	t.Helper()
	cfg := registry.Config{URLs: []string{f.URL()}}
	for _, e := range edit {
		e(&cfg)
	}
	r, err := registry.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// wire puts the zero and the ID in front.
func wire(id int, data ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(id)), data...)
}

func read(t *testing.T, d *registry.Decoder, data []byte) string {
	t.Helper()
	got, err := d.AppendJSON(nil, data)
	if err != nil {
		t.Fatalf("%x: %v", data, err)
	}
	return string(got)
}

// poison wants an error about the message.
func poison(t *testing.T, d *registry.Decoder, data []byte) error {
	t.Helper()
	got, err := d.AppendJSON(nil, data)
	var out *semel.OutageError
	if err == nil || errors.As(err, &out) {
		t.Fatalf("%x: want an error about the message, got %q, %v", data, got, err)
	}
	return err
}

// outage wants one that says nothing about the message.
func outage(t *testing.T, d *registry.Decoder, data []byte) error {
	t.Helper()
	_, err := d.AppendJSON(nil, data)
	var out *semel.OutageError
	if !errors.As(err, &out) {
		t.Fatalf("%x: want an outage, got %v", data, err)
	}
	return err
}

const first = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}`

const second = `{"type":"record","name":"Order","fields":[{"name":"note","type":"string","default":""},{"name":"id","type":"long"}]}`

func encode(t *testing.T, schema string, v any) []byte {
	t.Helper()
	data, err := ref.MustParse(schema).Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEachMessageIsReadByItsWritersSchema(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	d := client(t, f).Decoder(registry.Avro)
	one := wire(1, encode(t, first, map[string]any{"id": int64(7)})...)
	if got := read(t, d, one); got != `{"id":7}` {
		t.Error(got)
	}
	f.SeedSchema("orders-value", 2, 2, sr.Schema{Schema: second}) // while it runs
	if got := read(t, d, wire(2, encode(t, second, map[string]any{"id": int64(8), "note": "x"})...)); got != `{"note":"x","id":8}` {
		t.Error(got)
	}
	if got := read(t, d, one); got != `{"id":7}` {
		t.Error(got)
	}
}

func TestASchemaIsAskedForOnce(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	var asked atomic.Int32
	f.Intercept(func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false })
	d := client(t, f).Decoder(registry.Avro)
	msg := wire(1, encode(t, first, map[string]any{"id": int64(7)})...)
	for range 3 {
		read(t, d, msg)
		_ = poison(t, d, wire(99))
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d questions for one schema and one that isn't there", n)
	}
	f.Close() // what is known is known
	read(t, d, msg)
}

func TestReferencesAreFetchedToo(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("city", 1, 1, sr.Schema{Schema: `{"type":"record","name":"City","namespace":"geo","fields":[{"name":"name","type":"string"}]}`})
	f.SeedSchema("address", 1, 2, sr.Schema{
		Schema:     `{"type":"record","name":"Address","fields":[{"name":"city","type":"geo.City"}]}`,
		References: []sr.SchemaReference{{Name: "geo.City", Subject: "city", Version: 1}},
	})
	f.SeedSchema("orders-value", 1, 3, sr.Schema{
		Schema:     `{"type":"record","name":"Order","fields":[{"name":"to","type":"Address"},{"name":"from","type":["null","geo.City"]}]}`,
		References: []sr.SchemaReference{{Name: "Address", Subject: "address", Version: 1}, {Name: "geo.City", Subject: "city", Version: 1}},
	})
	d := client(t, f).Decoder(registry.Avro)
	if got := read(t, d, wire(3, 2, 'A', 2, 2, 'B')); got != `{"to":{"city":{"name":"A"}},"from":{"name":"B"}}` {
		t.Error(got)
	}
}

func TestProtobufNamesItsMessageByPlace(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("line.proto", 1, 1, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; package shop; message Line { int64 n = 1; }`})
	f.SeedSchema("orders-value", 1, 2, sr.Schema{
		Type: sr.TypeProtobuf,
		Schema: `syntax = "proto3"; package shop; import "shop/line.proto"; import "confluent/type/decimal.proto"; import "google/protobuf/timestamp.proto";
			message Order { Line line = 1; message Part { bool a = 1; message Deep { bool b = 1; } } } message Paid { int32 c = 1; google.protobuf.Timestamp at = 2; confluent.type.Decimal total = 3; }`,
		References: []sr.SchemaReference{{Name: "shop/line.proto", Subject: "line.proto", Version: 1}},
	})
	d := client(t, f).Decoder(registry.Protobuf)
	for _, c := range []struct{ place, data, want string }{
		{"\x00", "\x0a\x02\x08\x05", `{"line":{"n":5}}`},
		{"\x02\x00", "\x0a\x02\x08\x05", `{"line":{"n":5}}`},
		{"\x02\x02", "\x08\x05", `{"c":5}`},
		{"\x04\x00\x00", "\x08\x01", `{"a":true}`},
		{"\x06\x00\x00\x00", "\x08\x01", `{"b":true}`},
	} {
		if got := read(t, d, wire(2, []byte(c.place+c.data)...)); got != c.want {
			t.Errorf("%x: got %s, want %s", c.place, got, c.want)
		}
	}
	for _, place := range []string{"", "\x01", "\x02", "\x02\x04", "\x06\x00\x00\x02", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		_ = poison(t, d, wire(2, []byte(place)...))
	}
}

func TestJSONIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"object"}`})
	d := client(t, f).Decoder(registry.JSON)
	if got := read(t, d, wire(1, []byte(`{"n":1.0}`)...)); got != `{"n":1.0}` {
		t.Error(got)
	}
	_ = poison(t, d, wire(2, []byte(`{"n":1.0}`)...))
}

func TestWhatIsWrongWithAMessageIsNoOutage(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	f.SeedSchema("other-value", 1, 2, sr.Schema{Type: sr.TypeJSON, Schema: `{}`})
	d := client(t, f).Decoder(registry.Avro)
	for why, data := range map[string][]byte{
		"too short": {0, 0, 0}, "no zero": []byte(`{"id":7}`), "unknown ID": wire(3, 2), "cut short": wire(1),
		"more data": wire(1, 2, 2), "another format": wire(2, 2),
	} {
		t.Log(why, poison(t, d, data))
	}
}

func TestARegistryThatCannotBeUsedIsAnOutage(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	var mode atomic.Value
	mode.Store("")
	f.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		switch mode.Load() {
		case "500":
			http.Error(w, `{"error_code":50001,"message":"store"}`, http.StatusInternalServerError)
		case "404": // of something in between
			http.Error(w, "<html>not here</html>", http.StatusNotFound)
		case "429":
			http.Error(w, "later", http.StatusTooManyRequests)
		case "garbage":
			_, _ = w.Write([]byte("<html>"))
		default:
			return false
		}
		return true
	})
	for _, m := range []string{"500", "404", "429", "garbage"} {
		mode.Store(m)
		t.Log(outage(t, client(t, f).Decoder(registry.Avro), wire(1, 2)))
	}
	mode.Store("")
	d := client(t, f).Decoder(registry.Avro)
	if got := read(t, d, wire(1, 2)); got != `{"id":1}` {
		t.Error(got)
	}
	gone := fake(t)
	gone.Close()
	_ = outage(t, client(t, gone).Decoder(registry.Avro), wire(1, 2))
}

func TestAnOutageIsNotAskedAboutForEachMessage(t *testing.T) {
	t.Parallel()
	f := fake(t)
	var asked atomic.Int32
	f.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	})
	d := client(t, f).Decoder(registry.Avro)
	for range 100 {
		_ = outage(t, d, wire(1, 2))
	}
	if n := asked.Load(); n > 5 {
		t.Errorf("%d questions", n)
	}
}

func TestCredentialsAreReadAnewAndRefusalIsAnOutage(t *testing.T) {
	t.Parallel()
	f := fake(t, srfake.WithAuth("Basic c2VtZWw6cmlnaHQ=")) // semel:right
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong")
	r := client(t, f, func(c *registry.Config) {
		c.User, c.Password = "semel", func() (string, error) { b, err := os.ReadFile(file); return string(b), err }
	})
	err := outage(t, r.Decoder(registry.Avro), wire(1, 2))
	if !strings.Contains(err.Error(), "credentials") || strings.Contains(err.Error(), "wrong") {
		t.Error(err)
	}
	if r.Ping(t.Context()) == nil {
		t.Error("a ping with a wrong password is fine")
	}
	write("right")
	deadline := time.Now().Add(10 * time.Second)
	for {
		got, err := r.Decoder(registry.Avro).AppendJSON(nil, wire(1, 2))
		if err == nil && string(got) == `{"id":1}` {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := r.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAHangingRegistryIsGivenUp(t *testing.T) {
	t.Parallel()
	f := fake(t)
	release := make(chan struct{})
	f.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return false
	})
	defer close(release)
	r := client(t, f, func(c *registry.Config) { c.Timeout = 50 * time.Millisecond })
	_ = outage(t, r.Decoder(registry.Avro), wire(1, 2))
	slow := client(t, f)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = outage(t, slow.Decoder(registry.Avro), wire(1, 2)) }()
	slow.Close()
	<-ended
}

func TestFieldsOfASubjectAreThoseOfItsNewestSchema(t *testing.T) {
	t.Parallel()
	f := fake(t)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: first})
	f.SeedSchema("orders-value", 2, 2, sr.Schema{Schema: second})
	f.SeedSchema("paid-value", 1, 3, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message Paid { int32 c = 1; }`})
	r := client(t, f)
	fields, ok, err := r.Decoder(registry.Avro).Fields(context.Background(), "orders-value")
	if strings.Join(fields, " ") != "note id" || !ok || err != nil {
		t.Error(fields, ok, err)
	}
	fields, ok, err = r.Decoder(registry.Protobuf).Fields(context.Background(), "paid-value")
	if strings.Join(fields, " ") != "c" || !ok || err != nil {
		t.Error(fields, ok, err)
	}
	if _, _, err := r.Decoder(registry.Avro).Fields(context.Background(), "none-value"); !errors.Is(err, registry.ErrUnknown) {
		t.Error(err)
	}
}
