package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

var (
	_ inbox.Store[pgx.Tx] = (*InboxStore)(nil)
	_ inbox.Tx[pgx.Tx]    = (*inboxTx)(nil)

	_ inbox.Chainer[pgx.Tx] = (*inboxTx)(nil)
)

// InboxConfig is how an [InboxStore] behaves; the zero value is good.
//
// Behind a pooler in transaction mode that doesn't track prepared statements,
// make the pool with default_query_exec_mode=exec in its URL; otherwise
// statements fail with 26000 or 42P05, which counts as an outage.
type InboxConfig struct {
	// Schema of Semel's tables; "": DefaultSchema.
	Schema string
	// LockTimeout is how long a statement waits for a row that another session
	// holds: until a claim ends a zombie, a batch gives way. 0: 2 s.
	LockTimeout time.Duration
	// StatementTimeout ends a statement that runs longer. Too short, and honest
	// batches fail again and again. 0: the server's setting stands.
	StatementTimeout time.Duration
	// IdleTimeout ends a session that holds a transaction open without sending
	// anything, such as that of a stopped process. It must be longer than a
	// handler thinks between two statements. 0: 1 minute.
	IdleTimeout time.Duration
	// SynchronousCommit sets synchronous_commit to on or off. Off: what a server
	// crash forgets is read again from the broker. nil: the server's setting stands.
	SynchronousCommit *bool
	// Table is what the consumer writes to, if it is one: its questions go with BEGIN,
	// which saves their round trip.
	Table *Table
	// Tables are what it writes to, if they depend on the topic. Of these, and of
	// Table, rows that are marked as deleted are removed after the window.
	Tables *Tables
	// Rings is what the lanes of a process share of their consumers' inboxes. nil: a
	// store has its own.
	Rings *Rings
	// Logger gets one line for each session that a claim ends. nil: slog.Default.
	Logger *slog.Logger
}

// InboxStore is one lane's memory: it holds one connection of the pool as long
// as that is healthy, and throws it away when it isn't. One goroutine at a time,
// except for what takes a consumer (Admit, AdmitBatch, Remember, ForgetOlder).
type InboxStore struct {
	pool   *pgxpool.Pool
	cfg    InboxConfig
	schema schemaName
	sql    statements

	held *pgxpool.Conn

	consumer inbox.Record
	scope    int32
	version  int64                      // of the list of inbox tables, as it was read last
	who      string                     // application_name up to the token
	places   map[semel.Partition]string // where the last update put the row: its ctid
	raced    int                        // batches to go in which admissions expect a race
	replan   *pgconn.PgError            // the changed plan since the last commit
	looks    looks
	rings    *Rings
	purged   time.Time
	buf      []byte // of the COPY into the inbox
}

// NewInboxStore makes a store; it connects when it is used. For servers that may speak
// another language than English, give the pool's configuration [CloseOnFatal].
func NewInboxStore(pool *pgxpool.Pool, cfg InboxConfig) *InboxStore {
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = 2 * time.Second
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	n := nameOf(cfg.Schema)
	s := &InboxStore{
		pool: pool, cfg: cfg, schema: n, sql: statementsOf(n, cfg), rings: cfg.Rings,
		places: map[semel.Partition]string{},
	}
	if s.rings == nil {
		s.rings = NewRings(pool, RingsConfig{Schema: cfg.Schema, Logger: cfg.Logger})
	}
	return s
}

// Columns of a watermark that are written together, in the order of written.
var writtenColumns = func() []string {
	c := []string{
		"topic_id", "start_offset", "adopted_offset", "next_offset", "generation", "claim_token", "owner",
		"unclean_claims", "trial", "epochs", "settled", "settled_sum",
	}
	for _, o := range inbox.Outcomes {
		c = append(c, o.String(), o.String()+"_sum")
	}
	return append(c, "holes", "lost", "redriven", "ahead")
}()

// written are the values of a row in the order of writtenColumns.
func written(r inbox.Row) []any {
	v := []any{
		uuidOf(r.TopicID), r.Start,
		pgtype.Int8{Int64: r.Adopted, Valid: r.Adopted >= 0},
		r.Next, r.Generation,
		uuidOf(r.Token), jsonOf(r.Owner), int32(r.UncleanClaims), jsonOf(r.Trial), jsonOf(r.Epochs),
	}
	v = append(v, r.Accounts.Settled.Count, int64(r.Accounts.Settled.Sum))
	for _, t := range r.Accounts.Outcome {
		v = append(v, t.Count, int64(t.Sum))
	}
	return append(v, r.Accounts.Holes, r.Accounts.Lost, r.Accounts.Redriven, jsonOf(r.Ahead))
}

