package config_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/sink"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden files")

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

var testEnv = env(map[string]string{
	"KAFKA_BROKERS": "a:9092, b:9092", "DATABASE_URL": "postgres://u:s3cret@h/d", "LANES": "3", "WORD": "many", "EMPTY": "",
	"INJECT": "x, y: ${LANES}",
})

// minimal is a file with more fields in its only route.
func minimal(fields ...string) string {
	return "kafka: {brokers: b:9092}\ndatabase: postgres://h/d\nroutes:\n- name: r\n" +
		strings.Join(append(fields, "  from: {topics: [t]}", "  id: {header: h}", "  to: {table: t, write: append}"), "\n")
}

func parse(t *testing.T, data string, settings ...config.Setting) *config.File {
	t.Helper()
	f, err := config.Parse("semel.yaml", []byte(data), testEnv, settings...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mistakes(t *testing.T, data string) []*config.Error {
	t.Helper()
	_, err := config.Parse("semel.yaml", []byte(data), testEnv)
	var es *config.Errors
	if !errors.As(err, &es) || len(es.List) == 0 {
		t.Fatalf("want mistakes, got %v", err)
	}
	return es.List
}

func TestAWholeFileIsRead(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := parse(t, string(data))
	if got := fmt.Sprint(f.Kafka.Brokers, *f.Kafka.TLS, f.Kafka.SASL.Mechanism, f.Kafka.SASL.User, f.Kafka.SASL.Password.File()); got !=
		"[a:9092 b:9092] {ca.pem c.pem k.pem}SCRAM-SHA-512semel/run/secrets/kafka" {
		t.Error(got)
	}
	if url, _ := f.Database.URL.Reveal(); url != "postgres://u:s3cret@h/d" || f.Database.Password.File() != "/run/secrets/pg" {
		t.Error(url)
	}
	if f.Memory != 512<<20 || f.Server.Listen != "" || f.ShutdownGrace != 40*time.Second || len(f.Routes) != 2 {
		t.Errorf("%+v", f)
	}
	r := f.Routes[0]
	if got := fmt.Sprint(r.Name, " ", r.Consumer, " ", r.From.Topics, r.From.Start, r.From.Group, r.From.Concurrency, r.From.KeyFormat == sink.KeyJSON, r.From.InstanceID, r.From.SessionTimeout); got !=
		"orders shop [orders returns] 2026-01-02T03:04:05Zg3 truea-320s" {
		t.Error(got)
	}
	if got := fmt.Sprint(r.ID.Fields, r.OnMissingID, r.OnCollision, r.OnGap, r.To.Table, r.To.Write, r.To.PrimaryKey, r.To.Version, r.To.Zone, r.To.Epoch); got !=
		`[value.order_no value["type of"]]positionduplicatehalt"My.Schema".ordersupsert[id] value.ver Europe/Warsaw map[sent:ms]` {
		t.Error(got)
	}
	if got := fmt.Sprint(r.To.Columns, r.To.Tombstone, r.To.OnNUL, r.To.UnknownFields, r.Batch, r.Inbox, r.OnError, r.Limit, r.DeadLetters); got !=
		"[{id value.order.id} {ver value.ver} {raw value} {sent timestamp} {user key.user}]dead-letterstriphalt{100 1048576 3s 5ms} {0s} {dead-letter 3 100ms 1m0s 7 0.025} 300/m {168h0m0s}" {
		t.Error(got)
	}
}

func TestDefaultsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	f := parse(t, minimal())
	r := f.Routes[0]
	r.ID = config.ID{}
	if got := fmt.Sprintf("%+v", r); got != "{Name:r Consumer:r From:{Topics:[t] Matching: Start:group Group:r Concurrency:1 KeyFormat:0 KeyEncoding: KeySchema:{File: Subject: Message: Reader: Validate:false} GroupProtocol:classic InstanceID: SessionTimeout:10s} "+
		"Guarantee:effectively-once Format:json Schema:{File: Subject: Message: Reader: Validate:false} Envelope:none ID:{Header: Fields:[] Key:false Position:false} OnMissingID:dead-letter OnCollision:dead-letter OnGap:go-on Filter: "+
		"To:{Table:t Template: Write:append PrimaryKey:[] Version: Columns:[] OnExists:duplicate Zone:UTC Epoch:map[] OnNUL:dead-letter UnknownFields:ignore Create:false Evolve:none Tombstone:ignore Absent:set-null Combine:[] Deleted: Query:{SQL: Relation:[] Expect:any}} "+
		"Batch:{Messages:5000 Bytes:16777216 Time:10s Linger:0s} Inbox:{Window:168h0m0s} "+
		"OnError:{Then:dead-letter Attempts:1 Initial:1s Max:5m0s InARow:20 Share:0.05} Limit: DeadLetters:{Keep:2160h0m0s} Path:routes[0]}" {
		t.Error(got)
	}
	if r.To.Zone != nil {
		t.Error("a zone nobody named")
	}
	if f.Memory != 256<<20 || f.Server.Listen != "127.0.0.1:8321" || f.ShutdownGrace != 25*time.Second || f.Database.Schema != "semel" || !f.Database.SynchronousCommit {
		t.Errorf("%+v", f)
	}
}

func TestRowsOfASourceKeepWhatItDoesNotSend(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]config.Absent{
		"write: mirror":                   config.AbsentKeep,
		"write: upsert":                   config.AbsentKeep,
		"write: append":                   config.AbsentSetNull,
		"write: mirror, absent: set-null": config.AbsentSetNull,
		"write: upsert, version: envelope.position, columns: {id: value.id, v: envelope.position}": config.AbsentSetNull,
	} {
		f := parse(t, "kafka: {brokers: b:9092}\ndatabase: postgres://h/d\nroutes:\n- {name: r, from: {topics: [t]}, envelope: debezium, id: {position: true}, to: {table: t, "+to+"}}")
		if got := f.Routes[0].To.Absent; got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
}

func TestRatesHaveANumberAndATime(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"5000", "5000/h", "0/s", "-1/s", "1.5/s", "05/s", "5000 /s", "5k/s", "/s", "1000000000/s", "''"} {
		es := mistakes(t, minimal("  limit: {messages: "+wrong+"}"))
		if len(es) != 1 || !strings.Contains(es[0].What, "limit.messages") {
			t.Errorf("%s: %v", wrong, es[0])
		}
	}
	for _, right := range []string{"5000/s", "300/m", "1/m", "999999999/s"} {
		if got := parse(t, minimal("  limit: {messages: "+right+"}")).Routes[0].Limit; got.String() != right || got.IsZero() {
			t.Errorf("%s is %v", right, got)
		}
	}
}

