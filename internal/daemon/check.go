package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/nearest"
	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// Finding is one thing that a check found.
type Finding struct {
	// Wrong: the routes would halt, or not do what they promise. Else it is a
	// setting that weakens the promise, or worth knowing.
	Wrong bool   `json:"wrong"`
	What  string `json:"what"` // with its place in the file
	Hint  string `json:"hint,omitempty"`
}

// Check looks at all that can be known before a run. An error means that it
// could not be found out.
func Check(ctx context.Context, f *config.File, log *slog.Logger) ([]Finding, error) {
	p, err := open(ctx, f, log)
	if err != nil {
		return nil, err
	}
	defer p.close()
	c := &check{parts: p, ctx: ctx}
	c.listener()
	if err := c.server(); err != nil {
		return nil, err
	}
	if err := p.pingRegistry(ctx); err != nil {
		return nil, err
	}
	for _, r := range f.Routes {
		if err := c.route(r); err != nil {
			return nil, err
		}
	}
	return c.found, nil
}

type check struct {
	*parts
	ctx    context.Context
	found  []Finding
	tables bool // Semel's own are there
}

func (c *check) wrong(path, what, hint string) { c.add(true, path, what, hint) }
func (c *check) weak(path, what, hint string)  { c.add(false, path, what, hint) }

func (c *check) add(wrong bool, path, what, hint string) {
	f := Finding{wrong, c.file.ErrorAt(path, what, "").Error(), hint}
	if !slices.Contains(c.found, f) { // many tables may say one thing
		c.found = append(c.found, f)
	}
}

// skewMost is how far two clocks may be apart before it is worth a word: the
// window and the ages in status are counted by the database's.
const skewMost = 5 * time.Second

// listener looks who may ask for health and metrics.
func (c *check) listener() {
	s := c.file.Server
	if s.Listen == "" || s.Token.IsSet() {
		return
	}
	host, _, err := net.SplitHostPort(s.Listen)
	if ip := net.ParseIP(host); err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		c.weak("server.listen", "whoever reaches "+s.Listen+" sees names of routes and topics, and errors", "server.token, or 127.0.0.1")
	}
}

// skewOf is how far the clock that was asked at before, and answered after took, is
// from ours; 0: not worth a word.
func skewOf(before time.Time, took time.Duration, there time.Time) time.Duration {
	if skew := before.Add(took / 2).Sub(there).Abs(); skew > skewMost+took {
		return skew.Round(time.Second)
	}
	return 0
}

const (
	failOver      = "a fail-over loses what they lack, rows and memory together; it is read again from the broker, if that still has it"
	longRetention = "topics that keep messages for longer than a standby may lag"
)

