//go:build registry

package cases_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/internal/testenv"
)

// realRegistry is Apicurio's, as a process of its own. What it was given is in a PostgreSQL, and outlives it.
type realRegistry struct {
	t             *testing.T
	address, file string
	db            *url.URL
	cmd           *exec.Cmd
	end           chan struct{}
}

// withRealRegistry is a scene whose file names one.
func withRealRegistry(t *testing.T) (*scene, *realRegistry) {
	t.Helper()
	s, r := newScene(t, 1, ""), newRealRegistry(t)
	s.more = fmt.Sprintf("schema_registry: {url: %q}\n", r.url())
	return s, r
}

func newRealRegistry(t *testing.T) *realRegistry {
	t.Helper()
	db, err := url.Parse(testenv.Postgres(t))
	must(t, err)
	r := &realRegistry{t: t, address: freeAddress(t), file: filepath.Join(t.TempDir(), "log"), db: db}
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			said, _ := os.ReadFile(r.file)
			t.Logf("the registry said:\n%.20000s", said)
		}
	})
	r.start()
	return r
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (r *realRegistry) url() string { return "http://" + r.address + "/apis/ccompat/v7" }

// start returns when it answers.
func (r *realRegistry) start() {
	r.t.Helper()
	dir := os.Getenv("SEMEL_TEST_REGISTRY")
	if dir == "" {
		r.t.Fatal("SEMEL_TEST_REGISTRY names no schema registry: `make test-registry` fetches one")
	}
	log, err := os.OpenFile(r.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.t, err)
	defer log.Close()
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	runner, err := filepath.Glob(dir + "/*-runner.jar")
	must(r.t, err)
	_, port, _ := net.SplitHostPort(r.address)
	password, _ := r.db.User.Password()
	r.cmd = exec.Command(java, "-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port="+port,
		"-Dapicurio.storage.sql.kind=postgresql", "-Dapicurio.datasource.url=jdbc:postgresql://"+r.db.Host+r.db.Path,
		"-Dapicurio.datasource.username="+r.db.User.Username(), "-Dapicurio.datasource.password="+password,
		"-Dapicurio.datasource.jdbc.initial-size=1", "-Dapicurio.datasource.jdbc.min-size=1", "-Dapicurio.datasource.jdbc.max-size=4",
		"-cp", strings.Join(runner, ":")+":"+dir+"/lib/*", "io.quarkus.runner.GeneratedMain")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	must(r.t, r.cmd.Start())
	r.end = make(chan struct{})
	go func(cmd *exec.Cmd, end chan struct{}) { _ = cmd.Wait(); close(end) }(r.cmd, r.end)
	until(r.t, "the registry answers", func() bool {
		select {
		case <-r.end:
			r.t.Fatal("the registry ended")
		default:
		}
		_, err := r.ask("GET", "/subjects", nil)
		return err == nil
	})
}

// kill is one that nobody is told of.
func (r *realRegistry) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		<-r.end
	}
}

func (r *realRegistry) ask(method, path string, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	must(r.t, err)
	req, err := http.NewRequestWithContext(within(r.t), method, r.url()+path, bytes.NewReader(b))
	must(r.t, err)
	req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
	return text, err
}

// refers is a reference to the first version of a subject.
type refers struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// register answers the ID.
func (r *realRegistry) register(subject, format, schema string, to ...refers) uint32 {
	r.t.Helper()
	text, err := r.ask("POST", "/subjects/"+url.PathEscape(subject)+"/versions", map[string]any{"schemaType": format, "schema": schema, "references": to})
	must(r.t, err)
	var answer struct{ ID uint32 }
	must(r.t, json.Unmarshal(text, &answer))
	return answer.ID
}

