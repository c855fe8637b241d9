package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // names of zones mean the same on every machine

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/nearest"
	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/sink"
)

// read reads the whole file into r.file, over the defaults.
func (r *reader) read(data []byte) {
	f := r.file
	top := r.document(data)
	if top == nil {
		return
	}
	f.at[""] = pos{top.Line, top.Column}
	if top.Kind == yaml.MappingNode {
		for i := 0; i < len(top.Content); i += 2 {
			r.registered = r.registered || top.Content[i].Value == "schema_registry"
		}
	}
	seen := r.object(top, "", fields{
		"kafka":           r.kafka,
		"schema_registry": r.registry,
		"database":        r.databaseField,
		"memory":          r.size(&f.Memory, 1<<20),
		"filters":         r.size(&f.Filters, 0),
		"server":          r.server,
		"shutdown_grace":  r.duration(&f.ShutdownGrace, time.Second),
		"routes":          r.routes,
		"tests":           r.tests,
	})
	if r.brokers != "" {
		f.Kafka.Brokers = r.brokerList(top, "the brokers above the file", r.brokers)
	} else if seen["kafka"] == nil {
		r.missing(top, "kafka", "kafka: {brokers: localhost:9092}")
	}
	if r.database != "" {
		f.Database.URL = NewSecret(r.database)
	} else if seen["database"] == nil {
		r.missing(top, "database", "database: ${DATABASE_URL}")
	}
	if seen["routes"] == nil {
		r.missing(top, "routes", "")
	}
	r.testedRoutes()
}

func (r *reader) missing(n *yaml.Node, field, like string) {
	if n.Kind != yaml.MappingNode {
		return // said already
	}
	if like != "" {
		like = "for example " + like
	}
	r.fail(n, field+" is missing", like)
}

func (r *reader) kafka(n *yaml.Node, at string) {
	k := &r.file.Kafka
	seen := r.object(n, at, fields{
		"brokers": r.brokersField,
		"tls":     r.tls(&k.TLS),
		"sasl": func(n *yaml.Node, at string) {
			k.SASL = &SASL{}
			seen := r.object(n, at, fields{
				"mechanism": choice(r, &k.SASL.Mechanism, []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}, "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"),
				"user":      r.name(&k.SASL.User),
				"password":  r.secret(&k.SASL.Password),
			})
			for _, f := range []string{"mechanism", "user", "password"} {
				if seen[f] == nil {
					r.missing(target(n), join(at, f), "")
				}
			}
		},
	})
	if seen["brokers"] == nil && r.brokers == "" {
		r.missing(target(n), "kafka.brokers", "brokers: localhost:9092")
	}
}

func (r *reader) tls(dst **TLS) field {
	return func(n *yaml.Node, at string) {
		t := &TLS{}
		*dst = t
		seen := r.object(n, at, fields{"ca": r.name(&t.CA), "cert": r.name(&t.Cert), "key": r.name(&t.Key)})
		if (seen["cert"] == nil) != (seen["key"] == nil) {
			r.fail(target(n), at+": cert and key belong together", "")
		}
	}
}

func (r *reader) brokersField(n *yaml.Node, at string) {
	if r.brokers != "" {
		return
	}
	const needs = "a list of host:port, or a text with commas between them"
	n = target(n)
	if n.Kind != yaml.SequenceNode {
		if s, ok := r.string(n, at, needs); ok {
			r.file.Kafka.Brokers = r.brokerList(n, at, s)
		}
		return
	}
	r.list(n, at, needs, func(n *yaml.Node, at string) {
		if s, ok := r.string(n, at, "host:port"); ok {
			r.file.Kafka.Brokers = append(r.file.Kafka.Brokers, r.brokerList(n, at, s)...)
		}
	})
}