// server looks at what all routes share.
func (c *check) server() error {
	conn, err := c.pool.Acquire(c.ctx)
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	defer conn.Release()
	before := time.Now()
	f, err := postgres.ReadFacts(c.ctx, conn.Conn())
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	took := time.Since(before)
	const at = "database"
	if f.Version < 140000 {
		c.wrong(at, fmt.Sprintf("PostgreSQL %d is older than 14", f.Version/10000), "")
	}
	if f.Recovery {
		c.wrong(at, "the server is a standby: nothing can be written", "target_session_attrs=read-write in the URL finds the primary")
	}
	if f.ReadOnly {
		c.wrong(at, "default_transaction_read_only is on: nothing can be written", "ALTER ROLE or ALTER DATABASE … RESET default_transaction_read_only")
	}
	if f.FSync != "on" {
		c.weak(at, "fsync is off: a crash of the machine can damage everything", "for tests alone")
	}
	if f.FullPageWrites != "on" {
		c.weak(at, "full_page_writes is off: a crash of the machine can damage pages", "")
	}
	if f.SynchronousCommit == "off" && c.file.Database.SynchronousCommit {
		c.weak(at, "synchronous_commit is off: what a server crash forgets is read again from the broker, if it still has it", "the promise holds as long as the topics keep what was lost")
	}
	if f.Waits && (f.SynchronousCommit == "local" || f.SynchronousCommit == "off") {
		c.weak(at, "synchronous_commit is "+f.SynchronousCommit+", and COMMIT doesn't wait for the standbys of synchronous_standby_names: "+failOver, longRetention)
	}
	if f.Async > 0 && !f.Waits {
		c.weak(at, count(f.Async, "standby")+" that no COMMIT waits for: "+failOver, longRetention)
	}
	if f.Pooled {
		c.weak(at, "there is a pooler in between", "in transaction mode, default_query_exec_mode=exec in the URL if it doesn't track prepared statements")
	}
	if skew := skewOf(before, took, f.Now); skew > 0 {
		c.weak(at, fmt.Sprintf("its clock and this machine's are %s apart", skew), "the window is counted by the database's clock, ages in status and metrics by this one's")
	}
	if need, have := lanesOf(c.file.Routes)+poolExtra, f.Connections-f.Used; need > have {
		c.wrong(at, fmt.Sprintf("the routes need %d connections, and the server has %d left of %d", need, have, f.Connections), "less concurrency, or a larger max_connections")
	}
	state, version, err := postgres.SchemaState(c.ctx, conn, c.file.Database.Schema)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return nil // said with each table
	}
	if err != nil {
		return &StartError{What: "tables", Err: Plain(err)}
	}
	e := &postgres.SchemaError{Schema: c.file.Database.Schema, State: state, Version: version}
	switch state {
	case postgres.SchemaCurrent:
		c.tables = true
		if err := c.memoryIsLogged(at); err != nil {
			return err
		}
	case postgres.SchemaMissing:
		c.weak(at, e.Error(), "semel run makes them, or semel migrate")
	case postgres.SchemaOlder:
		c.wrong(at, e.Error(), "semel migrate")
	default:
		c.wrong(at, e.Error(), e.Hint())
	}
	return nil
}

const insufficientPrivilege = "42501"

// memoryIsLogged looks whether a crash of the server leaves Semel's tables whole.
func (c *check) memoryIsLogged(at string) error {
	unlogged, err := postgres.UnloggedMemory(c.ctx, c.pool, c.file.Database.Schema)
	if err != nil {
		return &StartError{What: "tables", Err: Plain(err)}
	}
	for _, t := range unlogged {
		c.wrong(at, fmt.Sprintf("%s.%s is UNLOGGED: a crash of the server empties it, and what it remembered takes effect again", c.file.Database.Schema, t), "set it LOGGED")
	}
	return nil
}

func lanesOf(rs []config.Route) int {
	n := 0
	for _, r := range rs {
		n += r.From.Concurrency
	}
	return n
}

// route looks at one route: its topics, its table, its consumer's record.
func (c *check) route(r config.Route) error {
	if err := c.topics(r); err != nil {
		return err
	}
	if err := c.group(r); err != nil {
		return err
	}
	if r.Guarantee == config.AtMostOnce {
		c.weak(r.Path+".guarantee", "at-most-once: the place in the log moves before the effect, and what a crash or an outage leaves in between is lost", "effectively-once loses nothing and repeats nothing")
	}
	if r.Guarantee == config.EffectivelyOnce && !r.ID.Position && r.Inbox.Window == 0 {
		c.weak(r.Path+".inbox.window", "0: message IDs are not kept, and what a producer sends again takes effect again, unless the table's own key is the ID", "a window that covers what the topics keep, like 7d")
	}
	if !r.Limit.IsZero() {
		c.weak(r.Path+".limit", fmt.Sprintf("each process takes at most %s, however many wait: the lag grows while more are sent", r.Limit), "leave it out when the backlog is gone")
	}
	c.changeID(r)
	if err := c.formats(r); err != nil {
		return err
	}
	if err := c.table(r); err != nil {
		return err
	}
	return c.record(r)
}

// group looks who else is in it.
func (c *check) group(r config.Route) error {
	g, err := c.admin.Group(c.ctx, r.From.Group)
	if err != nil {
		return &StartError{What: "broker", Err: Plain(err)}
	}
	if len(g.Foreign) > 0 {
		c.wrong(r.Path+".from.group", fmt.Sprintf("group %s has members of other programs (client ID %s): they take partitions away, and their acks halt the route", r.From.Group, strings.Join(g.Foreign, ", ")), "stop them, or another group")
	}
	return nil
}

