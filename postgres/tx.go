package postgres

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// inboxTx is one transaction of a lane.
type inboxTx struct {
	store *InboxStore
	conn  *pgx.Conn
	tx    pgx.Tx
	db    *handlerTx
	now   time.Time
	rows  map[semel.Partition]placed // as they were locked
	ring  *ring                      // nil: the consumer has no inbox
	fresh [][]semel.ID               // admitted here, each ascending
	ended bool
	was   byte // the transaction's status when it ended

	probing  bool       // the savepoints of probes are there
	asked    tableAsked // what went with BEGIN
	atCommit []string   // statements that go before all others of Commit

	// What came over this connection, see note.
	seen      []*pgconn.PgError
	next      int
	failed    *pgconn.PgError // the last failure; it decides while the transaction has failed
	cancelled bool            // a statement's context ended, which closes the connection
}

// keptErrors is how many errors of a transaction are remembered: those that a
// handler caught with savepoints count too.
const keptErrors = 16

// keptEpochs is how many leader epochs a row keeps.
const keptEpochs = 8

// Begin opens the transaction, locks the rows of the spans and compares them,
// before any effect. A row that another session holds for longer than
// lock_timeout is an answer like a wrong token: it may be held by a dead session
// of our own, and only a claim may end one.
func (s *InboxStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[pgx.Tx], error) {
	if len(spans) == 0 {
		panic("postgres: Begin without a span")
	}
	f := s.fence(spans)
	tx, now, err := s.begin(ctx, f.token(), f.queue)
	if err == nil && !f.holds() && f.byPlace {
		var found pgx.Rows
		if found, err = tx.Query(ctx, s.sql.lockRows, s.consumer.Name, f.topics, f.numbers); err == nil {
			err = f.take(found)
		}
	}
	if err == nil && f.holds() && f.ring != nil {
		err = s.settleRing(ctx, tx, f.ring)
	}
	if err != nil {
		s.looks = looks{} // a table that has changed is asked anew
	}
	if sqlState(err) == "55P03" && !f.holds() { // else it is the table that is locked
		s.rollback(tx)
		return nil, s.heldElsewhere(ctx, spans, err)
	}
	if err != nil {
		s.rollback(tx)
		s.spent(err)
		return nil, err
	}
	if fenced := mismatches(spans, f.rows); fenced != nil {
		s.rollback(tx)
		return nil, fenced
	}
	return s.opened(tx, now, f), nil
}

func (s *InboxStore) opened(tx pgx.Tx, now time.Time, f *fence) *inboxTx {
	t := &inboxTx{store: s, conn: tx.Conn(), tx: tx, now: now, rows: f.rows, ring: f.ring, asked: f.asked, seen: make([]*pgconn.PgError, 0, keptErrors)}
	t.db = &handlerTx{Tx: tx, of: t}
	return t
}

// fence locks the rows of spans, to compare them.
type fence struct {
	store   *InboxStore
	spans   []inbox.Span
	topics  []string
	numbers []int32
	byPlace bool // the store knows where each row was put last
	rows    map[semel.Partition]placed
	ring    *ring // nil: the consumer has no inbox
	asked   tableAsked
}

func (s *InboxStore) fence(spans []inbox.Span) *fence {
	ps := make([]semel.Partition, len(spans))
	for i, span := range spans {
		ps[i] = span.Partition
	}
	f := &fence{store: s, spans: spans, rows: make(map[semel.Partition]placed, len(spans))}
	f.topics, f.numbers = split(ps)
	if s.hasInbox() {
		f.ring = new(ring)
	}
	return f
}

func (f *fence) token() string { return semel.ID(f.spans[0].Token).String() }

// holds says whether every row is what its span needs.
func (f *fence) holds() bool { return mismatches(f.spans, f.rows) == nil }

func (f *fence) take(found pgx.Rows) error {
	list, err := pgx.CollectRows(found, scanPlaced)
	for _, p := range list {
		f.rows[p.Partition] = p
	}
	return err
}

// near says whether the rows lie at the front of their table, where few dead
// versions stand between a row's key and the row.
func (f *fence) near() bool {
	for _, span := range f.spans {
		place, ok := f.store.places[span.Partition]
		if !ok || strings.IndexByte(place, ',') > len("(9") {
			return false
		}
	}
	return true
}