func (r *reader) brokerList(n *yaml.Node, at, list string) (brokers []string) {
	for b := range strings.SplitSeq(list, ",") {
		b = strings.TrimSpace(b)
		switch {
		case b == "":
			r.fail(target(n), at+": a broker's name is empty", "")
		case strings.ContainsAny(b, " /@"):
			r.fail(target(n), at+": a broker is host:port, no URL", "")
		default:
			brokers = append(brokers, b)
		}
	}
	return brokers
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func (r *reader) databaseField(n *yaml.Node, at string) {
	d := &r.file.Database
	url := func(n *yaml.Node, at string) {
		if r.database != "" {
			return
		}
		s, ok := r.string(n, at, "a URL, or fields")
		if ok && strings.TrimSpace(s) == "" {
			r.fail(target(n), at+" is empty", "")
		} else if ok {
			d.URL = NewSecret(s)
		}
	}
	if n = target(n); n.Kind != yaml.MappingNode {
		url(n, at)
		return
	}
	seen := r.object(n, at, fields{
		"url":                url,
		"password":           r.secret(&d.Password),
		"schema":             r.name(&d.Schema),
		"synchronous_commit": r.bool(&d.SynchronousCommit),
	})
	if seen["url"] == nil && r.database == "" {
		r.missing(n, "database.url", "")
	}
	if s := seen["schema"]; s != nil && !schemaName.MatchString(d.Schema) {
		r.fail(target(s), at+".schema: a name of lower-case letters, digits and _, up to 63", "")
	}
}

func (r *reader) server(n *yaml.Node, at string) {
	seen := r.object(n, at, fields{"listen": r.text(&r.file.Server.Listen), "token": r.secret(&r.file.Server.Token)})
	if text, err := r.file.Server.Token.Reveal(); err == nil && seen["token"] != nil && strings.TrimSpace(text) == "" {
		r.fail(target(seen["token"]), at+".token is empty", "leave it out, if everybody may ask")
	}
}

func (r *reader) routes(n *yaml.Node, at string) {
	r.list(n, at, "a list of routes", func(n *yaml.Node, at string) {
		r.file.Routes = append(r.file.Routes, r.route(n, at))
	})
	names, consumers := map[string]string{}, map[string]string{}
	for i := range r.file.Routes {
		t := &r.file.Routes[i]
		if other, twice := names[t.Name]; twice && t.Name != "" {
			r.failPath(t.Path+".name", fmt.Sprintf("the name %q twice: %s has it", t.Name, other), "")
		} else if other, twice := consumers[t.Consumer]; twice && t.Consumer != "" {
			r.failPath(t.Path+".consumer", fmt.Sprintf("the consumer %q twice: %s has it", t.Consumer, other), "two routes with one memory would take each other's messages for duplicates")
		}
		names[t.Name], consumers[t.Consumer] = t.Path, t.Path
		for _, o := range r.file.Routes[:i] {
			same := o.From.Group == t.From.Group && t.From.Group != "" && o.Consumer != t.Consumer
			if same && (t.From.Matching != "" || o.From.Matching != "") {
				r.failPath(t.Path+".from.group", fmt.Sprintf("group %q twice: %s has it, and topics_matching may meet a topic of the other", t.From.Group, o.Path), "each route would get a part of the topic only")
			}
			for _, topic := range t.From.Topics {
				if o.From.Group == t.From.Group && t.From.Group != "" && slices.Contains(o.From.Topics, topic) && o.Consumer != t.Consumer {
					r.failPath(t.Path+".from.group", fmt.Sprintf("topic %q in group %q twice: %s reads it too", topic, t.From.Group, o.Path), "each route would get a part of the topic only")
				}
			}
		}
	}
}

// failPath is a mistake at a path, or at what holds it.
func (r *reader) failPath(path, what, hint string) {
	r.errs = append(r.errs, r.file.ErrorAt(path, what, hint))
}

func (r *reader) route(n *yaml.Node, at string) Route {
	t := Route{
		Path:      at,
		From:      From{Start: Start{Mode: StartGroup}, Concurrency: 1, GroupProtocol: GroupClassic, SessionTimeout: 10 * time.Second},
		Guarantee: EffectivelyOnce, Format: FormatJSON, Envelope: EnvelopeNone, OnMissingID: MissingIDDeadLetter, OnCollision: CollisionDeadLetter, OnGap: GapGoOn,
		To:          To{OnExists: ExistsDuplicate, OnNUL: NULDeadLetter, UnknownFields: UnknownIgnore, Evolve: EvolveNone, Tombstone: TombstoneIgnore, Query: Query{Expect: ExpectAny}},
		Batch:       Batch{Messages: 5000, Bytes: 16 << 20, Time: 10 * time.Second},
		Inbox:       Inbox{Window: 7 * 24 * time.Hour},
		OnError:     OnError{Then: ThenDeadLetter, Attempts: 1, Initial: time.Second, Max: 5 * time.Minute, InARow: 20, Share: 0.05},
		DeadLetters: DeadLetters{Keep: 90 * 24 * time.Hour},
	}
	keyed := false
	seen := r.object(n, at, fields{
		"name":          r.name(&t.Name),
		"consumer":      r.name(&t.Consumer),
		"from":          func(n *yaml.Node, at string) { keyed = r.from(n, at, &t.From) },
		"guarantee":     choice(r, &t.Guarantee, []Guarantee{EffectivelyOnce, AtLeastOnce, AtMostOnce}),
		"format":        choice(r, &t.Format, []Format{FormatJSON, FormatAvro, FormatProtobuf, FormatJSONSchema, FormatRaw}),
		"schema":        r.schema(&t.Schema),
		"envelope":      choice(r, &t.Envelope, []Envelope{EnvelopeNone, EnvelopeDebezium, EnvelopeCloudEvents}),
		"id":            func(n *yaml.Node, at string) { r.id(n, at, &t.ID) },
		"on_missing_id": choice(r, &t.OnMissingID, []OnMissingID{MissingIDDeadLetter, MissingIDPosition, MissingIDHalt}),
		"on_collision":  choice(r, &t.OnCollision, []OnCollision{CollisionDeadLetter, CollisionDuplicate, CollisionHalt}),
		"on_gap":        choice(r, &t.OnGap, []OnGap{GapGoOn, GapHalt}),
		"filter":        func(n *yaml.Node, at string) { t.Filter = r.expr(n, at, sink.ParseFilter) },
		"limit": func(n *yaml.Node, at string) {
			seen := r.object(n, at, fields{"messages": r.rate(&t.Limit)})
			if seen["messages"] == nil {
				r.missing(target(n), join(at, "messages"), "messages: 5000/s")
			}
		},
		"to": func(n *yaml.Node, at string) { r.to(n, at, &t.To) },
		"batch": func(n *yaml.Node, at string) {
			r.object(n, at, fields{
				"messages": r.whole(&t.Batch.Messages, 1, 1_000_000),
				"bytes":    r.size(&t.Batch.Bytes, 1),
				"time":     r.duration(&t.Batch.Time, time.Millisecond),
				"linger":   r.duration(&t.Batch.Linger, 0),
			})
		},
		"inbox": func(n *yaml.Node, at string) {
			r.object(n, at, fields{"window": r.duration(&t.Inbox.Window, 0)})
		},
		"on_error": func(n *yaml.Node, at string) { r.onError(n, at, &t.OnError) },
		"dead_letters": func(n *yaml.Node, at string) {
			r.object(n, at, fields{"keep": r.duration(&t.DeadLetters.Keep, 0), "topic": r.later})
		},
	})
	n = target(n)
	for _, f := range []string{"name", "from", "to"} {
		if seen[f] == nil {
			r.missing(n, join(at, f), "")
		}
	}
	r.checkID(n, at, &t, seen)
	if t.Consumer == "" {
		t.Consumer = t.Name
	}
	if t.From.Group == "" {
		t.From.Group = t.Consumer
	}
	if t.Envelope != EnvelopeNone && !keyed {
		t.From.KeyFormat = sink.KeyJSON
		if encoded(t.Format) {
			t.From.KeyEncoding = t.Format
		}
	}
	if t.Envelope == EnvelopeDebezium && t.To.Absent == "" && (t.To.Write == Upsert || t.To.Write == Mirror) && t.To.Version.IsZero() {
		t.To.Absent = AbsentKeep // what is stored out of line and didn't change isn't sent
	}
	if t.To.Absent == "" {
		t.To.Absent = AbsentSetNull
	}
	r.checkFormats(at, &t)
	r.checkFit(at, &t)
	r.checkPaths(at, &t)
	r.checkTemplate(at, &t)
	return t
}

func (r *reader) checkID(n *yaml.Node, at string, t *Route, seen map[string]*yaml.Node) {
	unused := func(why string, fields ...string) {
		for _, f := range fields {
			if seen[f] != nil {
				r.failPath(join(at, f), "without effect: "+why, "")
			}
		}
	}
	switch {
	case t.Guarantee == AtLeastOnce, t.Guarantee == AtMostOnce:
		unused(string(t.Guarantee)+" keeps no message IDs", "id", "on_missing_id", "on_collision", "inbox")
		if t.Guarantee == AtMostOnce && t.OnError.Attempts > 1 {
			r.failPath(join(at, "on_error.attempts"), "without effect: at-most-once makes one attempt", "")
		}
		t.ID, t.Inbox.Window = ID{Position: true}, 0
	case seen["id"] == nil && t.Envelope == EnvelopeCloudEvents:
		for _, name := range []string{"source", "id"} {
			t.ID.Fields = append(t.ID.Fields, sink.Path{Root: sink.RootEnvelope, Names: []string{name}})
		}
	case seen["id"] == nil:
		r.missing(n, join(at, "id"), "id: {header: message-id}; other forms are {fields: [value.a]}, {key: true}, {position: true}")
	case t.ID.Key && (t.To.Write == Upsert || t.To.Write == Mirror):
		r.failPath(join(at, "id.key"), "messages of one key are the states of one row: each after the first would be a duplicate", "identify messages by what differs between two updates of a row, or {position: true}")
	case t.ID.Position:
		unused("a position is never missing and never collides", "on_missing_id", "on_collision")
		unused("positions need no inbox", "inbox")
		t.Inbox.Window = 0
	}
}

// checkPaths finds paths into a key that has no fields, and into an envelope that
// isn't there.
func (r *reader) checkPaths(at string, t *Route) {
	check := func(path string, p sink.Path) {
		switch {
		case p.Root == sink.RootKey && len(p.Names) > 0 && t.From.KeyFormat != sink.KeyJSON:
			r.failPath(path, p.String()+" is a field of the key", "from.key_format: json reads the key's fields")
		case p.Uses(sink.RootEnvelope) && t.Envelope == EnvelopeNone:
			r.failPath(path, p.String()+" is a field of an envelope, and there is none", "envelope: debezium, or cloudevents")
		case p.IsPosition() && t.Envelope != EnvelopeDebezium:
			r.failPath(path, p.String()+" is the place in a source's log, which only envelope: debezium has", "")
		}
	}
	each(at, t, check)
}

// from says whether the file names the key's format.
func (r *reader) from(n *yaml.Node, at string, f *From) (keyed bool) {
	format := ""
	seen := r.object(n, at, fields{
		"topics":          r.names(&f.Topics),
		"topics_matching": func(n *yaml.Node, at string) { r.matching(n, at, f) },
		"outbox":          r.later,
		"start":           func(n *yaml.Node, at string) { r.start(n, at, &f.Start) },
		"group":           r.name(&f.Group),
		"concurrency":     r.whole(&f.Concurrency, 1, 1024),
		"key_format":      choice(r, &format, []string{"text", "json", "raw", string(FormatAvro), string(FormatProtobuf), string(FormatJSONSchema)}),
		"key_schema":      r.schema(&f.KeySchema),
		"group_protocol":  choice(r, &f.GroupProtocol, []GroupProtocol{GroupClassic, GroupConsumer}),
		"instance_id":     r.text(&f.InstanceID),
		"session_timeout": r.duration(&f.SessionTimeout, time.Second),
	})
	f.KeyFormat = map[string]sink.KeyFormat{"json": sink.KeyJSON, "raw": sink.KeyRaw}[format]
	if encoded(Format(format)) {
		f.KeyFormat, f.KeyEncoding = sink.KeyJSON, Format(format)
	}
	if f.GroupProtocol == GroupConsumer && seen["session_timeout"] != nil {
		r.fail(target(seen["session_timeout"]), at+": session_timeout is the broker's with group_protocol: consumer", "group.consumer.session.timeout.ms, of the broker or of the group")
	}
	if seen["topics"] != nil && seen["topics_matching"] != nil {
		r.fail(target(seen["topics_matching"]), at+": topics or topics_matching, not both", "")
	}
	if f.Matching != "" && f.Start.Mode == StartLatest {
		r.failPath(join(at, "start"), "latest with topics_matching: what a new topic holds when it is found would be lost", "earliest, or a time")
	}
	if seen["topics"] == nil && seen["topics_matching"] == nil && seen["outbox"] == nil {
		r.missing(target(n), join(at, "topics"), "topics: [orders]")
	}
	return seen["key_format"] != nil
}

func (r *reader) matching(n *yaml.Node, at string, f *From) {
	s, ok := r.string(n, at, `an expression for names of topics, like 'shop\.public\.(.*)'`)
	if !ok {
		return
	}
	if _, err := regexp.Compile("^(?:" + s + ")$"); err != nil || s == "" {
		var e *syntax.Error
		why := "empty"
		if errors.As(err, &e) {
			why = fmt.Sprintf("%s: %s", e.Code, e.Expr)
		}
		r.fail(target(n), at+": no regular expression: "+why, "")
		return
	}
	f.Matching = s
}

// checkTemplate finds places in a table's name that no topic fills.
func (r *reader) checkTemplate(at string, t *Route) {
	if t.To.Template == "" {
		return
	}
	if t.From.Matching == "" {
		if len(t.From.Topics) > 0 {
			r.failPath(join(at, "to.table"), "a template, and no topics_matching to fill it", `from: {topics_matching: 'shop\.public\.(.*)'}`)
		}
		return
	}
	r.checkPlaces(join(at, "to.table"), t.To.Template, t.From)
}

// checkPlaces looks whether all that a template names is there.
func (r *reader) checkPlaces(path, text string, f From) {
	groups := 0
	if f.Matching != "" {
		re, err := regexp.Compile(f.Matching)
		if err != nil {
			return // said already
		}
		groups = re.NumSubexp()
	}
	for _, place := range template.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(place[1]); err != nil || n > groups {
			r.failPath(path, fmt.Sprintf("%s, and topics_matching has %d groups", place[0], groups), "a group is written in brackets: (.*)")
		}
	}
}

