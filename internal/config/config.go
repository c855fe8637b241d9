// Package config reads the daemon's file: strictly, all mistakes at once, each
// with its line, its column and the nearest right name. What belongs to a later
// version is refused by name and never accepted and ignored.
//
// It checks what the file alone can tell. Whatever needs a broker or a database
// is checked by others, who say where in the file it went wrong with
// [File.ErrorAt].
package config

import (
	"fmt"
	"os"
	"time"

	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/sink"
)

// File is a whole file, complete with defaults.
type File struct {
	// Name is the path as it was given.
	Name          string
	Kafka         Kafka
	Registry      *Registry // nil: none
	Database      Database
	Memory        int64 // bytes, for everything fetched and not yet written
	Filters       int64 // bytes, for filters of message IDs
	Server        Server
	ShutdownGrace time.Duration
	Routes        []Route
	Tests         []Test

	at map[string]pos
}

// Kafka says how to reach the brokers.
type Kafka struct {
	Brokers []string
	TLS     *TLS  // nil: no TLS
	SASL    *SASL // nil: none
}

// TLS names files, as they were written: relative to the working directory. None
// has to be given: the machine's roots are used, and no client certificate.
type TLS struct{ CA, Cert, Key string }

// SASL proves who we are. Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
type SASL struct {
	Mechanism string
	User      string
	Password  Secret
}

// Registry says how to reach a schema registry.
type Registry struct {
	URLs     []string
	TLS      *TLS // nil: the machine's roots
	User     string
	Password Secret
	Token    Secret // instead of user and password
}

// Database says how to reach PostgreSQL and where our own tables are.
type Database struct {
	URL               Secret // a URL or key=value words; may hold a password
	Password          Secret // instead of the one in URL, if set
	Schema            string
	SynchronousCommit bool
}

// Server is the listener of health and metrics.
type Server struct {
	Listen string // "": off
	// Token is what who asks for more than /livez and /readyz has to know; not set: nothing.
	Token Secret
}

// Route is the way of some topics into a table.
type Route struct {
	Name        string
	Consumer    string
	From        From
	Guarantee   Guarantee
	Format      Format
	Schema      Schema // zero: the registry's
	Envelope    Envelope
	ID          ID
	OnMissingID OnMissingID
	OnCollision OnCollision
	OnGap       OnGap
	Filter      sink.Path // zero: none
	To          To
	Batch       Batch
	Inbox       Inbox
	OnError     OnError
	Limit       Rate // of what is read; zero: none
	DeadLetters DeadLetters

	// Path is the route's place in the file, "routes[0]", for [File.ErrorAt].
	Path string
}

// From says what a route reads.
type From struct {
	Topics         []string
	Matching       string // instead of Topics: an expression for whole names; "": none
	Start          Start
	Group          string
	Concurrency    int // lanes in this process
	KeyFormat      sink.KeyFormat
	KeyEncoding    Format // what becomes JSON first: avro, protobuf or json-schema; "": nothing
	KeySchema      Schema // zero: the registry's
	GroupProtocol  GroupProtocol
	InstanceID     string // static membership; "": none
	SessionTimeout time.Duration
}

// GroupProtocol says who assigns partitions: a member, or the coordinator.
type GroupProtocol string

// The values of group_protocol, in the words of Kafka's own client.
const (
	GroupClassic  GroupProtocol = "classic"
	GroupConsumer GroupProtocol = "consumer"
)

// Start is where a consumer without a watermark begins.
type Start struct {
	Mode StartMode
	Time time.Time // with StartTime
}

// StartMode is one of the ways to begin.
type StartMode string

const (
	StartGroup    StartMode = "group" // at the group's offset, else the earliest
	StartEarliest StartMode = "earliest"
	StartLatest   StartMode = "latest"
	StartTime     StartMode = "time"
)

// String is the way as the file has it.
func (s Start) String() string {
	if s.Mode == StartTime {
		return s.Time.Format(time.RFC3339Nano)
	}
	return string(s.Mode)
}

