package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// Explanation is what a route promises, part by part.
type Explanation struct {
	Title string
	Parts []Part
}

// Part is one question and its answer.
type Part struct{ Name, Text string }

// Explain says what the routes promise. The table decides a part of it;
// unasked says why it wasn't asked, if it wasn't.
func Explain(ctx context.Context, f *config.File, offline bool) (es []Explanation, unasked error) {
	var answers map[string]asked
	if !offline {
		answers, unasked = askTables(ctx, f)
	}
	for _, r := range f.Routes {
		es = append(es, explanation(r, answers[r.Name]))
	}
	return es, unasked
}

// asked is what was heard of a route's table.
type asked struct {
	table  *postgres.Table // nil: not asked, or not there yet
	change string          // what semel run would make of it first; "": nothing, or not known
}

// askTables asks each route's table what it can remember, and schemas what the route
// would make of it.
func askTables(ctx context.Context, f *config.File) (map[string]asked, error) {
	p, err := prepare(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.reachDatabase(ctx); err != nil {
		return nil, err
	}
	answers := map[string]asked{}
	var failed error
	for _, r := range f.Routes {
		if r.To.Template != "" || r.To.Query.SQL != "" {
			continue // what many tables are like, no one of them says
		}
		var a asked
		if fits(r) {
			a.change = p.changeOf(ctx, r)
		}
		table, err := p.table(ctx, r)
		switch {
		case err == nil:
			a.table = table
		case !fits(r):
			failed = err
		}
		answers[r.Name] = a
	}
	return answers, failed
}

// changeOf is what the route would make of its table if it began now.
func (p *parts) changeOf(ctx context.Context, r config.Route) string {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	all, err := p.tablesOf(ctx, r)
	if err != nil {
		return "It isn't known now what that is: " + oneLine(err) + "."
	}
	sql, err := p.missing(ctx, all[0])
	create := strings.HasPrefix(sql, "CREATE")
	switch {
	case err != nil:
		return "It isn't known now what that is: " + oneLine(err) + "."
	case sql == "":
		return "Now that is nothing: the table has all that the schemas ask for."
	case create && !r.To.Create, !create && r.To.Evolve != config.EvolveAdd:
		return "Now the route would halt, as it may not do this: " + strings.Join(strings.Fields(sql), " ")
	}
	return "Now that is: " + strings.Join(strings.Fields(sql), " ")
}

// memoryOfFile is the memory as far as the file decides it.
func memoryOfFile(r config.Route) inbox.Memory {
	if r.Guarantee != config.EffectivelyOnce || r.ID.Position || r.Inbox.Window == 0 {
		return inbox.MemoryPosition
	}
	return inbox.MemoryInbox
}

// explanation of a route, by its file and its table.
func explanation(r config.Route, heard asked) Explanation {
	e := explainer{r: r, table: heard.table, memory: memoryOfFile(r), name: r.To.Target()}
	if e.table != nil {
		e.memory = memory(r, e.table)
	}
	e.Title = fmt.Sprintf("route %s: %s into table %s, %s", r.Name, r.From.Words(), e.name, r.To.Write)
	if r.To.Query.SQL != "" {
		e.name = "what the SQL writes"
		e.Title = fmt.Sprintf("route %s: %s into SQL over batches", r.Name, r.From.Words())
	}
	e.guarantee()
	e.remembers()
	e.messages()
	e.rows()
	e.fit(heard.change)
	e.pace()
	e.crash()
	e.afterwards()
	e.say("a bad one", "%s", errorWords(r))
	e.edge()
	return e.Explanation
}

type explainer struct {
	Explanation
	r      config.Route
	table  *postgres.Table
	memory inbox.Memory
	name   string // of the table
}

func (e *explainer) say(name, format string, args ...any) {
	e.Parts = append(e.Parts, Part{name, fmt.Sprintf(format, args...)})
}

func (e *explainer) guarantee() {
	if e.r.Guarantee == config.EffectivelyOnce {
		e.say("guarantee", "effectively once: each message takes effect in %s once. The row, the place in the log and the message ID are committed in one transaction of PostgreSQL, and only then is the broker told.", e.name)
		return
	}
	if e.r.Guarantee == config.AtMostOnce {
		e.say("guarantee", "at most once: no message takes effect twice because of a crash, and each may be lost. The place in the log is moved in a transaction of its own and the broker is told; then the rows are committed in another. What the producer sends twice takes effect twice.")
		return
	}
	e.say("guarantee", "at least once: no message is lost, and what the producer sends twice takes effect twice. The row and the place in the log are committed in one transaction, and only then is the broker told.")
}

// remembers says which memories there are, why those, and for how long.
func (e *explainer) remembers() {
	r, id := e.r, idWords(e.r)
	e.say("memory", "Watermark: what the broker delivers again (crash, rebalance, rewound offset) lies below it and is dropped. It never expires.")
	switch {
	case r.Guarantee != config.EffectivelyOnce:
		e.say("", "Nothing more: %s keeps no message IDs.", r.Guarantee)
		if len(r.To.Combine) > 0 {
			e.say("", "What a producer sends twice is added twice.")
		}
	case r.ID.Position:
		e.say("", "Nothing more, as messages have no ID: one that its producer sends again, at another offset, is a new message.")
	case e.memory == inbox.MemoryPosition:
		e.say("", "Nothing more, as inbox.window is 0: a message that its producer sends again, at another offset, is a new message.")
	case e.memory == inbox.MemoryTarget:
		e.say("", "The table itself: its unique key is the message ID (%s), so that what a producer sends again meets its own row. It is remembered as long as the row is there.", id)
	default:
		why := ""
		if e.table != nil {
			why = " The table can't remember them: " + e.table.MemoryWhy() + "."
		}
		e.say("", "Inbox: what a producer sends again is recognised by its message ID (%s) for %s.%s A repeat that comes later takes effect again.", id, days(r.Inbox.Window), why)
		e.say("", "That time is the log's as well as the clock's: a consumer that stands still, or reads what is old, forgets nothing. IDs go a table at a time, so that most stay up to a third longer; that of a dead letter stays as long as the letter is open.")
		if e.table == nil && len(r.ID.Fields) > 0 && r.To.Write == config.Insert {
			e.say("", "If a unique key of the table is exactly that ID, the table remembers instead, as long as the row is there; only the table can say so.")
		}
	}
	if e.memory == inbox.MemoryPosition {
		return
	}
	if r.OnCollision == config.CollisionDuplicate {
		e.say("", "An ID that comes again with other content is taken for a repeat all the same.")
		return
	}
	then := map[config.OnCollision]string{config.CollisionDeadLetter: "is buried", config.CollisionHalt: "halts the route"}[r.OnCollision]
	e.say("", "An ID that comes again with other content is no repeat: it %s.", then)
}

func (e *explainer) messages() {
	if words := formatWords(e.r); words != "" {
		e.say("format", "%s", words)
	}
	if !e.r.Filter.IsZero() {
		e.say("the filter", "Messages for which %s is false are skipped, and counted. One for which it has no answer is buried. What was written when it was true stays when it no longer is.", e.r.Filter)
		if e.r.Filter.Uses(sink.RootValue) {
			e.say("", "A message without a value passes: it deletes, and what isn't there can be deleted.")
		}
	}
	if e.r.Envelope == config.EnvelopeCloudEvents {
		e.say("messages", "CloudEvents, binary or structured: the data is the value, attributes are the envelope.")
	}
	if e.r.Envelope != config.EnvelopeDebezium {
		return
	}
	e.say("messages", "Change events of Debezium: the row after the change is the value, and a deletion has none. Tombstones after deletes and messages of the source's log are skipped, a truncate is buried.")
	if e.r.To.Version.IsPosition() {
		e.say("", "The version is the place in the source's log. Should that log begin anew (a fail-over, a restored source), the route halts.")
	}
}

func (e *explainer) rows() {
	e.say("path", "%s", pathWords(e.r, e.memory))
	if e.r.To.Template != "" {
		without := " A topic without a table halts the route at its first message."
		if e.r.To.Create {
			without = ""
		}
		e.say("", "A table for each topic, as its name says, all in one transaction.%s", without)
	}
	if e.table != nil {
		e.say("", "Here: %s.", e.table.Path())
	}
	n := e.r.From.Concurrency
	if n == 1 {
		e.say("", "Messages of a partition stay in order. One lane reads all partitions of this process.")
		return
	}
	e.say("", "Messages of a partition stay in order. %d lanes share the partitions of this process.", n)
}

// fit says what the route makes of its table, and change what that is now.
func (e *explainer) fit(change string) {
	if !fits(e.r) {
		return
	}
	from := "the newest schemas in the registry (" + e.subjects() + ")"
	if e.r.Schema.File != "" {
		from = "the schema in " + e.r.Schema.File
	}
	if e.r.Schema.Reader != "" {
		from = "the schema in " + e.r.Schema.Reader + ", as which all is read"
	}
	if schemaInside(e.r) {
		from = "the schema that the newest change event of its topic brings"
	}
	when := "when the route begins"
	if e.r.To.Template != "" {
		when += ", or its topic appears"
	}
	var does []string
	if e.r.To.Create {
		does = append(does, "A table that isn't there is made "+when+", by "+from+".")
		from = "such schemas"
	}
	if e.r.To.Evolve == config.EvolveAdd {
		does = append(does, "For each field of "+from+" that has no column one is added, also while the route runs, before the first message of that schema is written.")
	}
	e.say("the table", "%s In a transaction of its own, before that of the rows: a crash in between leaves the table as it is to be, and no row. Nothing is dropped or retyped: what a column can't hold exactly halts the route.", strings.Join(does, " "))
	if change != "" {
		e.say("", "%s", change)
	}
}

// subjects are what the registry is asked for.
func (e *explainer) subjects() string {
	topics := e.r.From.Topics
	if e.r.From.Matching != "" {
		topics = []string{"TOPIC"}
	}
	var names []string
	for _, t := range topics {
		name := e.r.ValueSubject(t)
		if e.r.From.Matching != "" && e.r.Schema.Subject != "" {
			name = e.r.Schema.Subject
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// pace is how fast a route may be.
func (e *explainer) pace() {
	per := map[time.Duration]string{time.Second: "a second", time.Minute: "a minute"}
	if l := e.r.Limit; !l.IsZero() {
		e.say("the limit", "This process takes at most %d messages %s from its topics, all lanes together; each further process takes as many. Who waits has no transaction open.", l.Messages, per[l.Per])
	}
}

// crash goes through a batch, step by step.
func (e *explainer) crash() {
	if e.r.Guarantee == config.AtMostOnce {
		e.crashAtMostOnce()
		return
	}
	e.say("a crash", "1. after reading, before BEGIN: nothing has happened. The messages are read again from the watermark.")
	e.say("", "2. after BEGIN, where the claim is compared and the row of the watermark is locked: nothing has happened, and the lock ends with the session.")
	switch e.memory {
	case inbox.MemoryInbox:
		e.say("", "3. after IDs and rows are written, before COMMIT: all of it is rolled back, the IDs are unknown again.")
	default:
		e.say("", "3. after rows are written, before COMMIT: all of it is rolled back.")
	}
	e.say("", "4. COMMIT sent and not answered: it has happened or not. COMMIT isn't sent again; the watermark says which, and the batch is read from there.")
	e.say("", "5. after COMMIT, before the broker is told: all has happened. The broker delivers again, and the watermark drops it.")
	e.say("", "6. after the broker is told: nothing is left to do.")
	e.say("", "The next process on the same host makes the dead one leave the group first; on another host its session has to end (%s).", e.session())
}

func (e *explainer) session() string {
	if e.r.From.GroupProtocol == config.GroupConsumer {
		return "the broker says when, 45s by default"
	}
	return days(e.r.From.SessionTimeout)
}

func (e *explainer) crashAtMostOnce() {
	e.say("a crash", "1. after reading, before the place is moved: nothing has happened. The messages are read again from the watermark.")
	e.say("", "2. after the place was moved, before the COMMIT of the rows: the messages are lost. They count as lost in the accounts, and whoever claims the partition next records the event lost, with their offsets.")
	e.say("", "3. COMMIT of the rows sent and not answered: it has happened or not. It isn't sent again; the row says which, and what isn't in is lost.")
	e.say("", "4. after COMMIT: all has happened.")
	e.say("", "An outage of the database, and a halt, in the middle of a batch lose the rest of that batch in the same way. semel reset reads a lost stretch again, if that is wanted.")
}

// afterwards is what else can go wrong than a crash.
func (e *explainer) afterwards() {
	e.say("besides", "A stopped process that comes back: its claim is older than its successor's, and its transaction is refused.")
	e.say("", "A database that goes back in time (fail-over to a lagging standby, restore): rows, memory and watermark go back together; the route notices and reads again, as long as the broker has the messages.")
	e.say("", "A group offset that somebody moves: nothing, the watermark counts. One that another consumer commits: the route halts.")
	gap := "this is recorded, counted as lost, and the route goes on"
	if e.r.OnGap == config.GapHalt {
		gap = "the route halts"
	}
	e.say("", "Retention that takes messages before they were read: %s.", gap)
	cut := "a log that is cut from the cut"
	if e.r.OnGap == config.GapHalt {
		cut = "a log that is cut halts the route"
	}
	switch {
	case e.memory == inbox.MemoryPosition:
		e.say("", "A topic that is made anew, or a log that is cut: the route halts, for nothing tells old messages from new ones.")
	case e.memory == inbox.MemoryTarget:
		e.say("", "A topic that is made anew is read from its beginning, %s: the rows tell what was there.", cut)
	default:
		e.say("", "A topic that is made anew is read from its beginning (if the window covers its retention, else the route halts), %s: the IDs tell what was there.", cut)
	}
}

func (e *explainer) edge() {
	e.say("the edge", "The promise covers rows written in that transaction: %s, and what its triggers write in this database. It ends there: not covered are what a trigger does outside, the order of messages in different partitions, and a database that is restored table by table.", e.name)
	switch {
	case e.memory == inbox.MemoryInbox:
		e.say("", "Nor a repeat by the producer after %s: semel check compares that with how long the topics keep messages.", days(e.r.Inbox.Window))
	case e.memory == inbox.MemoryTarget:
		e.say("", "Nor a repeat of a message whose row was deleted.")
	}
}

// days writes whole days as 7d, where weeks would be written by others.
func days(d time.Duration) string {
	if d > 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return model.Duration(d).String()
}

func idWords(r config.Route) string {
	switch {
	case r.ID.Header != "":
		return "header " + r.ID.Header
	case r.ID.Key:
		return "the record's key"
	case len(r.ID.Fields) > 0:
		var fs []string
		for _, f := range r.ID.Fields {
			fs = append(fs, f.String())
		}
		return strings.Join(fs, ", ")
	}
	return "its position"
}

func pathWords(r config.Route, m inbox.Memory) string {
	batch := fmt.Sprintf("up to %d messages a transaction: ", r.Batch.Messages)
	switch {
	case r.To.Query.SQL != "" && r.To.Query.Expect == config.ExpectEach:
		return batch + "they are copied into a temporary table named batch, then the SQL is run once. What it returns as n took effect; a message that it doesn't name is buried."
	case r.To.Query.SQL != "":
		return batch + "they are copied into a temporary table named batch, then the SQL is run once. Every message counts as applied, whatever the SQL does with it. What it makes of a batch may depend on where batches end, unless it is written so that it doesn't."
	case len(r.To.Combine) > 0:
		return batch + "existing rows are locked in key order; " + strings.Join(r.To.Combine, ", ") + " of a message is added to what is stored, what else it has replaces it. A key without a row begins at zero."
	case r.To.Absent == config.AbsentKeep:
		return batch + "existing rows are locked in key order; what a message has is set, the rest stays. " + deleteWords(r) + "The last one that arrives wins; that is the last one sent only if a key stays in one partition."
	case r.To.Write == config.Mirror && !r.To.Version.IsZero():
		return batch + "the greatest version of each key, in key order; applied where the stored version (" + r.To.Version.String() + ") is smaller. " + deleteWords(r)
	case r.To.Write == config.Mirror:
		return batch + "the last state of each key in the batch, in key order. " + deleteWords(r) + "Without a version the last one that arrives wins; that is the last one sent only if a key stays in one partition."
	case r.To.Write == config.Upsert && !r.To.Version.IsZero():
		return batch + "the greatest version of each key in the batch, in key order; applied where the stored version (" + r.To.Version.String() + ") is smaller."
	case r.To.Write == config.Upsert:
		return batch + "the last state of each key in the batch, in key order. Without a version the last one that arrives wins; that is the last one sent only if a key stays in one partition."
	case m == inbox.MemoryTarget:
		return batch + "known IDs are asked for in the table, the rest is copied into it."
	case m == inbox.MemoryInbox:
		return batch + "IDs into the inbox, the rows of fresh ones into the table."
	}
	return batch + "rows are copied straight into the table."
}

// deleteWords says what a message without a value does; with a space, or nothing.
func deleteWords(r config.Route) string {
	switch {
	case r.To.Tombstone != config.TombstoneDelete:
		return ""
	case r.To.Deleted == "":
		return "A message without a value deletes the row. "
	case r.Inbox.Window > 0:
		return fmt.Sprintf("A message without a value marks the row as deleted in %s, where it stays for %s, so that no older message brings it back. ", r.To.Deleted, days(r.Inbox.Window))
	}
	return fmt.Sprintf("A message without a value marks the row as deleted in %s, where it stays. ", r.To.Deleted)
}

func errorWords(r config.Route) string {
	e := r.OnError
	if e.Then == config.ThenHalt {
		return "the route halts at a message that can't be read or that the database refuses; nothing is buried."
	}
	s := fmt.Sprintf("a message that can't be read or that the database refuses after %s is buried as a dead letter, with its bytes and the reason; the rest of the batch is kept.", count(max(1, e.Attempts), "attempt"))
	var limits []string
	if e.InARow > 0 {
		limits = append(limits, fmt.Sprintf("more than %d in a row", e.InARow))
	}
	if e.Share > 0 {
		limits = append(limits, fmt.Sprintf("more than %g%% of the last 1,000", e.Share*100))
	}
	if len(limits) > 0 {
		s += " The route halts at " + strings.Join(limits, " or at ") + "."
	}
	return s + " An outage buries nothing: it is waited out."
}