// jsonOf is JSON as text, nil for nil. Text, because a pool may not describe
// statements and would then send bytes as bytea.
func jsonOf(v any) any {
	switch v := v.(type) {
	case *inbox.Owner:
		if v == nil {
			return nil
		}
	case *inbox.Trial:
		if v == nil {
			return nil
		}
	case *inbox.Ahead:
		if v == nil {
			return nil
		}
	case []inbox.Epoch:
		if v == nil {
			return "[]"
		}
	}
	return string(marshal(v))
}

// marshal writes JSON that jsonb takes: it has no NUL.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		b, _ = json.Marshal(map[string]string{"unreadable": err.Error()})
	}
	return bytes.ReplaceAll(b, []byte(`\u0000`), []byte(`\ufffd`))
}

func uuidOf[T ~[16]byte](id T) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != T{}} }

// placed is a row and where it lies now.
type placed struct {
	inbox.Row
	source *sourcePlace // nil: nothing is known of a source
	ctid   string
}

func scanPlaced(row pgx.CollectableRow) (p placed, err error) {
	var topic, token pgtype.UUID
	var adopted pgtype.Int8
	var record pgtype.Timestamptz
	var owner, trial, epochs, ahead, source []byte
	var unclean int32
	var sums [len(inbox.Outcomes) + 1]int64
	r := &p.Row
	to := []any{
		&r.Topic, &r.Partition.Number, &topic, &r.Start, &adopted, &r.Next, &r.Generation, &token, &owner, &unclean,
		&trial, &epochs, &r.Accounts.Settled.Count, &sums[len(inbox.Outcomes)],
	}
	for i := range r.Accounts.Outcome {
		to = append(to, &r.Accounts.Outcome[i].Count, &sums[i])
	}
	to = append(to, &r.Accounts.Holes, &r.Accounts.Lost, &r.Accounts.Redriven, &ahead, &r.Updated, &record, &source, &p.ctid)
	if err := row.Scan(to...); err != nil {
		return placed{}, err
	}
	r.TopicID, r.Token, r.RecordTime = topic.Bytes, token.Bytes, record.Time
	r.Adopted = -1
	if adopted.Valid {
		r.Adopted = adopted.Int64
	}
	r.UncleanClaims = int(unclean)
	r.Accounts.Settled.Sum = uint64(sums[len(inbox.Outcomes)])
	for i := range r.Accounts.Outcome {
		r.Accounts.Outcome[i].Sum = uint64(sums[i])
	}
	if owner != nil {
		r.Owner = new(inbox.Owner)
		if err := json.Unmarshal(owner, r.Owner); err != nil {
			return placed{}, fmt.Errorf("owner of %s: %w", r.Partition, err)
		}
	}
	if trial != nil {
		r.Trial = new(inbox.Trial)
		if err := json.Unmarshal(trial, r.Trial); err != nil {
			return placed{}, fmt.Errorf("trial of %s: %w", r.Partition, err)
		}
	}
	if ahead != nil {
		r.Ahead = new(inbox.Ahead)
		if err := json.Unmarshal(ahead, r.Ahead); err != nil {
			return placed{}, fmt.Errorf("ahead of %s: %w", r.Partition, err)
		}
	}
	if err := json.Unmarshal(epochs, &r.Epochs); err != nil {
		return placed{}, fmt.Errorf("epochs of %s: %w", r.Partition, err)
	}
	if len(r.Epochs) == 0 {
		r.Epochs = nil
	}
	if p.source, err = scanSource(source, r.Next); err != nil {
		return placed{}, fmt.Errorf("source of %s: %w", r.Partition, err)
	}
	return p, nil
}

// statements are the texts that run often, rendered once.
type statements struct {
	settings, state, event, scope      string
	rowsOfTopic, rowsOf, allRows       string
	rowsAt, rowsFar, lockRows, lockRow string
	lockAll                            string
	settleRow, settleFar               string
	insertRow, claimRow, release       string
	holdRing, listRing                 string
	endBlocker                         string
}