func (r *reader) start(n *yaml.Node, at string, s *Start) {
	n = target(n)
	const needs = "group, earliest, latest, or a time like 2026-01-02T03:04:05Z"
	text, _, ok := r.scalar(n, at, needs)
	if !ok {
		return
	}
	words := []StartMode{StartGroup, StartEarliest, StartLatest}
	if slices.Contains(words, StartMode(text)) {
		s.Mode = StartMode(text)
		return
	}
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		hint := "there is " + needs
		if near := nearest.Name(text, []string{"group", "earliest", "latest"}); near != "" {
			hint = "did you mean " + near + "?"
		}
		r.fail(n, fmt.Sprintf("%s: there is no %q", at, text), hint)
		return
	}
	*s = Start{Mode: StartTime, Time: when}
}

func (r *reader) id(n *yaml.Node, at string, id *ID) {
	yes := func(dst *bool) field {
		return func(n *yaml.Node, at string) {
			r.bool(dst)(n, at)
			if !*dst && target(n).ShortTag() == "!!bool" {
				r.fail(target(n), at+" can only be true", "leave it out, and choose another form")
			}
		}
	}
	seen := r.object(n, at, fields{
		"header": r.name(&id.Header),
		"fields": func(n *yaml.Node, at string) {
			r.list(n, at, "a list of expressions", func(n *yaml.Node, at string) {
				id.Fields = append(id.Fields, r.path(n, at))
			})
		},
		"key":      yes(&id.Key),
		"position": yes(&id.Position),
	})
	if n = target(n); n.Kind == yaml.MappingNode && len(seen) != 1 && len(n.Content) <= 2*max(len(seen), 1) {
		r.fail(n, at+" needs exactly one of header, fields, key, position", "")
	}
}