func (c *check) topics(r config.Route) error {
	partitions := 0
	names, err := c.parts.topics(c.ctx, r)
	if err != nil {
		return &StartError{What: "broker", Err: Plain(err)}
	}
	if len(names) == 0 {
		c.weak(r.Path+".from.topics_matching", "no topic matches yet", "")
	}
	for i, name := range names {
		at := fmt.Sprintf("%s.from.topics[%d]", r.Path, i)
		if r.From.Matching != "" {
			at = r.Path + ".from.topics_matching"
		}
		ts, err := c.admin.Topics(c.ctx, name)
		var unknown *inbox.UnknownTopicError
		switch {
		case errors.As(err, &unknown):
			c.wrong(at, unknown.Error(), c.nearTopic(name))
			continue
		case err != nil:
			return &StartError{What: "broker", Err: Plain(err)}
		}
		t := ts[0]
		partitions += int(t.Partitions)
		if r.From.Matching != "" {
			at += " (" + t.Name + ")"
		}
		if t.ID == (semel.TopicID{}) {
			c.weak(at, "the broker has no topic IDs: a topic that is deleted and made again is not recognised", "")
		}
		if t.Configs["unclean.leader.election.enable"] == "true" {
			c.weak(at, "unclean leader elections are allowed: the broker may lose what it acknowledged", "unclean.leader.election.enable=false")
		}
		switch {
		case t.Replicas == 1:
			c.weak(at, "there is one replica: when its disk is lost, so is what was not read yet", "a replication factor of 3")
		case t.Configs["min.insync.replicas"] == "1":
			c.weak(at, "min.insync.replicas is 1: one broker's disk holds what is acknowledged", "2 with three replicas is usual")
		}
		c.kept(r, at, t)
		c.window(r, t)
	}
	if partitions > 0 && r.From.Concurrency > partitions {
		c.weak(r.Path+".from.concurrency", fmt.Sprintf("%d lanes for %s: the others have nothing to do", r.From.Concurrency, count(partitions, "partition")), "")
	}
	return nil
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// keptLeast is what outages and restores take in the worst of usual cases.
const keptLeast = 24 * time.Hour

// kept looks what the broker removes before it may have been read, or read again.
func (c *check) kept(r config.Route, at string, t kafka.Topic) {
	if t.Configs == nil {
		return
	}
	if kept, err := retentionOf(t.Configs); err == nil && kept >= 0 && kept < keptLeast {
		c.weak(at, fmt.Sprintf("retention.ms keeps messages for %s: an outage or a restore that takes longer loses them", days(kept)), "")
	}
	if strings.Contains(t.Configs["cleanup.policy"], "compact") && (r.To.Write == config.Append || r.To.Write == config.Insert) {
		c.weak(at, fmt.Sprintf("the topic is compacted: of messages of one key that wait, only the last is sure to be read, and write: %s wants each", r.To.Write), "cleanup.policy=delete, or write: upsert")
	}
}

// nearTopic is the hint with the topic that may have been meant.
func (c *check) nearTopic(name string) string {
	ts, err := c.admin.Topics(c.ctx)
	if err != nil {
		return ""
	}
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.Name
	}
	if near := nearest.Name(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "semel send --create makes it"
}

// window says if IDs are remembered for less long than a topic can deliver them
// again.
func (c *check) window(r config.Route, t kafka.Topic) {
	if short := shortWindow(r, t); short != "" {
		c.wrong(r.Path+".inbox.window", short, "a longer window, or a shorter retention.ms of the topic")
	}
}

// table looks at the table, or at those of the topics that are there.
func (c *check) table(r config.Route) error {
	if r.To.Query.SQL != "" {
		return c.query(r)
	}
	names, err := c.parts.topics(c.ctx, r)
	if err != nil {
		return &StartError{What: "broker", Err: Plain(err)}
	}
	if r.To.Template == "" {
		return c.one(planned{r, names})
	}
	for _, topic := range names {
		text, err := r.TableOf(topic)
		if err == nil {
			_, err = sqlname.ParseTable(text)
		}
		if err != nil {
			c.wrong(r.Path+".to.table", fmt.Sprintf("topic %s: %q: %v", topic, text, err), `public."{1}" takes any name`)
		}
	}
	all, err := c.tablesOf(c.ctx, r)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := c.one(t); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) one(r planned) error {
	at := r.Path + ".to"
	made, err := c.made(r)
	if err != nil || made {
		return err
	}
	t, err := c.parts.table(c.ctx, r.Route)
	if err != nil {
		mistakes := tableErrors(err)
		if mistakes == nil {
			return &StartError{What: "database", Err: Plain(err)}
		}
		c.mistakes(r.Route, mistakes, c.planHint(r))
		return nil
	}
	if r.Guarantee == config.EffectivelyOnce && t.Memory() == inbox.MemoryPosition {
		c.weak(r.Path+".id", byPosition, byPositionHint)
	}
	if doubt := t.IDDoubt(); doubt != "" {
		c.weak(r.Path+".id", doubt, "add what differs between two updates of a row, such as its version")
	}
	if r.Guarantee != config.EffectivelyOnce && len(r.To.Combine) > 0 {
		c.weak(r.Path+".guarantee", string(r.Guarantee)+" keeps no message IDs: what a producer sends twice is added twice", "effectively-once, with an ID in a header or fields of the message")
	}
	if err := c.tableFacts(r.Route, at+".table"); err != nil {
		return err
	}
	missing, err := postgres.MissingPrivileges(c.ctx, c.pool, c.file.Database.Schema, postgres.TableName(r.To.Table), postgres.WriteMode(r.To.Write))
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	if len(missing) > 0 {
		c.wrong(at+".table", "this role lacks "+strings.Join(missing, ", "), "GRANT them; semel migrate --print --grant ROLE shows those for Semel's own tables")
	}
	return nil
}

const (
	byPosition     = "by position: what a producer sends twice takes effect twice"
	byPositionHint = "an ID in a header, or fields of the message"
)

// changeID looks whether IDs tell changes of a row apart where each is to take effect by
// itself: with a table that holds states the planner does.
func (c *check) changeID(r config.Route) {
	keyed := r.ID.Key
	for _, p := range r.ID.Fields {
		if p.Root == sink.RootKey {
			keyed = true
		} else if !p.IsFew() {
			return
		}
	}
	if keyed && r.Envelope == config.EnvelopeDebezium && r.To.Write != config.Upsert && r.To.Write != config.Mirror {
		c.weak(r.Path+".id", "the key of a change event is that of its row: later changes of a row are taken for repeats", "add what differs between two changes, such as envelope.position")
	}
}

// mistakes says each at its place. Of what is missing plan says where the SQL is.
func (c *check) mistakes(r config.Route, all []*postgres.TableError, plan string) {
	for _, m := range all {
		path := r.Path + ".to.table"
		if m.Column != "" && r.To.Columns != nil {
			path = r.Path + ".to.columns." + m.Column
		}
		hint := m.Hint
		if m.Missing && plan != "" {
			hint = strings.TrimPrefix(hint+"; "+plan, "; ")
		}
		c.wrong(path, m.Error(), hint)
	}
}

// tableFacts looks whether the rows of a table stay together with their memory.
func (c *check) tableFacts(r config.Route, at string) error {
	f, err := postgres.ReadTableFacts(c.ctx, c.pool, c.file.Database.Schema, postgres.TableName(r.To.Table))
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	if f.Unlogged {
		c.wrong(at, "it, or a partition of it, is UNLOGGED: a crash of the server empties it, and the watermark stays", "set it LOGGED")
	}
	if f.Foreign {
		c.wrong(at, "it, or a partition of it, is a foreign table: its rows aren't committed together with the memory", "a table of this database")
	}
	if len(f.Subscriptions) > 0 {
		c.weak(at, "logical replication writes to it too (subscription "+strings.Join(f.Subscriptions, ", ")+"): its rows come without their memory, and may conflict with those of the route", "")
	}
	if len(f.Publications) > 0 {
		c.weak(at, "publication "+strings.Join(f.Publications, ", ")+" copies it without Semel's tables: a subscriber has rows and no memory of them", "no place to fail over to; physical standbys are")
	}
	return nil
}

// query looks at a route's SQL.
func (c *check) query(r config.Route) error {
	q, err := c.parts.query(c.ctx, r)
	if err != nil {
		mistakes := tableErrors(err)
		if mistakes == nil {
			return &StartError{What: "database", Err: Plain(err)}
		}
		for _, m := range mistakes {
			path := r.Path + ".to.sql"
			if m.Column != "" {
				path = r.Path + ".to.relation." + m.Column
			}
			c.wrong(path, m.Error(), m.Hint)
		}
		return nil
	}
	if r.Guarantee == config.EffectivelyOnce && q.Memory() == inbox.MemoryPosition {
		c.weak(r.Path+".id", byPosition, byPositionHint)
	}
	if r.To.Query.Expect == config.ExpectAny {
		c.weak(r.Path+".to.sql", "expect: any takes every message for applied, though the SQL may leave some out (a join without a match, a conflict)", "expect: each, and RETURNING batch.n")
	}
	missing, err := postgres.MissingPrivileges(c.ctx, c.pool, c.file.Database.Schema, postgres.TableName{Schema: "pg_temp", Name: "batch"}, "")
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	if len(missing) > 0 {
		c.wrong(r.Path+".to.sql", "this role lacks "+strings.Join(missing, ", "), "GRANT them; semel migrate --print --grant ROLE shows those for Semel's own tables")
	}
	return nil
}

// tableErrors takes a joined error apart; nil if it holds anything else.
func tableErrors(err error) []*postgres.TableError {
	list := []error{err}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		list = many.Unwrap()
	}
	var ts []*postgres.TableError
	for _, e := range list {
		var t *postgres.TableError
		if !errors.As(e, &t) {
			return nil
		}
		ts = append(ts, t)
	}
	return ts
}