func statementsOf(n schemaName, cfg InboxConfig) statements {
	set := func(name, value string) string {
		return fmt.Sprintf(", set_config('%s', '%s', true)", name, value)
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%dms", max(d.Milliseconds(), 1)) }
	settings := "SELECT now(), set_config('application_name', $1, true)" +
		set("lock_timeout", ms(cfg.LockTimeout)) +
		set("idle_in_transaction_session_timeout", ms(cfg.IdleTimeout)) +
		set("jit", "off") +
		set("array_nulls", "on") + // else NULL in an array is the text NULL
		set("client_encoding", "UTF8") // else that of the database, which may be another
	if cfg.StatementTimeout > 0 {
		settings += set("statement_timeout", ms(cfg.StatementTimeout))
	}
	if c := cfg.SynchronousCommit; c != nil {
		settings += set("synchronous_commit", map[bool]string{true: "on", false: "off"}[*c])
	}

	read := "SELECT w.topic, w.partition, w." + strings.Join(writtenColumns, ", w.") + ", w.updated_at, w.record_time, w.source, w.ctid::text FROM semel.watermark w "
	const among = "JOIN unnest($2::text[], $3::integer[]) k(topic, partition) ON w.topic = k.topic AND w.partition = k.partition "
	const order = " ORDER BY w.topic, w.partition"

	// written columns as $4, $5, …, after consumer, topic and partition.
	values, sets := make([]string, len(writtenColumns)), make([]string, len(writtenColumns))
	for i, c := range writtenColumns {
		values[i] = fmt.Sprintf("$%d", i+4)
		if c == "owner" || c == "trial" || c == "epochs" || c == "ahead" {
			values[i] += "::text::jsonb"
		}
		sets[i] = c + " = " + values[i]
	}
	key := func(alias string) string {
		return strings.ReplaceAll(" WHERE @consumer = $1 AND @topic = $2 AND @partition = $3", "@", alias)
	}
	write := func(of func(i int, column string) string) string {
		var s []string
		for i, c := range []string{"next_offset", "unclean_claims", "epochs", "settled", "settled_sum"} {
			s = append(s, of(i, c))
		}
		i := len(s)
		for _, o := range inbox.Outcomes {
			s = append(s, of(i, o.String()), of(i+1, o.String()+"_sum"))
			i += 2
		}
		for _, c := range []string{"holes", "lost", "redriven", "ahead"} {
			s = append(s, of(i, c))
			i++
		}
		return strings.Join(s, ", ")
	}
	settle := write(func(i int, c string) string {
		if c == "epochs" || c == "ahead" {
			return fmt.Sprintf("%s = $%d::text::jsonb", c, i+5)
		}
		return fmt.Sprintf("%s = $%d", c, i+5)
	})

	now := 5 + len(settledValues(placed{}))

	st := statements{
		settings:    settings,
		rowsOfTopic: read + "WHERE w.consumer = $1 AND w.topic = $2" + order,
		allRows:     read + "WHERE w.consumer = $1" + order,
		rowsOf:      read + among + "WHERE w.consumer = $1" + order,
		// Locks in one order: two lanes that both believe in the same partitions
		// wait for one another, never in a circle.
		lockRows: read + among + "WHERE w.consumer = $1" + order + " FOR UPDATE OF w",
		// Where the last update put them: no walk over the versions that a long
		// snapshot keeps. What lies there is compared like anything else.
		rowsAt:  read + "WHERE w.ctid = ANY($2::text[]::tid[]) AND w.consumer = $1" + order + " FOR UPDATE OF w",
		lockRow: read + key("w.") + " FOR UPDATE OF w",
		lockAll: read + "WHERE w.consumer = $1" + order + " FOR UPDATE OF w",
		insertRow: "INSERT INTO semel.watermark (consumer, topic, partition, " + strings.Join(writtenColumns, ", ") +
			") VALUES ($1, $2, $3, " + strings.Join(values, ", ") + ") RETURNING updated_at",
		claimRow: "UPDATE semel.watermark SET updated_at = clock_timestamp(), " + strings.Join(sets, ", ") + key("") +
			" RETURNING updated_at, ctid::text",
		// The row is locked and was compared, so it still lies there and is written;
		// were it not, the division would fail and COMMIT, which follows in the same
		// pipeline, would not be executed. The transaction's time shows that it is
		// still the one that locked: a handler's SQL may have ended that, and its
		// effects with it.
		settleRow: "WITH done AS (UPDATE semel.watermark SET updated_at = clock_timestamp(), " + settle +
			fmt.Sprintf(", source = $%d::text::jsonb, record_time = coalesce($%d, record_time)", now-1, now+1) + key("") +
			fmt.Sprintf(" AND ctid = $4::text::tid AND now() = $%d::timestamptz RETURNING ctid::text AS place)", now) +
			" SELECT (SELECT place FROM done), 1 / (SELECT count(*) FROM done)",
		// After lock_timeout nobody waits any more, so pg_blocking_pids would say
		// nothing; the row's xmax is the transaction that holds it. Unless that
		// advanced under a savepoint: xmax is a multixact then, which SQL can't take
		// apart, and the session in a transaction that is named after a token of the
		// row's owner is the one.
		endBlocker: "SELECT a.pid, a.application_name, pg_terminate_backend(a.pid, 1000) FROM semel.watermark w JOIN pg_stat_activity a" +
			" ON a.pid IN (SELECT l.pid FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid = w.xmax)" +
			" OR a.backend_xid IS NOT NULL AND a.application_name IN (SELECT $4 || o.claim_token::text FROM semel.watermark o" +
			" WHERE o.consumer = w.consumer AND o.owner - 'at' = w.owner - 'at')" + key("w.") +
			" AND a.pid <> pg_backend_pid() AND starts_with(a.application_name, $4) AND a.application_name <> $4 || '" + claiming + "'",
		release: "UPDATE semel.watermark SET owner = NULL, unclean_claims = 0, trial = NULL" + key("") + " AND claim_token = $4",
		event: "INSERT INTO semel.event (consumer, topic, partition, kind, detail)" +
			" VALUES ($1, nullif($2::text, ''), CASE WHEN $2::text <> '' THEN $3::integer END, $4, $5::text::jsonb)",
		state: "SELECT desired_state = 'paused', reason," +
			" EXISTS (SELECT FROM semel.dead_letter WHERE consumer = $1 AND state = 'redrive') FROM semel.consumer WHERE name = $1",
		scope:    "SELECT scope FROM semel.consumer WHERE name = $1",
		holdRing: holdRing,
		listRing: listRing,
	}
	for _, s := range []*string{
		&st.rowsOfTopic, &st.rowsOf, &st.allRows, &st.rowsAt, &st.lockRows, &st.lockRow, &st.lockAll, &st.insertRow,
		&st.claimRow, &st.settleRow, &st.endBlocker, &st.release, &st.event, &st.state, &st.scope, &st.holdRing, &st.listRing,
	} {
		*s = n.sql(*s)
	}
	st.rowsFar, st.settleFar = st.rowsAt+" -- far", st.settleRow+" -- far"
	return st
}

// far says whether a row lies so far back (page 100 and more) that its table has
// grown, as it does under a long snapshot. Statements that find rows by place
// have a second text for it: a plan that was kept from when the table was one
// page reads all of the table, a plan made now goes to the place.
func far(ctid string) bool { return strings.IndexByte(ctid, ',') > len("(99") }

// settledValues are the values of settleRow from $5 on.
func settledValues(r placed) []any {
	v := []any{r.Next, int32(r.UncleanClaims), jsonOf(r.Epochs), r.Accounts.Settled.Count, int64(r.Accounts.Settled.Sum)}
	for _, t := range r.Accounts.Outcome {
		v = append(v, t.Count, int64(t.Sum))
	}
	return append(v, r.Accounts.Holes, r.Accounts.Lost, r.Accounts.Redriven, jsonOf(r.Ahead), r.source.json())
}

// claiming stands in application_name in place of a token while a claim is made.
const claiming = "claim"

// nameSessions gives the part of application_name (63 bytes) before the token
// (36): semel/<consumer>/. Long names end in a hash, so that two of them differ.
func nameSessions(consumer string) string {
	plain := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '/' {
			return '_'
		}
		return r
	}, consumer)
	if len(plain) > 20 || plain != consumer {
		sum := sha256.Sum256([]byte(consumer))
		plain = plain[:min(len(plain), 11)] + "~" + hex.EncodeToString(sum[:4])
	}
	return "semel/" + plain + "/"
}