// The golden files hold what a user reads: -update writes them.
func TestBrokenFilesNamePlaceAndNearestName(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/broken-*.yaml")
	if len(files) < 10 {
		t.Fatalf("%d files", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), data, testEnv)
			var es *config.Errors
			if !errors.As(err, &es) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			got := err.Error() + "\n"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestVariablesCanNotInjectStructure(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"${INJECT}":            "x, y: ${LANES}",
		"a-${LANES}-${LANES}":  "a-3-3",
		"$${LANES}":            "${LANES}",
		"$LANES $ $$":          "$LANES $ $$",
		"'${NOT_SET:-x: [1]}'": "x: [1]",
		"'${EMPTY:-full}'":     "full",
	} {
		f := parse(t, minimal("  consumer: "+in))
		if f.Routes[0].Consumer != want {
			t.Errorf("%s: %q", in, f.Routes[0].Consumer)
		}
	}
}

func TestAVariableAloneTakesTheTypeOfItsField(t *testing.T) {
	t.Parallel()
	if f := parse(t, minimal("  batch: {messages: '${LANES}', time: '${LANES}s'}")); f.Routes[0].Batch.Messages != 3 || f.Routes[0].Batch.Time != 3*time.Second {
		t.Errorf("%+v", f.Routes[0].Batch)
	}
	for _, in := range []string{"'3'", "'${LANES}0'", "'${WORD}'", "3.0"} {
		mistakes(t, minimal("  batch: {messages: "+in+"}"))
	}
}