// path reads a plain selection, and says at which column it goes wrong.
func (r *reader) path(n *yaml.Node, at string) sink.Path { return r.expr(n, at, sink.ParsePath) }

func (r *reader) expr(n *yaml.Node, at string, parse func(string) (sink.Path, error)) sink.Path {
	n = target(n)
	s, ok := r.string(n, at, "an expression, like value.order.id")
	if !ok {
		return sink.Path{}
	}
	p, err := parse(s)
	var e *sink.ExprError
	if errors.As(err, &e) {
		column := n.Column
		if s == n.Value && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
			column += e.Column - 1
			if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
				column++
			}
		}
		hint := ""
		if first, _, _ := strings.Cut(strings.TrimSpace(s), "."); !e.Computed && variable(first) {
			if near := nearest.Name(first, []string{"value", "key", "headers", "timestamp", "topic", "partition", "offset", "envelope"}); near != "" && near != first {
				hint = "did you mean " + near + "?"
			}
		}
		r.failAt(n.Line, column, at+": "+e.Why, hint)
	}
	return p
}

func (r *reader) to(n *yaml.Node, at string, t *To) {
	seen := r.object(n, at, fields{
		"table":          func(n *yaml.Node, at string) { r.table(n, at, t) },
		"write":          choice(r, &t.Write, []Write{Append, Insert, Upsert, Mirror}),
		"primary_key":    r.names(&t.PrimaryKey),
		"version":        func(n *yaml.Node, at string) { t.Version = r.path(n, at) },
		"columns":        func(n *yaml.Node, at string) { r.columns(n, at, t) },
		"absent":         choice(r, &t.Absent, []Absent{AbsentSetNull, AbsentKeep, AbsentError}),
		"tombstone":      choice(r, &t.Tombstone, []Tombstone{TombstoneIgnore, TombstoneDeadLetter, TombstoneDelete}),
		"on_exists":      choice(r, &t.OnExists, []OnExists{ExistsDuplicate, ExistsDeadLetter}),
		"times":          func(n *yaml.Node, at string) { r.times(n, at, t) },
		"on_nul":         choice(r, &t.OnNUL, []OnNUL{NULDeadLetter, NULStrip}),
		"unknown_fields": choice(r, &t.UnknownFields, []UnknownFields{UnknownIgnore, UnknownHalt}),
		"combine":        func(n *yaml.Node, at string) { r.combine(n, at, t) },
		"deleted":        r.name(&t.Deleted),
		"create":         r.bool(&t.Create),
		"evolve":         choice(r, &t.Evolve, []Evolve{EvolveNone, EvolveAdd}),
		"relation":       func(n *yaml.Node, at string) { r.relation(n, at, t) },
		"sql":            func(n *yaml.Node, at string) { r.statement(n, at, t) },
		"expect":         choice(r, &t.Query.Expect, []Expect{ExpectAny, ExpectEach}),
		"kafka":          r.later,
		"http":           r.later,
	})
	n = target(n)
	if seen["sql"] != nil || seen["relation"] != nil {
		r.query(n, at, t, seen)
		return
	}
	if seen["expect"] != nil {
		r.failPath(join(at, "expect"), "without effect: it is for sql", "")
	}
	for _, other := range []string{"kafka", "http"} {
		if seen[other] != nil {
			return // another kind of target altogether
		}
	}
	if seen["table"] == nil {
		r.missing(n, join(at, "table"), "table: public.orders")
	}
	if seen["write"] == nil {
		r.missing(n, join(at, "write"), "write: insert; there is append, insert, upsert, mirror")
		return
	}
	only := func(f, why string, modes ...Write) {
		if seen[f] != nil && t.Write != "" && !slices.Contains(modes, t.Write) {
			r.failPath(join(at, f), fmt.Sprintf("without effect: write: %s %s", t.Write, why), "")
		}
	}
	only("version", "compares no versions, only upsert and mirror do", Upsert, Mirror)
	only("primary_key", "knows no keys", Insert, Upsert, Mirror)
	only("on_exists", "never meets a row under its key as insert does", Insert)
	only("combine", "adds to nothing that is stored, only upsert does", Upsert)
	only("deleted", "marks no deleted rows, only mirror does", Mirror)
	if t.Write == Mirror && seen["tombstone"] == nil {
		t.Tombstone = TombstoneDelete
	}
	r.checkKept(at, t, seen)
	if t.Columns == nil {
		return
	}
	for i, k := range t.PrimaryKey {
		if !slices.ContainsFunc(t.Columns, func(c sink.Column) bool { return c.Name == k }) {
			r.failPath(fmt.Sprintf("%s.primary_key[%d]", at, i), fmt.Sprintf("no column %q in columns", k), near(k, t.Columns))
		}
	}
	for _, c := range slices.Sorted(maps.Keys(t.Epoch)) {
		if !slices.ContainsFunc(t.Columns, func(x sink.Column) bool { return x.Name == c }) {
			r.failPath(join(at, "times.epoch."+c), fmt.Sprintf("no column %q in columns", c), near(c, t.Columns))
		}
	}
	if !t.Version.IsZero() && !slices.ContainsFunc(t.Columns, func(c sink.Column) bool { return c.From.Equal(t.Version) }) {
		r.failPath(join(at, "version"), fmt.Sprintf("no column takes %s, so no version is stored", t.Version), "add one to columns")
	}
}