// connection is the lane's own, a new one if the last has broken.
func (s *InboxStore) connection(ctx context.Context) (*pgx.Conn, error) {
	if s.consumer.Name == "" {
		panic("postgres: InboxStore is used before Open, or for a consumer without a name")
	}
	if s.held != nil {
		c := s.held.Conn()
		if !c.IsClosed() && !c.PgConn().IsBusy() && c.PgConn().TxStatus() == 'I' {
			return c, nil
		}
		s.discard()
	}
	held, err := s.pool.Acquire(ctx)
	if err != nil {
		if st := s.pool.Stat(); st.AcquiredConns() >= st.MaxConns() {
			err = fmt.Errorf("all %d connections of the pool are in use: %w", st.MaxConns(), err)
		}
		return nil, err
	}
	s.held = held
	return held.Conn(), nil
}

// discard throws the connection away.
func (s *InboxStore) discard() {
	if s.held == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.held.Conn().Close(ctx)
	s.held.Release()
	s.held = nil
}

// spent looks at an error: after an outage the connection is not used again, as
// it may lead to a demoted server.
func (s *InboxStore) spent(err error) {
	if err == nil {
		return
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && classOf(pg) == inbox.ClassOutage {
		s.discard()
	}
}

// Close frees the connection.
func (s *InboxStore) Close() {
	if s.cfg.Rings == nil {
		s.rings.Close()
	}
	if s.held != nil {
		s.held.Release() // destroyed by the pool if it is in a transaction
		s.held = nil
	}
}

// begin opens a transaction with its settings, and more, in one round trip.
func (s *InboxStore) begin(ctx context.Context, token string, more func(*pgx.Batch)) (tx pgx.Tx, now time.Time, err error) {
	c, err := s.connection(ctx)
	if err != nil {
		return nil, now, err
	}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	s.queueSettings(&b, token, &now)
	if more != nil {
		more(&b)
	}
	br := c.SendBatch(ctx, &b)
	tx = br.Tx()
	if err := br.Close(); err != nil {
		s.rollback(tx)
		s.spent(err)
		return nil, now, err
	}
	return tx, now, nil
}

// queueSettings makes the transaction's settings, which end with it, and asks for
// its time.
func (s *InboxStore) queueSettings(b *pgx.Batch, token string, now *time.Time) {
	var ignored string
	b.Queue(s.sql.settings, s.who+token).Query(func(rows pgx.Rows) error {
		if err := rows.Err(); err != nil { // the session ended: there is no result to ask
			return err
		}
		to := []any{now}
		for range rows.FieldDescriptions()[1:] {
			to = append(to, &ignored)
		}
		_, err := pgx.ForEachRow(rows, to, func() error { return nil })
		return err
	})
}

// rollback ends a transaction on whatever connection is left of it.
func (s *InboxStore) rollback(tx pgx.Tx) {
	if s.held == nil || tx == nil {
		return
	}
	c := s.held.Conn()
	if c.IsClosed() || c.PgConn().IsBusy() {
		s.discard()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		s.discard()
	}
}

// short runs a transaction of the store's own. An error of its COMMIT is the
// caller's to try again: each of them may run twice.
func (s *InboxStore) short(ctx context.Context, more func(*pgx.Batch), do func(pgx.Tx) error) error {
	tx, _, err := s.begin(ctx, claiming, more)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		s.rollback(tx)
		s.spent(err)
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		s.rollback(tx)
		s.spent(err)
		return err
	}
	return nil
}