func TestFlagsStandAboveTheFile(t *testing.T) {
	t.Parallel()
	f := parse(t, strings.NewReplacer("b:9092", "'${NOT_SET}'", "postgres://h/d", "'${NOT_SET}'").Replace(minimal()),
		config.WithBrokers("x:1,y:2"), config.WithDatabase("postgres://z/z"))
	if url, _ := f.Database.URL.Reveal(); fmt.Sprint(f.Kafka.Brokers) != "[x:1 y:2]" || url != "postgres://z/z" {
		t.Error(f.Kafka.Brokers, url)
	}
	routes := minimal()[strings.Index(minimal(), "routes:"):]
	parse(t, routes, config.WithBrokers("x:1"), config.WithDatabase("postgres://z/z"))
}

func TestSecretsHideThemselves(t *testing.T) {
	t.Parallel()
	f := parse(t, strings.Replace(minimal(), "{brokers: b:9092}", "{brokers: b:9092, sasl: {mechanism: PLAIN, user: u, password: s3cret}}", 1))
	f.Database.URL = config.NewSecret("postgres://u:s3cret@h/d")
	j, err := json.Marshal(struct{ K, D any }{f.Kafka, f.Database})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "kafka", f.Kafka, "password", f.Kafka.SASL.Password, "file", f)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "kafka", f.Kafka, "password", f.Kafka.SASL.Password, "file", f)
	text := fmt.Sprintf("%v %+v %#v %s %q %x %d", f.Kafka.SASL, f.Kafka.SASL, *f.Kafka.SASL, f.Kafka.SASL.Password, f.Kafka.SASL.Password, f.Kafka.SASL.Password, f.Kafka.SASL.Password) +
		fmt.Sprintf("%v %+v %#v", f.Database, *f, f.Database) + string(j) + log.String()
	if strings.Contains(text, "s3cret") || strings.Contains(text, fmt.Sprintf("%x", "s3cret")) {
		t.Error(text)
	}
	if s, err := f.Kafka.SASL.Password.Reveal(); s != "s3cret" || err != nil {
		t.Error(s, err)
	}
}

func TestSecretsInFilesAreReadEachTime(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "with space")
	s := config.SecretFile(file)
	if _, err := s.Reveal(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for in, want := range map[string]string{"one\n": "one", "two\r\n": "two", " th ree ": " th ree ", "": ""} {
		if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Reveal(); got != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestMistakesNeverShowASecret(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"kafka: {brokers: b:1, sasl: {mechanism: PLAIN, user: u, password: [s3cret]}}\n",
		"kafka: {brokers: b:1, sasl: {mechanism: PLAIN, user: u, password: {s3cret: x}}}\n",
		"database: [postgres://u:s3cret@h/d]\n",
		"database: {url: {postgres: s3cret}}\n",
		"database: {url: postgres://u:s3cret@h/d, schema: S}\n",
		"database: ${NOT_SET}s3cret\n",
		"kafka: {brokers: 'kafka://u:s3cret@h'}\n",
	} {
		for _, e := range mistakes(t, in) {
			if strings.Contains(e.Error()+e.Hint, "s3cret") && !strings.Contains(in, "{s3cret") {
				t.Errorf("%s: %v", in, e)
			}
		}
	}
}

func TestLaterChecksFindTheirPlace(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := parse(t, string(data))
	for path, want := range map[string]string{
		f.Routes[0].Path + ".to.columns.raw": "semel.yaml:29:9: routes[0].to.columns.raw: no such column",
		f.Routes[1].Path + ".to.columns.raw": "semel.yaml:45:5: routes[1].to.columns.raw: no such column",
		f.Routes[0].Path + ".from.topics[1]": "semel.yaml:13:29: routes[0].from.topics[1]: no such column",
	} {
		if e := f.ErrorAt(path, "no such column", ""); e.Error() != want {
			t.Error(e)
		}
	}
}

func FuzzNoFileMakesItPanic(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := config.Parse("x", data, testEnv)
		var es *config.Errors
		if err != nil && !errors.As(err, &es) {
			t.Fatal(err)
		}
		if es != nil {
			for _, e := range es.List {
				if e.Line < 1 || e.Column < 1 || e.What == "" {
					t.Fatalf("%+v", e)
				}
			}
		}
	})
}