// queue asks for the rows where the last updates put them, or by their keys.
func (f *fence) queue(b *pgx.Batch) {
	ctids := make([]string, 0, len(f.spans))
	for _, span := range f.spans {
		if place, ok := f.store.places[span.Partition]; ok {
			ctids = append(ctids, place)
		}
	}
	name := f.store.consumer.Name
	switch f.byPlace = len(ctids) == len(f.spans); {
	case !f.byPlace:
		b.Queue(f.store.sql.lockRows, name, f.topics, f.numbers).Query(f.take)
	case slices.ContainsFunc(ctids, far):
		b.Queue(f.store.sql.rowsFar, name, ctids).Query(f.take)
	default:
		b.Queue(f.store.sql.rowsAt, name, ctids).Query(f.take)
	}
	f.askRing(b)
	f.askTable(b)
}

func (f *fence) askRing(b *pgx.Batch) {
	if f.ring != nil {
		f.store.queueRing(b, f.ring)
	}
}

// askTable comes last: a row that doesn't match is more than a table that changed.
func (f *fence) askTable(b *pgx.Batch) {
	if l := f.store.looks; l.on != nil && f.store.held != nil && l.on == f.store.held.Conn() && l.plan == f.store.cfg.Table.plan.Load() {
		f.asked.queue(l.plan, b)
	}
}

func mismatches(spans []inbox.Span, rows map[semel.Partition]placed) error {
	var wrong []inbox.Mismatch
	for _, span := range spans {
		m := inbox.Mismatch{Partition: span.Partition, From: span.From}
		if p, ok := rows[span.Partition]; ok {
			m.Row, m.Mine = &p.Row, p.Token == span.Token
			if m.Mine && p.TopicID == span.TopicID && p.Next == span.From {
				continue
			}
		}
		wrong = append(wrong, m)
	}
	if wrong == nil {
		return nil
	}
	return &inbox.FencedError{Mismatches: wrong}
}

// heldElsewhere names all spans, as nobody knows which of the rows is held.
func (s *InboxStore) heldElsewhere(ctx context.Context, spans []inbox.Span, err error) error {
	var ps []semel.Partition
	for _, span := range spans {
		ps = append(ps, span.Partition)
	}
	look, lookErr := s.Look(ctx, ps)
	if lookErr != nil {
		return lookErr
	}
	fenced := &inbox.FencedError{}
	for _, span := range spans {
		m := inbox.Mismatch{Partition: span.Partition, From: span.From}
		for i, r := range look.Rows {
			if r.Partition == span.Partition {
				m.Row, m.Mine = &look.Rows[i], r.Token == span.Token
			}
		}
		fenced.Mismatches = append(fenced.Mismatches, m)
	}
	return fmt.Errorf("%w: %w", fenced, err)
}

func (t *inboxTx) DB() pgx.Tx { return t.db }

func (t *inboxTx) status() byte {
	if t.ended {
		return t.was
	}
	return t.conn.PgConn().TxStatus()
}

// Failed says whether no later statement can succeed: one has failed, the result of
// one was left open, or the handler's SQL has ended the transaction.
func (t *inboxTx) Failed() bool {
	return t.conn.IsClosed() || t.status() != 'T' || !t.ended && t.conn.PgConn().IsBusy()
}

// ErrOpenResult says that a handler returned before it had read or closed the result
// of a statement.
var ErrOpenResult = errors.New("the result of a statement was not closed")

// errEnded says that the transaction is not the one that was handed out.
var errEnded = errors.New("the handler ended the transaction that it was handed")

// SwallowedError says that a statement of the transaction failed and that the
// handler went on as if it had not. Everything since is lost.
type SwallowedError struct{ Err *pgconn.PgError } // nil if it wasn't seen

func (e *SwallowedError) Error() string {
	if e.Err == nil {
		return "a statement failed and the handler did not return its error"
	}
	return "a statement failed and the handler did not return its error: " + e.Err.Error()
}

func (e *SwallowedError) Unwrap() error {
	if e.Err == nil {
		return nil
	}
	return e.Err
}

// unfit says why the transaction can't be committed.
func (t *inboxTx) unfit() error {
	switch {
	case t.conn.IsClosed():
		return nil // COMMIT will tell
	case t.conn.PgConn().IsBusy():
		return &classedError{inbox.ClassHandler, "after a handler", ErrOpenResult}
	case t.status() == 'E':
		return &SwallowedError{Err: t.failed}
	case t.status() != 'T':
		return &classedError{inbox.ClassRoute, "before COMMIT", errEnded}
	}
	return nil
}