// Open records the consumer or compares it with what is recorded, and makes its
// inbox. A role that may not is told which command does it.
func (s *InboxStore) Open(ctx context.Context, c inbox.Record) (reg inbox.Registration, err error) {
	s.consumer, s.who = c, nameSessions(c.Name)
	conn, err := s.connection(ctx)
	if err != nil {
		return reg, err
	}
	state, version, err := SchemaState(ctx, conn, string(s.schema))
	if err == nil && state != SchemaCurrent {
		err = &SchemaError{Schema: string(s.schema), State: state, Version: version}
	}
	if err == nil {
		err = s.short(ctx, nil, func(tx pgx.Tx) error {
			reg, err = s.register(ctx, tx, c)
			return err
		})
	}
	return reg, err
}

func (s *InboxStore) register(ctx context.Context, tx pgx.Tx, c inbox.Record) (reg inbox.Registration, err error) {
	_, err = tx.Exec(ctx, s.schema.sql(`SELECT pg_advisory_xact_lock(hashtextextended('semel' || ' consumer ' || $1::text, 0))`), c.Name)
	if err != nil {
		return reg, err
	}
	topics := slices.Sorted(slices.Values(c.Topics))
	_, err = tx.Exec(ctx, s.schema.sql(`INSERT INTO semel.consumer (name) VALUES ($1) ON CONFLICT DO NOTHING`), c.Name)
	if err != nil {
		return reg, err
	}
	var cluster, rule, target, memory *string
	var recorded []string
	err = tx.QueryRow(ctx, s.schema.sql(`
		SELECT scope, cluster_id, topics, id_rule, target, memory, desired_state = 'paused', reason,
		       (SELECT identity::text FROM semel.database)
		FROM semel.consumer WHERE name = $1 FOR UPDATE`), c.Name).
		Scan(&reg.Scope, &cluster, &recorded, &rule, &target, &memory, &reg.Paused, &reg.Reason, &reg.Database)
	if err != nil {
		return reg, err
	}
	var changes []inbox.Change
	compare := func(field string, was *string, is string) {
		if was != nil && *was != is {
			changes = append(changes, inbox.Change{Field: field, Recorded: *was, Now: is})
		}
	}
	if c.Cluster != "" { // a broker without a name says nothing about a change
		compare("cluster", cluster, c.Cluster)
	} else if cluster != nil {
		c.Cluster = *cluster
	}
	if recorded != nil {
		was := strings.Join(recorded, ",")
		compare("topics", &was, strings.Join(topics, ","))
	}
	compare("id", rule, c.IDRule)
	compare("target", target, c.Target)
	compare("memory", memory, string(c.Memory))
	if len(changes) > 0 && !c.AcceptChange {
		return reg, &inbox.ChangedError{Consumer: c.Name, Changes: changes}
	}
	_, err = tx.Exec(ctx, s.schema.sql(`
		UPDATE semel.consumer SET cluster_id = nullif($2::text, ''), topics = $3, id_rule = $4, target = $5, memory = $6,
		       inbox_window = make_interval(secs => $7::float8)
		WHERE name = $1`), c.Name, c.Cluster, topics, c.IDRule, c.Target, string(c.Memory), c.Window.Seconds())
	if err != nil {
		return reg, err
	}
	if c.Memory == inbox.MemoryInbox {
		if _, err := tx.Exec(ctx, s.schema.sql(`SELECT semel.make_inbox($1)`), reg.Scope); err != nil {
			if sqlState(err) == "42501" {
				err = &inbox.HaltError{
					Kind: "not-registered", Why: "consumer " + c.Name + " has no inbox, and this role may not make one",
					Hint: "run semel migrate FILE as the owner of schema " + string(s.schema), Err: err,
				}
			}
			return reg, err
		}
	}
	s.inScope(reg.Scope)
	return reg, nil
}