// The words below are those of the file.
type (
	Guarantee     string
	Format        string
	Envelope      string
	OnMissingID   string
	OnCollision   string
	OnGap         string
	Write         string
	OnExists      string
	OnNUL         string
	Tombstone     string
	Absent        string
	UnknownFields string
	Evolve        string
	Then          string
)

// Schema is a schema in a local file, and how a format's schemas are used.
type Schema struct {
	File     string // as it was written: relative to the working directory; "": the registry has it
	Subject  string // what the registry calls it; {0} is the topic; "": TOPIC-value or TOPIC-key
	Message  string // of Protobuf: the full name
	Reader   string // of Avro: the file of what is read
	Validate bool   // of JSON Schema: messages are checked by the registry's
}

const (
	FormatJSON       Format = "json"
	FormatAvro       Format = "avro"
	FormatProtobuf   Format = "protobuf"
	FormatJSONSchema Format = "json-schema"
	FormatRaw        Format = "raw"
)

const (
	EnvelopeNone     Envelope = "none"
	EnvelopeDebezium Envelope = "debezium"
	// EnvelopeCloudEvents identifies messages by source and id if the file names no
	// other rule.
	EnvelopeCloudEvents Envelope = "cloudevents"
)

const (
	EffectivelyOnce Guarantee = "effectively-once"
	AtLeastOnce     Guarantee = "at-least-once"
	AtMostOnce      Guarantee = "at-most-once"

	MissingIDDeadLetter OnMissingID = "dead-letter"
	MissingIDPosition   OnMissingID = "position"
	MissingIDHalt       OnMissingID = "halt"

	CollisionDeadLetter OnCollision = "dead-letter"
	CollisionDuplicate  OnCollision = "duplicate"
	CollisionHalt       OnCollision = "halt"

	GapGoOn OnGap = "go-on"
	GapHalt OnGap = "halt"

	Append Write = "append"
	Insert Write = "insert"
	Upsert Write = "upsert"
	Mirror Write = "mirror"
	SQL    Write = "sql" // no word of the file: the effect is To.Query

	ExistsDuplicate  OnExists = "duplicate"
	ExistsDeadLetter OnExists = "dead-letter"

	NULDeadLetter OnNUL = "dead-letter"
	NULStrip      OnNUL = "strip"

	TombstoneIgnore     Tombstone = "ignore"
	TombstoneDeadLetter Tombstone = "dead-letter"
	TombstoneDelete     Tombstone = "delete"

	AbsentSetNull Absent = "set-null"
	AbsentKeep    Absent = "keep"
	AbsentError   Absent = "error"

	UnknownIgnore UnknownFields = "ignore"
	UnknownHalt   UnknownFields = "halt"

	EvolveNone Evolve = "none"
	EvolveAdd  Evolve = "add-columns"

	ThenDeadLetter Then = "dead-letter"
	ThenHalt       Then = "halt"
)

// ID says what identifies a message; exactly one of its fields is set.
type ID struct {
	Header   string
	Fields   []sink.Path
	Key      bool
	Position bool
}

// To is the target.
type To struct {
	Table      sqlname.Table
	Template   string // instead of Table: one for each topic, see [Route.TableOf]; "": none
	Write      Write
	PrimaryKey []string  // nil: the table's
	Version    sink.Path // zero: none
	// Columns in the order of the file; nil: every field with a column of the
	// same name.
	Columns       []sink.Column
	OnExists      OnExists
	Zone          *time.Location       // of times without one; nil: they are refused
	Epoch         map[string]EpochUnit // by target column
	OnNUL         OnNUL
	UnknownFields UnknownFields
	Create        bool // a table that isn't there is made by the schema
	Evolve        Evolve
	Tombstone     Tombstone
	Absent        Absent
	Combine       []string // columns to which a message adds, sorted
	Deleted       string   // the column that marks deleted rows; "": they are gone
	Query         Query
}