// Schemas with references, in each format, and several of them in one topic; tables are made by the newest of a subject.
func TestARealRegistrysSchemasAreRead(t *testing.T) {
	s, reg := withRealRegistry(t)
	s.exec("CREATE TABLE several (id bigint PRIMARY KEY, city text, amount bigint)")
	names := []string{"avro", "proto", "json", "several"}
	for _, name := range names {
		s.topicBelow(name)
	}
	subject := func(name string) string { return s.topic + "." + name + "-value" }

	const city = `{"type":"record","name":"City","namespace":"geo","fields":[{"name":"name","type":"string"}]}`
	const placed = `{"type":"record","name":"Placed","fields":[{"name":"id","type":"long"},{"name":"at","type":"geo.City"},
		{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":38,"scale":10}}]}`
	const paid = `{"type":"record","name":"Paid","fields":[{"name":"amount","type":"int"},{"name":"id","type":"long"}]}`
	reg.register("city", "AVRO", city)
	toCity := refers{"geo.City", "city", 1}
	placedID := reg.register(subject("avro"), "AVRO", placed, toCity)
	paidID := reg.register(s.topic+".several-Paid", "AVRO", paid)
	order := func(id int64) []byte {
		return by(placedID, avroOf(t, placed, map[string]any{"id": id, "at": map[string]any{"name": "Łódź"}, "total": rat("1234567890123456789012345678.0123456789")}, city))
	}

	reg.register("sku", "PROTOBUF", `syntax = "proto3"; package shop.parts; message Sku { string code = 1; }`)
	reg.register("line", "PROTOBUF", `syntax = "proto3"; package shop.parts; import "parts/sku.proto"; message Line { Sku sku = 1; int64 n = 2; }`, refers{"parts/sku.proto", "sku", 1})
	protoID := reg.register(subject("proto"), "PROTOBUF", `syntax = "proto3"; package shop; import "parts/line.proto"; import "google/protobuf/timestamp.proto";
		message Order { int64 id = 1; shop.parts.Line line = 2; google.protobuf.Timestamp at = 3; }`, refers{"parts/line.proto", "line", 1})

	reg.register("money", "JSON", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"number","minimum":0,"multipleOf":0.01}`)
	jsonID := reg.register(subject("json"), "JSON", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","required":["id"],
		"properties":{"id":{"type":"integer"},"total":{"$ref":"money.json"}}}`, refers{"money.json", "money", 1})

	value := func(name string, v []byte) *kgo.Record { return &kgo.Record{Topic: s.topic + "." + name, Value: v} }
	s.produce(
		value("avro", order(9007199254740993)),
		value("several", order(1)), value("several", by(paidID, avroOf(t, paid, map[string]any{"id": int64(2), "amount": int32(5)}))),
		value("proto", by(protoID, []byte("\x00\x08\x07\x12\x07\x0a\x03\x0a\x01A\x10\x05\x1a\x05\x08\x01\x10\xe8\x07"))),
		value("json", by(jsonID, []byte(`{"id":9007199254740993,"total":1.10}`))), value("json", by(jsonID, []byte(`{"id":2,"total":-1}`))),
	)
	route := func(name string, lines ...string) string {
		return s.matching(name, append([]string{"name: " + name, "consumer: TOPIC-" + name, "id: {fields: [value.id]}"}, lines...)...)
	}
	p := s.spawn(nil, []string{"--until-caught-up"}, s.text(
		route("avro", "format: avro", "to: {table: avro, write: insert, create: true, primary_key: [id], columns: {id: value.id, city: value.at.name, total: value.total}}"),
		route("several", "format: avro", "to: {table: several, write: insert, columns: {id: value.id, city: value.at.name, amount: value.amount}}"),
		route("proto", "format: protobuf", "to: {table: proto, write: insert, create: true, primary_key: [id], columns: {id: value.id, code: value.line.sku.code, n: value.line.n, at: value.at}}"),
		route("json", "format: json-schema", "schema: {validate: true}", "to: {table: json, write: insert, create: true, primary_key: [id]}"),
	))
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d, want 1: one is buried", code)
	}
	s.want("SELECT o FROM avro o", "(9007199254740993,Łódź,1234567890123456789012345678.0123456789)")
	s.want("SELECT string_agg(concat_ws('|', id, city, amount), ' ' ORDER BY id) FROM several", "1|Łódź 2|5")
	s.want("SELECT o FROM (SELECT id, code, n, at AT TIME ZONE 'UTC' FROM proto) o", `(7,A,5,"1970-01-01 00:00:01.000001")`)
	s.want("SELECT o FROM json o", "(9007199254740993,1.10)")
	s.want("SELECT string_agg(class || ' ' || error, ' | ') FROM semel.dead_letter", fmt.Sprintf("decode value: by schema %d: /total: minimum: got -1, want 0", jsonID))
	for table, columns := range map[string]string{
		"avro": "id bigint, city text, total numeric(38,10)", "proto": "id bigint, code text, n bigint, at timestamp with time zone", "json": "id numeric, total numeric",
	} {
		if got := s.columns(table); got != columns {
			t.Errorf("%s has %s, want %s", table, got, columns)
		}
	}
}