func (s *InboxStore) inScope(scope int32) { s.scope, s.version = scope, 0 }

// Introduce writes the rows of a topic's new partitions.
func (s *InboxStore) Introduce(ctx context.Context, topic string, decide func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) (all []inbox.Row, err error) {
	err = s.short(ctx, nil, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.schema.sql(`SELECT pg_advisory_xact_lock(hashtextextended('semel' || ' topic ' || $1::text || '/' || $2::text, 0))`),
			s.consumer.Name, topic)
		if err != nil {
			return err
		}
		// A database that went back to before the consumer was registered has
		// neither its record nor its inbox.
		var there bool
		err = tx.QueryRow(ctx, s.schema.sql(`SELECT EXISTS (SELECT FROM semel.consumer WHERE name = $1 AND memory IS NOT NULL)`), s.consumer.Name).Scan(&there)
		if err == nil && !there {
			_, err = s.register(ctx, tx, s.consumer)
		}
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, s.sql.rowsOfTopic, s.consumer.Name, topic)
		if err != nil {
			return err
		}
		known, err := collect(rows)
		if err != nil {
			return err
		}
		added, events, err := decide(known)
		if err != nil {
			return err
		}
		var b pgx.Batch
		for i := range added {
			r := &added[i]
			b.Queue(s.sql.insertRow, append([]any{s.consumer.Name, r.Topic, r.Partition.Number}, written(*r)...)...).
				QueryRow(func(row pgx.Row) error { return row.Scan(&r.Updated) })
		}
		s.queueEvents(&b, events)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		all = append(known, added...)
		slices.SortFunc(all, func(a, b inbox.Row) int { return int(a.Partition.Number - b.Partition.Number) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func collect(rows pgx.Rows) ([]inbox.Row, error) {
	ps, err := pgx.CollectRows(rows, scanPlaced)
	if err != nil {
		return nil, err
	}
	rs := make([]inbox.Row, len(ps))
	for i, p := range ps {
		rs[i] = p.Row
	}
	return rs, nil
}

// Claim takes the partition. Whoever holds its row longer than lock_timeout in a
// batch of this consumer does so under an older claim, since ours isn't made
// yet: its session is ended, for a stopped process inside COPY would never let go.
func (s *InboxStore) Claim(ctx context.Context, p semel.Partition, owner inbox.Owner, decide func(inbox.Row) (inbox.Row, []inbox.Event, error)) (row inbox.Row, err error) {
	var ended []inbox.Event
	for range 3 {
		row, err = s.claim(ctx, p, owner, decide, ended)
		if sqlState(err) != "55P03" {
			return row, err
		}
		found, endErr := s.endBlockers(ctx, p)
		if endErr != nil {
			return inbox.Row{}, errors.Join(err, endErr)
		}
		if len(found) == 0 {
			return inbox.Row{}, err
		}
		ended = append(ended, found...)
	}
	return row, err
}

func (s *InboxStore) claim(ctx context.Context, p semel.Partition, owner inbox.Owner, decide func(inbox.Row) (inbox.Row, []inbox.Event, error), ended []inbox.Event) (row inbox.Row, err error) {
	var found []placed
	scope := s.scope
	lock := func(b *pgx.Batch) {
		b.Queue(s.sql.lockRow, s.consumer.Name, p.Topic, p.Number).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, scanPlaced)
			return err
		})
		// A reset that forgets IDs gives the consumer another scope and every row
		// another token: who has claimed since knows it.
		b.Queue(s.sql.scope, s.consumer.Name).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&scope}, func() error { return nil })
			return err
		})
	}
	var place string
	err = s.short(ctx, lock, func(tx pgx.Tx) error {
		if len(found) == 0 {
			return fmt.Errorf("claim %s: %w", p, inbox.ErrNoRow)
		}
		var events []inbox.Event
		row, events, err = decide(found[0].Row)
		if err != nil {
			return err
		}
		row.Partition, row.Generation, row.Owner = p, found[0].Generation+1, &owner
		rand.Read(row.Token[:])
		var b pgx.Batch
		b.Queue(s.sql.claimRow, append([]any{s.consumer.Name, p.Topic, p.Number}, written(row)...)...).
			QueryRow(func(r pgx.Row) error { return r.Scan(&row.Updated, &place) })
		s.queueEvents(&b, append(ended, events...))
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return inbox.Row{}, err
	}
	s.places[p] = place
	if scope != s.scope {
		s.inScope(scope)
	}
	return row, nil
}