// checkKept finds what contradicts what is stored.
func (r *reader) checkKept(at string, t *To, seen map[string]*yaml.Node) {
	keeps := t.Write == Upsert || t.Write == Mirror
	versioned, deletes := seen["version"] != nil, t.Tombstone == TombstoneDelete
	const late = "a late one would be dropped, though nothing replaces it: leave the version out, and the order of the partition counts"
	if t.Absent == AbsentKeep && !keeps {
		r.failPath(join(at, "absent"), fmt.Sprintf("without effect: write: %s keeps nothing of what is stored", t.Write), "")
	}
	if t.Absent == AbsentKeep && versioned {
		r.failPath(join(at, "absent"), "keep makes patches, which can't have a version", late)
	}
	if len(t.Combine) > 0 && versioned {
		r.failPath(join(at, "combine"), "what is added can't have a version", late)
	}
	if deletes && t.Write != Mirror && t.Write != "" {
		r.failPath(join(at, "tombstone"), fmt.Sprintf("write: %s deletes nothing", t.Write), "write: mirror does")
	}
	switch {
	case t.Write != Mirror:
	case versioned && deletes && t.Deleted == "":
		r.failPath(join(at, "version"), "a deletion under a version has to leave its row, or an older message that comes late would bring it back", "deleted: a column of type timestamptz that marks deleted rows, until the window of the inbox has passed")
	case t.Deleted != "" && (!versioned || !deletes):
		r.failPath(join(at, "deleted"), "without effect: without a version rows are really deleted, in the order of the partition", "")
	}
	if slices.ContainsFunc(t.Columns, func(c sink.Column) bool { return c.Name == t.Deleted }) {
		r.failPath(join(at, "columns."+t.Deleted), "it marks deleted rows, and takes nothing from messages", "")
	}
	for _, c := range t.Combine {
		if t.Columns != nil && !slices.ContainsFunc(t.Columns, func(x sink.Column) bool { return x.Name == c }) {
			r.failPath(join(at, "combine."+c), fmt.Sprintf("no column %q in columns", c), near(c, t.Columns))
		}
	}
}

