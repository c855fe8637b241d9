package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// DB is what [Status] asks: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Status is the operator's view of Semel's tables: it works while nothing runs,
// and takes no lock that a run waits for.
type Status struct {
	db     DB
	schema schemaName
}

// NewStatus looks at the tables in a schema; "": DefaultSchema.
func NewStatus(db DB, schema string) *Status { return &Status{db: db, schema: nameOf(schema)} }

// ConsumerRow is a registered consumer.
type ConsumerRow struct {
	inbox.Record
	Scope  int32
	Paused bool
	Reason string
	Inbox  int64     // IDs in its inbox, as their tables' sizes say; -1: it has none
	Since  time.Time // what came since is remembered; zero: it has no inbox
	Room   int       // inbox tables that are free
	Dead   int64     // dead letters that are still open
	Made   time.Time
}

// Consumers lists all consumers by name. One that only ever called Admit has a
// name and a scope and nothing more.
func (s *Status) Consumers(ctx context.Context) ([]ConsumerRow, error) {
	return list(ctx, s, `
		SELECT c.name, coalesce(c.cluster_id, ''), c.topics, coalesce(c.id_rule, ''), coalesce(c.target, ''), coalesce(c.memory, ''),
		       coalesce(extract(epoch FROM c.inbox_window), 0)::float8, c.scope, c.desired_state = 'paused', c.reason,
		       coalesce(i.ids, -1), i.since, i.room,
		       (SELECT count(*) FROM semel.dead_letter d WHERE d.consumer = c.name AND d.state IN ('buried', 'redrive')), c.made_at
		FROM semel.consumer c, LATERAL (
		    SELECT sum(coalesce(g.ids, pg_relation_size(g.relation) / 64)) FILTER (WHERE g.number IS NOT NULL)::bigint AS ids,
		           min(g.from_time) AS since, count(*) FILTER (WHERE g.number IS NULL) AS room
		    FROM semel.generation g WHERE g.scope = c.scope) i
		ORDER BY c.name`, nil,
		func(row pgx.CollectableRow) (c ConsumerRow, err error) {
			var window float64
			var since pgtype.Timestamptz
			err = row.Scan(&c.Name, &c.Cluster, &c.Topics, &c.IDRule, &c.Target, &c.Memory, &window, &c.Scope, &c.Paused, &c.Reason,
				&c.Inbox, &since, &c.Room, &c.Dead, &c.Made)
			c.Since = since.Time
			c.Window = time.Duration(window * float64(time.Second))
			return c, err
		})
}

// WatermarkRow is a consumer's place in a partition.
type WatermarkRow struct {
	Consumer string
	inbox.Row
}

// Watermarks lists the places of a consumer, or of all ("").
func (s *Status) Watermarks(ctx context.Context, consumer string) ([]WatermarkRow, error) {
	var out []WatermarkRow
	names := []string{consumer}
	if consumer == "" {
		var err error
		names, err = list(ctx, s, `SELECT DISTINCT consumer FROM semel.watermark ORDER BY consumer`, nil, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
	}
	allRows := statementsOf(s.schema, InboxConfig{}).allRows
	for _, name := range names {
		rows, err := s.db.Query(ctx, allRows, name)
		if err != nil {
			return nil, err
		}
		found, err := collect(rows)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			out = append(out, WatermarkRow{name, r})
		}
	}
	return out, nil
}