func (s *InboxStore) endBlockers(ctx context.Context, p semel.Partition) (ended []inbox.Event, err error) {
	c, err := s.connection(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := c.Query(ctx, s.sql.endBlocker, s.consumer.Name, p.Topic, p.Number, s.who)
	if err != nil {
		return nil, err
	}
	var pid int32
	var name string
	var gone bool
	_, err = pgx.ForEachRow(rows, []any{&pid, &name, &gone}, func() error {
		s.cfg.Logger.Warn("ended a session of an older claim that held the row",
			"consumer", s.consumer.Name, "topic", p.Topic, "partition", p.Number, "pid", pid, "session", name)
		ended = append(ended, inbox.Event{Partition: p, Kind: "zombie-ended", Detail: map[string]any{"session": name, "pid": pid}})
		return nil
	})
	s.spent(err)
	return ended, err
}

// Look reads rows and desired state.
func (s *InboxStore) Look(ctx context.Context, ps []semel.Partition) (l inbox.Look, err error) {
	c, err := s.connection(ctx)
	if err != nil {
		return l, err
	}
	var b pgx.Batch
	take := func(rows pgx.Rows) (err error) {
		l.Rows, err = collect(rows)
		return err
	}
	if len(ps) == 0 {
		b.Queue(s.sql.allRows, s.consumer.Name).Query(take)
	} else {
		topics, numbers := split(ps)
		b.Queue(s.sql.rowsOf, s.consumer.Name, topics, numbers).Query(take)
	}
	b.Queue(s.sql.state, s.consumer.Name).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&l.Paused, &l.Reason, &l.Marked}, func() error { return nil })
		return err
	})
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		s.spent(err)
		return inbox.Look{}, err
	}
	return l, nil
}

func split(ps []semel.Partition) (topics []string, numbers []int32) {
	for _, p := range ps {
		topics, numbers = append(topics, p.Topic), append(numbers, p.Number)
	}
	return topics, numbers
}

// Release clears the owners of claims that are still ours.
func (s *InboxStore) Release(ctx context.Context, claims []inbox.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	return s.short(ctx, func(b *pgx.Batch) {
		for _, c := range claims {
			b.Queue(s.sql.release, s.consumer.Name, c.Topic, c.Partition.Number, uuidOf(c.Token))
		}
	}, func(pgx.Tx) error { return nil })
}