// A schema that is registered while the route runs adds its columns; an ID that the registry doesn't know makes one dead letter.
func TestARealRegistrysSchemasMayChangeWhileItRuns(t *testing.T) {
	s, reg := withRealRegistry(t)
	subject := s.topic + "-value"
	one := reg.register(subject, "AVRO", orderV1)
	old := func(id int64) *kgo.Record {
		return &kgo.Record{Value: by(one, avroOf(t, orderV1, map[string]any{"id": id, "total": rat("1.5")}))}
	}
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert, create: true, evolve: add-columns, primary_key: [id]}")
	s.spawn(nil, nil, s.text(route))
	s.produce(old(1))
	until(t, "the first is there", func() bool { return s.count("o") == 1 })
	two := reg.register(subject, "AVRO", orderV2)
	if two == one {
		t.Fatal("two schemas have one ID")
	}
	s.produce(
		&kgo.Record{Value: by(two, avroOf(t, orderV2, map[string]any{"id": int64(2), "total": rat("2.5"), "note": "x"}))},
		&kgo.Record{Value: by(4_000_000_000, []byte{2})}, old(3),
	)
	until(t, "the last is there", func() bool { return s.count("o WHERE id = 3") == 1 })
	s.want("SELECT string_agg(concat_ws('|', id, total, note), ' ' ORDER BY id) FROM o", "1|1.50000 2|2.50000|x 3|1.50000")
	s.want(`SELECT string_agg("offset" || ' ' || class || ' ' || error, ' | ') FROM semel.dead_letter`, "2 decode value: schema 4000000000: the schema registry doesn't have it")
}

// A registry that is killed is an outage: what its schemas are needed for waits, and goes on when it is back.
func TestARealRegistryThatIsKilledIsWaitedOut(t *testing.T) {
	s, reg := withRealRegistry(t)
	subject := s.topic + "-value"
	one := reg.register(subject, "AVRO", orderV1)
	two := reg.register(subject, "AVRO", orderV2)
	s.exec("CREATE TABLE o (id bigint PRIMARY KEY, total numeric, note text)")
	old := func(id int64) *kgo.Record {
		return &kgo.Record{Value: by(one, avroOf(t, orderV1, map[string]any{"id": id, "total": rat("1.5")}))}
	}
	health := freeAddress(t)
	text := strings.Replace(s.text(s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}")), `listen: ""`, fmt.Sprintf("listen: %q", health), 1)
	waits := func() bool {
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + health + "/health")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(b), "schema registry "+reg.url())
	}
	p := s.spawn(nil, nil, text)
	s.produce(old(1))
	until(t, "the first is there", func() bool { return s.count("o") == 1 })

	reg.kill()
	s.produce(old(2)) // by a schema that is known
	until(t, "the second is there", func() bool { return s.count("o") == 2 })
	s.produce(&kgo.Record{Value: by(two, avroOf(t, orderV2, map[string]any{"id": int64(3), "total": rat("2.5"), "note": "x"}))}, old(4))
	until(t, "it waits for the registry", waits)
	reg.start()
	until(t, "all are there", func() bool { return s.count("o") == 4 })

	// A process that begins without the registry knows no schema at all.
	p.kill()
	reg.kill()
	s.produce(old(5))
	s.spawn(nil, nil, text)
	until(t, "it waits for the registry", waits)
	reg.start()
	until(t, "all are there", func() bool { return s.count("o") == 5 })
	s.want("SELECT string_agg(concat_ws('|', id, total, note), ' ' ORDER BY id) FROM o", "1|1.50000 2|1.50000 3|2.50000|x 4|1.50000 5|1.50000")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

// A path where no registry is has nothing to say about schemas.
func TestAWrongPathOfARealRegistryIsAnOutage(t *testing.T) {
	s, reg := withRealRegistry(t)
	route := s.route("format: avro", "id: {fields: [value.id]}", "to: {table: o, write: insert}")
	s.exec("CREATE TABLE o (id bigint PRIMARY KEY, total numeric)")
	one := reg.register(s.topic+"-value", "AVRO", orderV1)
	s.produce(&kgo.Record{Value: by(one, avroOf(t, orderV1, map[string]any{"id": int64(1), "total": rat("1.5")}))})
	right := s.more
	s.more = fmt.Sprintf("schema_registry: {url: %q}\n", "http://"+reg.address+"/apis")
	if _, err := daemon.Check(within(t), s.file(route), quiet); err == nil || !strings.Contains(err.Error(), "HTTP 404") {
		t.Errorf("check says %v", err)
	}
	if _, err := daemon.DryRun(within(t), daemon.Config{File: s.file(route), Logger: quiet}, 5); err == nil || !strings.Contains(err.Error(), "HTTP 404") {
		t.Errorf("a dry run says %v", err)
	}
	s.more = right
	s.run(route)
	s.want("SELECT o FROM o", "(1,1.50000)")
}