// LockWait is a session of a consumer that waits for a lock of somebody else's. It gives
// up after InboxConfig.LockTimeout and comes again, so that nothing else tells who
// holds a lane up.
type LockWait struct {
	PID     int32  `json:"pid"`
	Table   string `json:"table,omitempty"` // whose row or lock it is, if that is known
	Holder  int32  `json:"holder"`          // its session; 0: a prepared transaction
	Program string `json:"program,omitempty"`
	User    string `json:"user,omitempty"`
	// State is that of the holder, and Seconds how old its transaction is; empty and
	// 0 where this role may not see them.
	State   string  `json:"state,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

func (w LockWait) String() string {
	table := ""
	if w.Table != "" {
		table = " on " + w.Table
	}
	if w.Holder == 0 {
		return fmt.Sprintf("waits for a lock%s that a prepared transaction holds (pg_prepared_xacts)", table)
	}
	about := []string{"user " + w.User}
	for _, more := range []string{w.Program, w.State} {
		if more != "" {
			about = append(about, more)
		}
	}
	if w.Seconds > 0 {
		about = append(about, fmt.Sprintf("transaction of %s", time.Duration(w.Seconds*float64(time.Second)).Round(time.Second)))
	}
	return fmt.Sprintf("waits for a lock%s that session %d holds (%s)", table, w.Holder, strings.Join(about, ", "))
}

// LockWaits are those of a consumer's sessions at this moment.
func (s *Status) LockWaits(ctx context.Context, consumer string) ([]LockWait, error) {
	return list(ctx, s, `
		SELECT a.pid, coalesce((SELECT min(l.relation::regclass::text) FROM pg_locks l
		                        WHERE l.pid = a.pid AND (NOT l.granted OR l.locktype = 'tuple') AND l.database = a.datid), ''),
		       h.pid, coalesce(b.application_name, ''), coalesce(b.usename::text, ''), coalesce(b.state, ''),
		       coalesce(extract(epoch FROM clock_timestamp() - b.xact_start), 0)::float8
		FROM pg_stat_activity a CROSS JOIN LATERAL unnest(pg_blocking_pids(a.pid)) AS h(pid) LEFT JOIN pg_stat_activity b ON b.pid = h.pid
		WHERE a.datname = current_database() AND starts_with(a.application_name, $1) AND a.pid <> pg_backend_pid()
		ORDER BY a.pid, h.pid`, []any{nameSessions(consumer)},
		func(row pgx.CollectableRow) (w LockWait, err error) {
			err = row.Scan(&w.PID, &w.Table, &w.Holder, &w.Program, &w.User, &w.State, &w.Seconds)
			return w, err
		})
}

// Identity is the database's.
func (s *Status) Identity(ctx context.Context) (identity string, err error) {
	err = s.db.QueryRow(ctx, s.schema.sql(selectIdentity)).Scan(&identity)
	return identity, err
}

// DeadFilter chooses dead letters; each field narrows it, the zero value takes
// all.
type DeadFilter struct {
	Consumers     []string // nil: of all
	Classes       []inbox.DeadClass
	Numbers       []int64
	Since, Before time.Time // when they were buried
	Closed        bool      // also those that were redriven or discarded
	Marked        bool      // only those that are to be handled again
	Payload       bool      // with key, value and headers
	Limit         int       // newest first; 0: no limit, oldest first
}

// where gives the conditions and their values, from $1 on.
func (f DeadFilter) where() (string, []any) {
	conds, args := []string{"true"}, []any(nil)
	add := func(cond string, arg any) {
		args = append(args, arg)
		conds = append(conds, fmt.Sprintf(cond, len(args)))
	}
	if f.Consumers != nil {
		add("consumer = ANY($%d::text[])", f.Consumers)
	}
	if f.Classes != nil {
		classes := make([]string, len(f.Classes))
		for i, c := range f.Classes {
			classes[i] = string(c)
		}
		add("class = ANY($%d::text[])", classes)
	}
	if f.Numbers != nil {
		add("number = ANY($%d::bigint[])", f.Numbers)
	}
	if !f.Since.IsZero() {
		add("at >= $%d::timestamptz", f.Since)
	}
	if !f.Before.IsZero() {
		add("at < $%d::timestamptz", f.Before)
	}
	if f.Marked {
		conds = append(conds, "state = 'redrive'")
	}
	if !f.Closed {
		conds = append(conds, "state IN ('buried', 'redrive')")
	}
	return strings.Join(conds, " AND "), args
}

// DeadRow is a dead letter as it is kept.
type DeadRow struct {
	Number   int64
	Consumer string
	semel.Message
	MessageID string // as sent
	Class     inbox.DeadClass
	SQLState  string
	Error     string
	Attempts  int
	Buried    time.Time
	State     string // buried, redrive, redriven, discarded
	Outcome   string // what a redrive came to: applied, duplicate, stale, skipped; "" else
	Size      int64  // bytes of key and value
}

// DeadLetters lists dead letters. Without Payload key, value and headers are
// left out.
func (s *Status) DeadLetters(ctx context.Context, f DeadFilter) ([]DeadRow, error) {
	where, args := f.where()
	payload := "NULL::bytea, NULL::bytea, '[]'::jsonb"
	if f.Payload {
		payload = "key, value, headers"
	}
	order := " ORDER BY number"
	if f.Limit > 0 {
		order = fmt.Sprintf(" ORDER BY number DESC LIMIT %d", f.Limit)
	}
	return list(ctx, s, `
		SELECT number, consumer, topic, partition, "offset", message_time, coalesce(message_id, ''), id, class, coalesce(sqlstate, ''),
		       error, attempts, at, state, coalesce(outcome, ''), coalesce(octet_length(key), 0)::bigint + coalesce(octet_length(value), 0), `+payload+`
		FROM semel.dead_letter WHERE `+where+order, args,
		func(row pgx.CollectableRow) (d DeadRow, err error) {
			var at pgtype.Timestamptz
			var id pgtype.UUID
			var headers []byte
			err = row.Scan(&d.Number, &d.Consumer, &d.Topic, &d.Partition, &d.Offset, &at, &d.MessageID, &id, &d.Class, &d.SQLState,
				&d.Error, &d.Attempts, &d.Buried, &d.State, &d.Outcome, &d.Size, &d.Key, &d.Value, &headers)
			if err == nil {
				d.Timestamp, d.ID = at.Time, id.Bytes
				d.Headers, err = headersFrom(headers)
			}
			return d, err
		})
}

// headersFrom reads what headersOf wrote.
func headersFrom(text []byte) ([]semel.Header, error) {
	var kept []struct {
		Name       string
		NameBase64 []byte `json:"name_base64"`
		Value      []byte
	}
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, err
	}
	var hs []semel.Header
	for _, k := range kept {
		if k.NameBase64 != nil {
			k.Name = string(k.NameBase64)
		}
		hs = append(hs, semel.Header{Name: k.Name, Value: k.Value})
	}
	return hs, nil
}

// Redrive marks dead letters that are open, to be handled again by whoever runs
// their consumer, and answers their numbers. Limit and Payload of the filter don't
// count.
func (s *Status) Redrive(ctx context.Context, f DeadFilter) ([]int64, error) {
	f.Closed = false
	where, args := f.where()
	return list(ctx, s, `UPDATE semel.dead_letter SET state = 'redrive' WHERE `+where+` RETURNING number`, args, pgx.RowTo[int64])
}

// PurgeDead removes dead letters of a consumer that were buried before a time, a
// bounded piece at a time; those that are marked to be handled again stay. It says
// how many.
func (s *Status) PurgeDead(ctx context.Context, consumer string, before time.Time) (int64, error) {
	tag, err := s.db.Exec(ctx, s.schema.sql(`
		DELETE FROM semel.dead_letter WHERE number IN (
			SELECT number FROM semel.dead_letter WHERE consumer = $1 AND at < $2 AND state <> 'redrive'
			ORDER BY number LIMIT 1000 FOR UPDATE SKIP LOCKED)`), consumer, before)
	return tag.RowsAffected(), err
}

// Discard closes dead letters that are still open, without an effect, and says
// how many. Limit and Payload of the filter don't count.
func (s *Status) Discard(ctx context.Context, f DeadFilter) (int64, error) {
	f.Closed = false
	where, args := f.where()
	tag, err := s.db.Exec(ctx, s.schema.sql(`UPDATE semel.dead_letter SET state = 'discarded', closed_at = now() WHERE `+where), args...)
	return tag.RowsAffected(), err
}

// UnknownConsumerError says that no consumer has that name.
type UnknownConsumerError struct{ Name string }

func (e *UnknownConsumerError) Error() string { return "no consumer is called " + e.Name }

// SetDesired pauses or resumes a consumer, wherever it runs, and records that as
// an event. Resuming one that has halted because its source's log began anew says
// that the new log is the source from now on: where the old one stood is forgotten.
func (s *Status) SetDesired(ctx context.Context, consumer string, paused bool, reason string) error {
	state, kind := "running", "resumed"
	if paused {
		state, kind = "paused", "paused"
	}
	tag, err := s.db.Exec(ctx, s.schema.sql(`
		WITH c AS (UPDATE semel.consumer SET desired_state = $2, reason = $3 WHERE name = $1 RETURNING name),
		w AS MATERIALIZED (SELECT topic, partition FROM semel.watermark WHERE consumer = $1 AND source IS NOT NULL AND $4::text = 'resumed'
			AND EXISTS (SELECT FROM semel.event WHERE consumer = $1 AND kind = 'halt' AND detail->>'kind' = $5::text
				AND number > coalesce((SELECT max(number) FROM semel.event WHERE consumer = $1 AND kind = 'resumed'), 0))
			ORDER BY topic, partition FOR UPDATE),
		anew AS (UPDATE semel.watermark o SET source = NULL FROM w WHERE o.consumer = $1 AND o.topic = w.topic AND o.partition = w.partition)
		INSERT INTO semel.event (consumer, kind, detail) SELECT name, $4::text, jsonb_build_object('reason', $3::text) FROM c`),
		consumer, state, cleanText(reason, 1000, true), kind, haltSource)
	if err == nil && tag.RowsAffected() == 0 {
		return &UnknownConsumerError{Name: consumer}
	}
	return err
}

// RecordHalt records that a consumer halted before it claimed anything.
func (s *Status) RecordHalt(ctx context.Context, consumer, kind, why string) error {
	_, err := s.db.Exec(ctx, s.schema.sql(`
		INSERT INTO semel.event (consumer, kind, detail) VALUES ($1, 'halt', jsonb_build_object('kind', $2::text, 'why', $3::text))`),
		consumer, kind, cleanText(why, 10_000, true))
	return err
}

// EventFilter chooses events; the zero value takes all.
type EventFilter struct {
	Consumer string
	Kinds    []string
	After    int64 // number: only later ones
	Limit    int   // the newest; 0: all
}

// EventRow is an event as it is kept.
type EventRow struct {
	Number   int64
	At       time.Time
	Consumer string
	inbox.Event
}

// Events lists events, oldest first.
func (s *Status) Events(ctx context.Context, f EventFilter) ([]EventRow, error) {
	var limit *int
	if f.Limit > 0 {
		limit = &f.Limit
	}
	return list(ctx, s, `
		SELECT * FROM (
			SELECT number, at, consumer, coalesce(topic, ''), coalesce(partition, 0), kind, detail
			FROM semel.event
			WHERE ($1::text = '' OR consumer = $1::text) AND ($2::text[] IS NULL OR kind = ANY($2::text[])) AND number > $3
			ORDER BY number DESC LIMIT $4) newest
		ORDER BY number`, []any{f.Consumer, f.Kinds, f.After, limit},
		func(row pgx.CollectableRow) (e EventRow, err error) {
			var detail []byte
			err = row.Scan(&e.Number, &e.At, &e.Consumer, &e.Topic, &e.Partition.Number, &e.Kind, &detail)
			if err == nil {
				err = json.Unmarshal(detail, &e.Detail)
			}
			return e, err
		})
}

func list[T any](ctx context.Context, s *Status, sql string, args []any, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := s.db.Query(ctx, s.schema.sql(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