// Try records a trial. The row moves, and the next batch finds it by its key.
func (s *InboxStore) Try(ctx context.Context, c inbox.Claim, t inbox.Trial) error {
	return s.short(ctx, func(b *pgx.Batch) {
		b.Queue(s.schema.sql(`UPDATE semel.watermark SET trial = $5::text::jsonb WHERE consumer = $1 AND topic = $2 AND partition = $3 AND claim_token = $4`),
			s.consumer.Name, c.Topic, c.Partition.Number, uuidOf(c.Token), jsonOf(&t))
	}, func(pgx.Tx) error { return nil })
}

// Survived takes a trial back.
func (s *InboxStore) Survived(ctx context.Context, p semel.Partition, at int64) error {
	return s.short(ctx, func(b *pgx.Batch) {
		b.Queue(s.schema.sql(`UPDATE semel.watermark SET trial = NULL WHERE consumer = $1 AND topic = $2 AND partition = $3 AND (trial->>'at')::bigint = $4`),
			s.consumer.Name, p.Topic, p.Number, at)
	}, func(pgx.Tx) error { return nil })
}

// Record writes events.
func (s *InboxStore) Record(ctx context.Context, events []inbox.Event) error {
	if len(events) == 0 {
		return nil
	}
	return s.short(ctx, func(b *pgx.Batch) { s.queueEvents(b, events) }, func(pgx.Tx) error { return nil })
}

func (s *InboxStore) queueEvents(b *pgx.Batch, events []inbox.Event) {
	for _, e := range events {
		detail := e.Detail
		if detail == nil {
			detail = map[string]any{}
		}
		b.Queue(s.sql.event, s.consumer.Name, e.Topic, e.Partition.Number, e.Kind, string(marshal(detail)))
	}
}

// fullTable is how many IDs an inbox table takes before the next one is used, as long
// as there is one that is free.
const fullTable = 5_000_000

// Forget removes what the window no longer covers: the oldest inbox table, by turning the
// ring a step, then rows of the table that are marked as deleted.
func (s *InboxStore) Forget(ctx context.Context, place time.Time) (more bool, err error) {
	if s.consumer.Memory != inbox.MemoryInbox || s.consumer.Window <= 0 {
		return false, nil
	}
	if more, err = s.turn(ctx, place); more || err != nil {
		return more, err
	}
	return s.purge(ctx)
}

// turn turns the ring by a step.
func (s *InboxStore) turn(ctx context.Context, place time.Time) (more bool, err error) {
	step, since := "", s.rings.elapsed(s.scope)
	err = s.short(ctx, func(b *pgx.Batch) {
		b.Queue(s.schema.sql(`SELECT coalesce(semel.rotate($1, $2, make_interval(secs => $3::float8), $4, $5, $6, make_interval(secs => $7::float8)), '')`),
			s.scope, s.consumer.Name, s.consumer.Window.Seconds(), timeOf(place), fullTable, s.rings.me, since.Seconds()).
			QueryRow(func(row pgx.Row) error { return row.Scan(&step) })
	}, func(pgx.Tx) error { return nil })
	if err != nil {
		return false, err
	}
	switch step {
	case "both", "frozen", "dropped", "emptied":
		s.cfg.Logger.Info("turned the inbox", "consumer", s.consumer.Name, "step", step)
		more = true
	}
	return more, nil
}

// purge removes marked rows, so many at a time; it begins once in a 48th of the
// window. A row that something else refers to stays.
func (s *InboxStore) purge(ctx context.Context) (more bool, err error) {
	if time.Since(s.purged) < s.consumer.Window/48 {
		return false, nil
	}
	for _, t := range s.marking() {
		if more, err = s.purgeTable(ctx, t); more || err != nil {
			return more, err
		}
	}
	s.purged = time.Now()
	return false, nil
}

// marking are the tables, looked at so far, that mark deleted rows.
func (s *InboxStore) marking() []*Table {
	var all []*Table
	if s.cfg.Tables != nil {
		all = s.cfg.Tables.sorted()
	} else if s.cfg.Table != nil {
		all = []*Table{s.cfg.Table}
	}
	return slices.DeleteFunc(all, func(t *Table) bool { return t.plan.Load().gone < 0 })
}

func (s *InboxStore) purgeTable(ctx context.Context, t *Table) (more bool, err error) {
	err = s.short(ctx, nil, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, t.plan.Load().purge(s.schema.sql("semel.watermark")), s.consumer.Name, s.consumer.Window.Seconds())
		more = tag.RowsAffected() == tablePurge
		return err
	})
	if refusesData(err) || err != nil && SQLStateClass(sqlState(err)) == inbox.ClassRoute {
		s.cfg.Logger.Warn("rows that are marked as deleted can't be removed", "table", t.name.String(), "error", err)
		return false, nil
	}
	return more, err
}
