package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
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
	memories := map[string]inbox.Memory{}
	if !offline {
		memories, unasked = askTables(ctx, f)
	}
	for _, r := range f.Routes {
		m, asked := memories[r.Name]
		if !asked {
			m = memoryOfFile(r)
		}
		es = append(es, explanation(r, m, asked))
	}
	return es, unasked
}

// askTables asks each route's table what it can remember.
func askTables(ctx context.Context, f *config.File) (map[string]inbox.Memory, error) {
	p, err := prepare(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.reachDatabase(ctx); err != nil {
		return nil, err
	}
	ms := map[string]inbox.Memory{}
	var failed error
	for _, r := range f.Routes {
		t, err := p.table(ctx, r)
		if err != nil {
			failed = err
			continue
		}
		ms[r.Name] = memory(r, t)
	}
	return ms, failed
}

// memoryOfFile is the memory as far as the file decides it.
func memoryOfFile(r config.Route) inbox.Memory {
	if r.Guarantee != config.EffectivelyOnce || r.ID.Position || r.Inbox.Window == 0 {
		return inbox.MemoryPosition
	}
	return inbox.MemoryInbox
}

func explanation(r config.Route, m inbox.Memory, asked bool) Explanation {
	table := r.To.Table.String()
	e := Explanation{Title: fmt.Sprintf("route %s: %s %s into table %s, %s", r.Name, plural("topic", r.From.Topics), strings.Join(r.From.Topics, ", "), table, r.To.Write)}
	say := func(name, format string, args ...any) {
		e.Parts = append(e.Parts, Part{name, fmt.Sprintf(format, args...)})
	}
	window := days(r.Inbox.Window)
	id := idWords(r)

	if r.Guarantee == config.EffectivelyOnce {
		say("guarantee", "effectively once: each message takes effect in %s once. The row, the place in the log and the message ID are committed in one transaction of PostgreSQL, and only then is the broker told.", table)
	} else {
		say("guarantee", "at least once: no message is lost, and what the producer sends twice takes effect twice. The row and the place in the log are committed in one transaction, and only then is the broker told.")
	}
	say("memory", "Watermark: what the broker delivers again (crash, rebalance, rewound offset) lies below it and is dropped. It never expires.")
	switch {
	case m == inbox.MemoryPosition && r.Guarantee == config.EffectivelyOnce:
		say("", "Nothing more: a message that its producer sends again, at another offset, is a new message.")
	case m == inbox.MemoryTarget:
		say("", "The table itself: its unique key is the message ID (%s), so that what a producer sends again meets its own row. It is remembered as long as the row is there.", id)
	case m == inbox.MemoryInbox:
		say("", "Inbox: what a producer sends again is recognised by its message ID (%s) for %s. A repeat that comes later takes effect again.", id, window)
		if !asked && len(r.ID.Fields) > 0 && r.To.Write == config.Insert {
			say("", "If a unique key of the table is exactly that ID, the table remembers instead, as long as the row is there; only the table can say so.")
		}
	}
	if r.Envelope == config.EnvelopeDebezium {
		say("messages", "Change events of Debezium: the row after the change is the value, and a deletion has none. Tombstones after deletes and messages of the source's log are skipped, a truncate is buried.")
		if r.To.Version.IsPosition() {
			say("", "The version is the place in the source's log. Should that log begin anew (a fail-over, a restored source), the route halts.")
		}
	}
	say("path", "%s", pathWords(r, m))
	say("a crash", "before COMMIT: nothing has happened. The messages are read again from the watermark.")
	say("", "COMMIT sent and not answered: it has happened or not. The batch is run again under the same memories, and what had happened is dropped.")
	say("", "after COMMIT, before the broker is told: all has happened. The broker delivers again, and the watermark drops it.")
	say("", "a stopped process that comes back: its claim is older than its successor's, and its transaction is refused.")
	say("a bad one", "%s", errorWords(r))
	say("the edge", "The promise covers rows written in that transaction: %s, and what its triggers write in this database. It does not cover what a trigger does outside, nor the order of messages in different partitions.", table)
	return e
}

// days writes whole days as 7d, where weeks would be written by others.
func days(d time.Duration) string {
	if d > 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return model.Duration(d).String()
}

func plural(what string, of []string) string {
	if len(of) == 1 {
		return what
	}
	return what + "s"
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

// Plan is the SQL that Semel's own tables need; a comment if they need none.
func Plan(ctx context.Context, f *config.File) (string, error) {
	p, err := prepare(f, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	defer p.close()
	if err := p.reachDatabase(ctx); err != nil {
		return "", err
	}
	state, _, err := postgres.SchemaState(ctx, p.pool, f.Database.Schema)
	switch {
	case err != nil:
		return "", &StartError{What: "tables", Err: Plain(err)}
	case state == postgres.SchemaMissing:
		return postgres.MigrationSQL(f.Database.Schema), nil
	}
	return "-- nothing: the tables are " + string(state) + "\n", nil
}