// combine reads columns with what is done to them: add is all that there is.
func (r *reader) combine(n *yaml.Node, at string, t *To) {
	n = target(n)
	if n.Kind != yaml.MappingNode {
		r.wrong(n, at, "fields: target columns, each with add")
		return
	}
	r.pairs(n, at, func(key, value *yaml.Node) {
		var how string
		choice(r, &how, []string{"add"})(value, join(at, key.Value))
		t.Combine = append(t.Combine, key.Value)
	})
	slices.Sort(t.Combine)
}

func near(name string, columns []sink.Column) string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	if n := nearest.Name(name, names); n != "" {
		return "did you mean " + n + "?"
	}
	return ""
}

func (r *reader) table(n *yaml.Node, at string, t *To) {
	s, ok := r.string(n, at, "a table's name, like public.orders")
	if !ok {
		return
	}
	// Whatever a topic brings, the template has to be a name.
	table, err := sqlname.ParseTable(template.ReplaceAllString(s, "t$1"))
	switch {
	case err == nil && template.MatchString(s):
		t.Template = s
	case err == nil:
		t.Table = table
	default:
		r.fail(target(n), at+": "+err.Error(), `names are written as in SQL: public.orders, "My.Schema"."Table"`)
	}
}

func (r *reader) columns(n *yaml.Node, at string, t *To) {
	n = target(n)
	if n.Kind != yaml.MappingNode {
		r.wrong(n, at, "fields: the target's columns, each with an expression")
		return
	}
	if len(n.Content) == 0 {
		r.fail(n, at+" is empty", "leave it out, and every field goes to the column of its name")
	}
	r.pairs(n, at, func(key, value *yaml.Node) {
		if key.Value == "" || len(key.Value) > sqlname.MaxBytes {
			r.fail(key, at+": a column's name has 1 to 63 bytes", "")
			return
		}
		t.Columns = append(t.Columns, sink.Column{Name: key.Value, From: r.expr(value, join(at, key.Value), sink.ParseExpr)})
	})
}