// Commit writes the rows with their new counters and commits, in one pipeline:
// the server skips COMMIT when a statement before it fails. The tag of COMMIT is
// definite, whatever follows it, and so is an error that the server reports short
// of ending the session; anything else leaves open whether COMMIT was executed, a
// context that ended included.
func (t *inboxTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	_, err := t.CommitAndBegin(ctx, settled, nil)
	return err
}

// CommitAndBegin puts BEGIN and what follows it into the same pipeline, behind
// COMMIT: what failed before it is not begun either, for the server skips that too.
func (t *inboxTx) CommitAndBegin(ctx context.Context, settled []inbox.Settled, next []inbox.Span) (inbox.Tx[pgx.Tx], error) {
	if t.ended {
		return nil, pgx.ErrTxClosed
	}
	if err := t.unfit(); err != nil {
		t.Rollback(ctx)
		return nil, err
	}
	places := make(map[semel.Partition]string, len(settled))
	written := 0
	var b pgx.Batch
	if t.probing { // else rows are updated below a savepoint
		b.Queue(probesKeep)
	}
	for _, sql := range t.atCommit {
		b.Queue(sql)
	}
	for _, st := range settled {
		was, ok := t.rows[st.Partition]
		if !ok || st.To < was.Next {
			panic(fmt.Sprintf("postgres: commit of %s up to %d: not a span of this transaction", st.Partition, st.To))
		}
		row := was
		row.Next, row.UncleanClaims, row.Ahead = st.To, 0, st.Ahead
		row.Epochs = keepEpochs(row.Epochs, st.Epochs)
		row.Accounts = row.Accounts.Plus(st.Accounts)
		args := []any{t.store.consumer.Name, st.Topic, st.Partition.Number, was.ctid}
		settle := t.store.sql.settleRow
		if far(was.ctid) {
			settle = t.store.sql.settleFar
		}
		args = append(append(args, settledValues(row)...), t.now, timeOf(st.Newest))
		b.Queue(settle, args...).QueryRow(func(r pgx.Row) error {
			var place string
			var one int64
			err := r.Scan(&place, &one)
			if err == nil {
				places[st.Partition] = place
				written++
			}
			return err
		})
	}
	var tag pgconn.CommandTag
	b.Queue("COMMIT").Exec(func(ct pgconn.CommandTag) error { tag = ct; return nil })
	then := t.then(&b, next)
	err := t.conn.SendBatch(ctx, &b).Close()
	switch pg := (*pgconn.PgError)(nil); {
	case tag.String() == "COMMIT":
		t.ended, t.was = true, 'I'
		for p, place := range places {
			t.store.places[p] = place
		}
		t.store.replan = nil
		return then(err), nil
	case err == nil:
		err = pgx.ErrTxCommitRollback
	case errors.As(err, &pg) && !fatal(pg) && !t.conn.IsClosed():
		t.note(err)
		if pg.Code == "22012" && written < len(settled) {
			err = &classedError{inbox.ClassRoute, "a watermark row was not written: a trigger or the handler changed it, or the handler ended the transaction", err}
		}
	case pgconn.SafeToRetry(err):
		t.note(err)
	default:
		err = &AmbiguousError{Err: err}
	}
	t.Rollback(ctx)
	return nil, err
}

// then queues the beginning of the next transaction; the function answers it, or
// nil and the connection is as if nothing had been begun.
func (t *inboxTx) then(b *pgx.Batch, next []inbox.Span) func(error) inbox.Tx[pgx.Tx] {
	s, f := t.store, t.store.fence(next)
	if len(next) == 0 || !f.near() {
		return func(error) inbox.Tx[pgx.Tx] { return nil }
	}
	var now time.Time
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	s.queueSettings(b, f.token(), &now)
	// By their keys: the rows that this transaction writes have no place yet.
	b.Queue(s.sql.lockRows, s.consumer.Name, f.topics, f.numbers).Query(f.take)
	f.askRing(b)
	f.askTable(b)
	return func(err error) inbox.Tx[pgx.Tx] {
		if err == nil && f.holds() && s.holdsRing(f.ring) {
			return s.opened(t.tx, now, f) // pgx has no other handle for it
		}
		s.looks = looks{}
		s.rollback(t.tx)
		s.spent(err)
		return nil
	}
}