// EpochUnit is what a number in a time column counts: s, ms, us or ns.
type EpochUnit string

// Batch bounds what shares one transaction.
type Batch struct {
	Messages     int
	Bytes        int64
	Time, Linger time.Duration
}

// Inbox is the memory of message IDs.
type Inbox struct {
	Window time.Duration // 0: the watermark alone
}

// OnError says what becomes of a message that fails.
type OnError struct {
	Then     Then
	Attempts int
	Initial  time.Duration // of the back-off
	Max      time.Duration
	InARow   int     // so many buried in a row halt the route; 0: no limit
	Share    float64 // this share of the last thousand as well, 0.05 for 5%; 0: no limit
}

// Rate is so many messages in a time.
type Rate struct {
	Messages int
	Per      time.Duration // a second or a minute
}

// IsZero says that there is no rate.
func (r Rate) IsZero() bool { return r == Rate{} }

// String is the rate as the file has it.
func (r Rate) String() string {
	switch r.Per {
	case time.Second:
		return fmt.Sprintf("%d/s", r.Messages)
	case time.Minute:
		return fmt.Sprintf("%d/m", r.Messages)
	}
	return ""
}

// DeadLetters says how long they are kept.
type DeadLetters struct{ Keep time.Duration }

// A Setting stands above the file.
type Setting func(*reader)

// WithBrokers is used instead of kafka.brokers, which is not even looked at.
func WithBrokers(list string) Setting { return func(r *reader) { r.brokers = list } }

// WithDatabase is used instead of the database's URL, which is not even looked at.
func WithDatabase(url string) Setting { return func(r *reader) { r.database = url } }

// WithoutFile is a file that names a database and nothing else, for what needs no
// routes.
func WithoutFile(database string) *File {
	f := defaults()
	f.Database.URL = NewSecret(database)
	return f
}

// defaults is what a file says that says nothing.
func defaults() *File {
	return &File{
		Database:      Database{Schema: "semel", SynchronousCommit: true},
		Memory:        256 << 20,
		Filters:       128 << 20,
		Server:        Server{Listen: "127.0.0.1:8321"},
		ShutdownGrace: 25 * time.Second,
		at:            map[string]pos{},
	}
}

// Load reads the file with the environment of the process. Mistakes in it are an
// *Errors.
func Load(path string, settings ...Setting) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, os.LookupEnv, settings...)
}

// Parse reads a file that is in memory. env gives environment variables and
// whether they are set. All mistakes are reported at once, as an *Errors.
func Parse(name string, data []byte, env func(string) (string, bool), settings ...Setting) (*File, error) {
	r := &reader{file: defaults(), env: env}
	r.file.Name = name
	for _, s := range settings {
		s(r)
	}
	r.read(data)
	if err := r.errors(); err != nil {
		return nil, err
	}
	return r.file, nil
}

// PlaceOf is where a path stands, as file:line.
func (f *File) PlaceOf(path string) string {
	e := f.ErrorAt(path, "", "")
	return fmt.Sprintf("%s:%d", e.File, e.Line)
}

// ErrorAt is a mistake at a place of the file, for checks that need more than the
// file. The path is like routes[0].to.version, where [Route.Path] begins it; of a
// path that is not in the file the nearest one above is taken.
func (f *File) ErrorAt(path, what, hint string) *Error {
	for p := path; ; p = parent(p) {
		if at, ok := f.at[p]; ok {
			return &Error{File: f.Name, Line: at.line, Column: at.column, What: path + ": " + what, Hint: hint}
		}
		if p == "" {
			return &Error{File: f.Name, Line: 1, Column: 1, What: path + ": " + what, Hint: hint}
		}
	}
}

func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' || path[i] == '[' {
			return path[:i]
		}
	}
	return ""
}

// Error is one mistake in a file.
type Error struct {
	File         string
	Line, Column int // from 1
	What         string
	Hint         string // what to do about it; often ""
}

// Error is one line, without the hint.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.What)
}