// record compares the route with what its consumer recorded.
func (c *check) record(r config.Route) error {
	if !c.tables {
		return nil
	}
	was, ok, err := c.consumer(c.ctx, r.Consumer)
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	var halt *inbox.HaltError
	if errors.As(c.renamed(c.ctx, r), &halt) {
		c.wrong(r.Path+".consumer", halt.Why, halt.Hint)
	}
	if !ok || was.Target == "" {
		return nil
	}
	if err := c.inbox(r, was); err != nil {
		return &StartError{What: "tables", Err: Plain(err)}
	}
	topics := recordedTopics(r)
	if now := targetName(r); was.Target != now {
		c.wrong(r.Path+".to", fmt.Sprintf("consumer %s recorded the target %q, and this is %q: the route would halt", r.Consumer, was.Target, now), "another consumer, or run --accept-change")
	}
	if recorded := slices.Sorted(slices.Values(was.Topics)); !slices.Equal(recorded, topics) {
		c.wrong(r.Path+".from.topics", fmt.Sprintf("consumer %s recorded the topics %s: the route would halt", r.Consumer, strings.Join(recorded, ", ")), "another consumer, or run --accept-change")
	}
	return nil
}

// inbox says what the window leaves open.
func (c *check) inbox(r config.Route, was postgres.ConsumerRow) error {
	if was.Window == 0 || was.Since.IsZero() {
		return nil
	}
	if was.Room == 0 {
		c.weak(r.Path+".inbox.window", "all inbox tables are in use, and none of them is past the window: the one that takes new IDs grows beyond its size", "a shorter window, if looking up IDs becomes slow")
	}
	old, err := c.memory.DeadLetters(c.ctx, postgres.DeadFilter{Consumers: []string{r.Consumer}, Before: time.Now().Add(-was.Window), Limit: 1})
	if err != nil || len(old) == 0 {
		return err
	}
	c.weak(r.Path+".inbox.window", fmt.Sprintf("dead letter %d, and maybe older ones, are open for longer than the window (%s): their IDs stay known as long as that, and once one is discarded a repeat of it takes effect",
		old[0].Number, days(was.Window)), "semel dead lists them: redrive or discard")
	return nil
}

// Changed says whether anything differs that a running process has taken up.
func Changed(a, b *config.File) bool {
	return !reflect.DeepEqual(a.Routes, b.Routes) || !reflect.DeepEqual(a.Kafka, b.Kafka) || !reflect.DeepEqual(a.Database, b.Database) || !reflect.DeepEqual(a.Registry, b.Registry) ||
		a.Memory != b.Memory || a.Filters != b.Filters || a.Server != b.Server || a.ShutdownGrace != b.ShutdownGrace
}