func keepEpochs(old, more []inbox.Epoch) []inbox.Epoch {
	all := append([]inbox.Epoch(nil), old...)
	for _, e := range more {
		if len(all) == 0 || e.Number > all[len(all)-1].Number {
			all = append(all, e)
		}
	}
	return all[max(0, len(all)-keptEpochs):]
}

// Rollback ends the transaction whatever its state; a connection on which that
// isn't possible is thrown away. It doesn't use the context: a batch that was
// aborted must not keep its locks.
func (t *inboxTx) Rollback(context.Context) {
	if t.ended {
		return
	}
	t.ended, t.was = true, t.conn.PgConn().TxStatus()
	t.store.rollback(t.tx)
	for _, pg := range t.seen {
		t.store.spent(pg)
	}
}

// Bury writes dead letters. Nothing in a message can make that fail: bytes stay
// bytes, and what becomes text is made valid and cut.
func (t *inboxTx) Bury(ctx context.Context, letters []inbox.DeadLetter) error {
	if len(letters) == 0 {
		return nil
	}
	utf := t.conn.PgConn().ParameterStatus("server_encoding") == "UTF8"
	var b pgx.Batch
	var ids []pgtype.UUID
	for _, l := range letters {
		m := l.Message
		b.Queue(t.store.schema.sql(`
			INSERT INTO semel.dead_letter (consumer, topic, partition, "offset", message_time, message_id, id, key, value,
			                               headers, class, sqlstate, error, attempts)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::jsonb, $11, nullif($12::text, ''), $13, $14)`),
			t.store.consumer.Name, m.Topic, m.Partition, m.Offset, timeOf(m.Timestamp), cleanText(l.SentID, 1000, utf), uuidOf(l.ID),
			m.Key, m.Value, headersOf(m.Headers, utf), string(l.Class), cleanText(l.SQLState, 5, utf),
			cleanText(l.Error, 2000, utf), int32(l.Attempts))
		if l.Class != inbox.DeadCollision && t.admitted(l.ID) { // what collides has the ID of another
			ids = append(ids, uuidOf(l.ID))
		}
	}
	if ids != nil {
		for _, g := range t.ring.hot() {
			b.Queue(t.store.inTable(g, `UPDATE semel.INBOX SET how = 'd' WHERE id = ANY($1::uuid[]) AND how <> 'd'`), ids)
		}
	}
	return t.note(t.tx.SendBatch(ctx, &b).Close())
}

// timeOf is nil for what timestamptz can't hold: producers may send any number.
func timeOf(t time.Time) any {
	if t.IsZero() || t.Year() < -4000 || t.Year() > 200000 {
		return nil
	}
	return t
}

// headersOf is the jsonb array in which headers are kept: names as text or, where
// they are none, in base64; values in base64 or null.
func headersOf(hs []semel.Header, utf bool) string {
	type header struct {
		Name       *string `json:"name,omitempty"`
		NameBase64 *string `json:"name_base64,omitempty"`
		Value      *string `json:"value"`
	}
	out := make([]header, len(hs))
	for i, h := range hs {
		if h.Name == cleanText(h.Name, len(h.Name), utf) {
			out[i].Name = &h.Name
		} else {
			coded := base64.StdEncoding.EncodeToString([]byte(h.Name))
			out[i].NameBase64 = &coded
		}
		if h.Value != nil {
			coded := base64.StdEncoding.EncodeToString(h.Value)
			out[i].Value = &coded
		}
	}
	return string(marshal(out))
}

// cleanText makes text that the server takes: valid, without NUL, at most so
// many bytes, and ASCII where the database has another encoding than UTF-8.
func cleanText(s string, most int, utf bool) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == 0 || (!utf && r >= utf8.RuneSelf):
			return '?'
		}
		return r // an invalid byte comes as U+FFFD
	}, s)
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]) && !utf8.RuneStart(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	for len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s
}

// Describe gives SQLSTATE and text of an error, the server's detail included.
func (t *inboxTx) Describe(err error) (sqlstate, text string) {
	text = err.Error()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		sqlstate = pg.Code
	} else if t.status() == 'E' && t.failed != nil {
		pg, sqlstate = t.failed, t.failed.Code
		text += ": " + pg.Error()
	}
	if pg != nil && pg.Detail != "" {
		text += ": " + pg.Detail
	}
	return sqlstate, cleanText(text, 2000, true)
}