func (r *reader) times(n *yaml.Node, at string, t *To) {
	r.object(n, at, fields{
		"zone": func(n *yaml.Node, at string) {
			s, ok := r.string(n, at, "a zone, like UTC or Europe/Warsaw")
			if !ok {
				return
			}
			zone, err := time.LoadLocation(s)
			if err != nil || s == "" || s == "Local" {
				r.fail(target(n), fmt.Sprintf("%s: there is no zone %q", at, s), "zones are like UTC, Europe/Warsaw")
				return
			}
			t.Zone = zone
		},
		"epoch": func(n *yaml.Node, at string) {
			n = target(n)
			if n.Kind != yaml.MappingNode {
				r.wrong(n, at, "fields: target columns, each with s, ms, us or ns")
				return
			}
			t.Epoch = map[string]EpochUnit{}
			r.pairs(n, at, func(key, value *yaml.Node) {
				var unit EpochUnit
				choice(r, &unit, []EpochUnit{"s", "ms", "us", "ns"})(value, join(at, key.Value))
				t.Epoch[key.Value] = unit
			})
		},
	})
}

func (r *reader) onError(n *yaml.Node, at string, e *OnError) {
	seen := r.object(n, at, fields{
		"then":     choice(r, &e.Then, []Then{ThenDeadLetter, ThenHalt}),
		"attempts": r.whole(&e.Attempts, 1, 1_000_000),
		"backoff": func(n *yaml.Node, at string) {
			seen := r.object(n, at, fields{
				"initial": r.duration(&e.Initial, time.Millisecond),
				"max":     r.duration(&e.Max, time.Millisecond),
			})
			switch {
			case e.Initial <= e.Max:
			case seen["initial"] != nil && seen["max"] != nil:
				r.fail(target(n), fmt.Sprintf("%s: initial %s is more than max %s", at, e.Initial, e.Max), "")
			case seen["max"] != nil:
				e.Initial = e.Max
			default:
				e.Max = e.Initial
			}
		},
		"limit": func(n *yaml.Node, at string) {
			r.object(n, at, fields{"in_a_row": r.whole(&e.InARow, 0, 1_000_000), "share": r.share(&e.Share)})
		},
	})
	if e.Then == ThenHalt && seen["limit"] != nil {
		r.failPath(join(at, "limit"), "without effect: then: halt halts at the first", "")
	}
}