func TestEmptyFileIsSaidToBeEmpty(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "\n \n", "# nothing yet\n"} {
		if m := mistakes(t, data); len(m) != 1 || m[0].What != "the file is empty" {
			t.Errorf("%q: %v", data, m)
		}
	}
}

func TestWithoutAFileDefaultsHold(t *testing.T) {
	t.Parallel()
	none, file := config.WithoutFile("postgres://h/d"), parse(t, minimal())
	if none.Database.Schema != file.Database.Schema || !none.Database.SynchronousCommit || none.Memory != file.Memory || len(none.Routes) != 0 {
		t.Errorf("%+v, a file has %+v", none, file)
	}
	if url, err := none.Database.URL.Reveal(); err != nil || url != "postgres://h/d" {
		t.Errorf("%q, %v", url, err)
	}
}

// TestTheDocumentShowsEveryFieldAndItsDefault reads docs/file.md: its example
// says nothing but defaults, and no field is missing.
func TestTheDocumentShowsEveryFieldAndItsDefault(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/file.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(doc), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	all := parse(t, example)
	plain := parse(t, "kafka: {brokers: localhost:9092}\ndatabase: postgres://semel@localhost/shop\nroutes:\n"+
		"- {name: orders, from: {topics: [orders]}, id: {header: message-id}, to: {table: public.orders, write: insert}}")
	if got, want := fmt.Sprintf("%+v", all.Routes), fmt.Sprintf("%+v", plain.Routes); got != want {
		t.Errorf("the document's route says more than defaults:\n%s\n%s", got, want)
	}
	if all.Memory != plain.Memory || all.Server != plain.Server || all.ShutdownGrace != plain.ShutdownGrace ||
		all.Database.Schema != plain.Database.Schema || all.Database.SynchronousCommit != plain.Database.SynchronousCommit {
		t.Errorf("the document says more than defaults: %+v, %+v", all, plain)
	}

	const unknown = "zzzzzzzzzzzzzzzz"
	named := 0
	for _, holder := range []string{
		"%s: 1", "kafka: {%s: 1}", "kafka: {tls: {%s: 1}}", "kafka: {sasl: {%s: 1}}", "database: {%s: 1}", "server: {%s: 1}",
		"routes: [{%s: 1}]", "routes: [{from: {%s: 1}}]", "routes: [{id: {%s: 1}}]", "routes: [{to: {%s: 1}}]", "routes: [{to: {times: {%s: 1}}}]",
		"routes: [{batch: {%s: 1}}]", "routes: [{inbox: {%s: 1}}]", "routes: [{on_error: {%s: 1}}]", "routes: [{on_error: {backoff: {%s: 1}}}]",
		"routes: [{on_error: {limit: {%s: 1}}}]", "routes: [{dead_letters: {%s: 1}}]",
	} {
		for _, m := range mistakes(t, fmt.Sprintf(holder, unknown)) {
			if !strings.Contains(m.What, unknown) {
				continue
			}
			for name := range strings.SplitSeq(strings.TrimPrefix(m.Hint, "there are "), ", ") {
				later := false
				for _, m := range mistakes(t, fmt.Sprintf(holder, name)) {
					later = later || strings.HasSuffix(m.What, name+" is not in this version")
				}
				if !later && !strings.Contains(example, name+":") {
					t.Errorf("docs/file.md doesn't show %s", fmt.Sprintf(holder, name))
				}
				named++
			}
		}
	}
	if named < 60 {
		t.Errorf("only %d fields were looked at", named)
	}
}

// What a document shows as a file is one.
func TestFilesInDocumentsAreRead(t *testing.T) {
	t.Parallel()
	files := 0
	for _, name := range []string{"../../docs/migrate.md"} {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(doc), "```yaml\n")[1:] {
			example, _, _ := strings.Cut(part, "```")
			if _, err := config.Parse(name, []byte(example), testEnv); err != nil {
				t.Errorf("%v\n%s", err, example)
			}
			files++
		}
	}
	if files < 2 {
		t.Errorf("only %d files", files)
	}
}
