package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// WriteMode says what a message does to the table.
type WriteMode string

const (
	// WriteAppend adds a row for each message.
	WriteAppend WriteMode = "append"
	// WriteInsert adds a row for each message whose key isn't there yet.
	WriteInsert WriteMode = "insert"
	// WriteUpsert keeps one row for each key: the last, or the one of the
	// greatest version.
	WriteUpsert WriteMode = "upsert"
	// WriteMirror is WriteUpsert, and a message without a value deletes the row of
	// its key.
	WriteMirror WriteMode = "mirror"
)

// keeps says that the mode keeps one state for each key.
func (m WriteMode) keeps() bool { return m == WriteUpsert || m == WriteMirror }

// ExistsPolicy says what becomes of an insert that meets a row of another
// message ID under its key.
type ExistsPolicy uint8

const (
	ExistsDuplicate ExistsPolicy = iota // settled as a duplicate
	ExistsDeadLetter
)

// TombstonePolicy says what becomes of a message without a value.
type TombstonePolicy uint8

const (
	TombstoneIgnore TombstonePolicy = iota // skipped
	TombstoneDeadLetter
	TombstoneDelete // WriteMirror alone: the row is deleted, or marked where there is a version
)

// AbsentPolicy says what becomes of a column whose field is not in the message.
type AbsentPolicy uint8

const (
	AbsentNull  AbsentPolicy = iota // NULL, or the default of a NOT NULL column
	AbsentKeep                      // what is stored, or the default in a new row: a patch
	AbsentError                     // the message is dead
)

// TableConfig is the "to:" of a route, and what of the rest decides how rows are
// made and told apart. Expressions are those of [sink.ParsePath], of columns those
// of [sink.ParseExpr].
type TableConfig struct {
	// Table is written as in SQL, see [ParseTableName]. Required.
	Table string
	// Write is required.
	Write WriteMode
	// PrimaryKey are the columns that make a key; default: the table's. There
	// must be a unique index over exactly them. WriteAppend takes no notice.
	PrimaryKey []string
	// Columns maps columns to expressions. nil: every column takes the field of
	// its name, but for generated ones and identities that are always generated.
	//
	// A mapped column takes NULL from a message that has null there or nothing;
	// only where nothing meets a NOT NULL column that has a default, the default
	// is taken (of an existing row: what it holds).
	Columns map[string]string
	// Version is one of the expressions in Columns: with WriteUpsert a row is
	// replaced only by one whose version is greater. "": the last message wins.
	Version string
	// Deleted is the column that marks a deleted row, required for WriteMirror with
	// a version: a row that is gone would let an older message through. It holds
	// the time of the deletion until a greater version comes, or the row is purged.
	Deleted string
	// Window is how long a marked row stays; 0: for ever.
	Window time.Duration
	// Absent says what becomes of fields that a message hasn't.
	Absent AbsentPolicy
	// Combine names the columns to which a message adds instead of replacing what
	// is stored. A new row starts at zero.
	Combine []string

	// ID are the fields that identify a message, if fields do: the table then
	// sets the items' IDs itself ([Table.OwnIDs]).
	ID []string
	// Identified: another rule (a header, the key) identifies messages. With
	// neither they are identified by their position.
	Identified bool
	// SeveralTopics makes the topic a part of the ID.
	SeveralTopics bool
	KeyFormat     sink.KeyFormat
	// Raw: values are bytes, and have no fields.
	Raw bool
	// Filter is an expression, true or false ([sink.ParseFilter]): where it is false
	// the message is skipped. "": none is.
	Filter string
	// Open are the steps from messages as sent to what expressions select of.
	Open []sink.Opener

	OnExists    ExistsPolicy
	OnCollision inbox.CollisionPolicy // where the target is the memory
	Tombstone   TombstonePolicy
	// StripNUL takes U+0000 and lone surrogates out of text; else such a message
	// is dead.
	StripNUL bool
	// HaltUnknown halts the route at a field without a column; else they are
	// counted.
	HaltUnknown bool
	// Zone is that of times without one, and of columns without time zone; nil:
	// a time that would need it is refused.
	Zone *time.Location
	// Epoch names the unit of numbers in time columns; without it they are
	// refused.
	Epoch map[string]EpochUnit
	// Fit lets the route make its table and add columns; nil: never.
	Fit *Fit
}

// Table writes messages as rows of a table. It is an inbox.Effect for one lane,
// made once with [NewTable].
//
// A value that the column can't hold exactly buries its message before any
// transaction; what only the server can refuse (constraints, lengths, types that
// only it can read) comes back as its error from Apply, so that the inbox finds
// the message by halving.
type Table struct {
	cfg     TableConfig
	name    TableName
	plan    atomic.Pointer[tablePlan]
	scratch sync.Pool // *tableScratch
	unknown atomic.Int64
	guess   guess
	fits    sync.Map // *sink.Type of messages -> nil, or why the table doesn't fit
}

var (
	_ inbox.Effect[pgx.Tx] = (*Table)(nil)
	_ inbox.Separable      = (*Table)(nil)
)

// tableRow is an item's Load: its row, ready to be sent.
type tableRow struct {
	plan       *tablePlan
	tuple      []byte
	key        []byte // fields of the key in canonical form, each with its length; nil: none, or null in it
	version    []byte
	head       uint64 // of the key's first field, for sorting
	headLength uint32
	omit       columnSet // which of the plan's optional columns are not in the tuple
	unknown    int
	kind       rowKind
	doubtful   bool // the table refuses it, at least as a new row
	tombstone  bool
	change     *sink.Change // where the version is one
	item       *inbox.Item
	at         int // its place among the items
}

// rowKind is what a row does to the state of its key.
type rowKind uint8

const (
	rowPut    rowKind = iota // replaces it
	rowPatch                 // sets the columns that it has, and adds where columns are combined
	rowDelete                // ends it
	rowMark                  // ends it under a version: the row stays, marked
)

// mark sets the head.
func (r *tableRow) mark() {
	if len(r.key) < 4 {
		return
	}
	r.headLength = binary.BigEndian.Uint32(r.key)
	var head [8]byte
	copy(head[:], r.key[4:])
	r.head = binary.BigEndian.Uint64(head[:])
}

// tableKeep bounds what memory a row keeps for the next one in its place: there
// is one for each place in a batch, and each may have seen a large message.
const tableKeep = 4 << 10

func (r *tableRow) reset(p *tablePlan) {
	tuple, key, version := r.tuple[:0], r.key[:0], r.version[:0]
	if cap(tuple) > tableKeep {
		tuple = nil
	}
	*r = tableRow{plan: p, tuple: tuple, key: key, version: version}
}

type tableScratch struct {
	row    sink.Row
	fields []int // where each column's field is in the tuple
}

// NewTable looks at the table and decides how to write to it. The route's
// mistakes are *TableError, all of them joined.
func NewTable(ctx context.Context, db Querier, cfg TableConfig) (*Table, error) {
	name, err := ParseTableName(cfg.Table)
	if err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, name: name, guess: newGuess()}
	t.scratch.New = func() any { return new(tableScratch) }
	return t, t.Reload(ctx, db)
}

// Reload looks at the table again, after its schema has changed. Rows that were
// decoded before are decoded again when they are applied.
func (t *Table) Reload(ctx context.Context, db Querier) error {
	info, err := introspect(ctx, db, t.name)
	if err != nil {
		return err
	}
	p, err := newTablePlan(info, t.cfg)
	if err != nil {
		return err
	}
	t.plan.Store(p)
	return nil
}

var _ inbox.Renewer[pgx.Tx] = (*Table)(nil)

// Renew is Reload in a transaction of the lane, if the table was altered. What the
// consumer was opened with stays: a table that asks for another memory halts the route.
func (t *Table) Renew(ctx context.Context, tx inbox.Tx[pgx.Tx], _ string) error {
	was := t.plan.Load()
	info, err := introspect(ctx, tx.DB().Conn(), t.name)
	if err == nil && reflect.DeepEqual(info, was.info) {
		return nil
	}
	var p *tablePlan
	if err == nil {
		p, err = newTablePlan(info, t.cfg)
	}
	if err != nil {
		return changedTable(err)
	}
	if p.memory != was.memory || p.fused != was.fused || p.mapping.IDName() != was.mapping.IDName() {
		return changedTable(&TableError{
			Table: info.name.String(), Why: "messages would be known by another memory than the route began with",
			Hint: "restart the route, so that it looks at the table again",
		})
	}
	t.fits.Clear()
	t.plan.Store(p)
	return nil
}

// changedTable halts where the route doesn't fit its table any more; other errors stay
// what they are.
func changedTable(err error) error {
	var wrong *TableError
	if !errors.As(err, &wrong) {
		return err
	}
	hint := wrong.Hint
	if hint == "" {
		hint = "change it back, or the route, then resume it"
	}
	return &inbox.HaltError{Kind: inbox.HaltTableChanged, Why: wrong.Error(), Hint: hint, Err: err}
}

// Memory says what recognises repeats, as far as the route decides it.
func (t *Table) Memory() inbox.Memory { return t.plan.Load().memory }

// OwnIDs says that Decode sets the items' IDs.
func (t *Table) OwnIDs() bool { return len(t.cfg.ID) > 0 }

// IDName is the recorded name of the rule by fields; "" if there is none.
func (t *Table) IDName() string {
	if !t.OwnIDs() {
		return ""
	}
	return t.plan.Load().mapping.IDName()
}

// SentID is the ID as its sender wrote it, where fields are the ID; "" if the
// message can't be read.
func (t *Table) SentID(m *semel.Message) string {
	p := t.plan.Load()
	var row sink.Row
	if !t.OwnIDs() || p.mapping.Decode(m, &row) != nil {
		return ""
	}
	return p.mapping.Sent(m, &row)
}

// Separable: what a batch leaves in its transaction are rows, and settings that it
// makes for itself.
func (t *Table) Separable() bool { return true }

// UnknownFields counts the fields without a column in all messages decoded.
func (t *Table) UnknownFields() int64 { return t.unknown.Load() }

// Decode makes rows of messages. A message that can't become one gets its Err,
// with the column and why.
func (t *Table) Decode(items []inbox.Item) {
	p := t.plan.Load()
	s := t.scratch.Get().(*tableScratch)
	unknown := 0
	for i := 0; i < len(items); i++ {
		unknown += t.decode(p, &items[i], s)
		if s.row.Type == nil || items[i].Skip {
			continue
		}
		if err := t.fit(s.row.Type); err != nil {
			(&tableless{err}).take(&items[i], t.OwnIDs())
		} else if q := t.plan.Load(); q != p { // all by one plan: their digests are compared
			p, i, unknown = q, -1, 0
		}
	}
	s.row = sink.Row{} // hold no buffer of the source
	t.scratch.Put(s)
	if unknown > 0 {
		t.unknown.Add(int64(unknown))
	}
}

func (t *Table) decode(p *tablePlan, it *inbox.Item, s *tableScratch) (unknown int) {
	r, ok := it.Load.(*tableRow)
	if !ok {
		r = new(tableRow)
		it.Load = r
	}
	r.reset(p)
	err := p.mapping.Decode(&it.Message, &s.row)
	if err == nil && s.row.Skip != "" {
		it.Skip, it.Err, it.Class = true, nil, "" // it needs no ID
		return 0
	}
	if err == nil {
		err = t.fill(p, it, r, s)
	}
	if err == nil {
		return s.row.UnknownFields
	}
	it.Err, it.Class = err, inbox.DeadDecode
	var d *sink.DecodeError
	if errors.As(err, &d) {
		it.Class = inbox.DeadClass(d.Class)
	}
	return 0
}

// errTombstone is why a tombstone is a dead letter.
var errTombstone = &sink.DecodeError{Class: sink.ClassValue, Why: "a message without a value"}

func (t *Table) fill(p *tablePlan, it *inbox.Item, r *tableRow, s *tableScratch) error {
	r.unknown, r.tombstone = s.row.UnknownFields, s.row.Tombstone
	if p.version >= 0 && !s.row.Change.IsZero() {
		change := s.row.Change
		r.change = &change
	}
	if r.tombstone {
		switch t.cfg.Tombstone {
		case TombstoneDeadLetter:
			return errTombstone
		case TombstoneDelete:
			if err := p.encodeDelete(r, s); err != nil {
				return err
			}
		}
	} else if err := p.encode(r, s); err != nil {
		return err
	}
	if p.memory == inbox.MemoryPosition {
		return nil
	}
	if p.memory == inbox.MemoryInbox {
		it.Digest = s.row.Digest()
	}
	if !t.OwnIDs() {
		return nil
	}
	// A missing ID comes last: the rest is right and may be applied if the
	// consumer takes the position instead.
	var err error
	if p.fused && !r.tombstone {
		if err = p.mapping.Identified(&s.row); err == nil {
			it.ID = p.fusedID(r)
		}
		return err
	}
	it.ID, err = p.mapping.ID(&it.Message, &s.row)
	return err
}

// encode fills the tuple, the key and the version.
func (p *tablePlan) encode(r *tableRow, s *tableScratch) error {
	values := s.row.Values
	n := len(p.columns)
	s.fields = append(s.fields[:0], make([]int, n)...)
	r.tuple = append(r.tuple, 0, 0)
	r.kind = p.kind
	for i := range values {
		c := &p.columns[i]
		v := values[i]
		if v.IsNull() {
			if v.Kind == sink.Absent {
				if p.strict {
					return c.refused(errTableAbsent)
				}
				if c.lenient {
					r.omit.add(c.optional)
					r.doubtful = r.doubtful || c.notNull && !c.hasDefault
					n--
					continue
				}
			}
			if c.adds {
				return c.refused(errTableNothing)
			}
			r.doubtful = r.doubtful || c.notNull
			r.tuple = append(r.tuple, 255, 255, 255, 255)
			continue
		}
		at := len(r.tuple)
		s.fields[i] = at
		r.tuple = append(r.tuple, 0, 0, 0, 0)
		var err error
		if p.text {
			r.tuple, err = c.enc.text(r.tuple, v)
		} else {
			r.tuple, err = c.enc.binary(r.tuple, v)
		}
		if err != nil {
			return c.refused(err)
		}
		binary.BigEndian.PutUint32(r.tuple[at:], uint32(len(r.tuple)-at-4))
	}
	if p.gone >= 0 {
		r.tuple = append(r.tuple, 255, 255, 255, 255)
	}
	binary.BigEndian.PutUint16(r.tuple, uint16(n))
	if err := p.encodeKey(r, s); err != nil {
		return err
	}
	return p.encodeVersion(r, values)
}

// encodeKey fills the key from the tuple, or anew where that holds other forms.
func (p *tablePlan) encodeKey(r *tableRow, s *tableScratch) error {
	values := s.row.Values
	for i := range p.key {
		k := &p.key[i]
		v := values[k.column]
		if v.IsNull() {
			if p.write.keeps() {
				return p.columns[k.column].refused(errTableNullKey)
			}
			r.key = nil
			break
		}
		at := len(r.key)
		if p.text || k.fold != "" || r.kind == rowDelete {
			write, err := p.columns[k.column].enc.binary, error(nil)
			if k.fold != "" {
				write = p.columns[k.column].enc.text
			}
			if r.key, err = write(append(r.key, 0, 0, 0, 0), v); err != nil {
				return p.columns[k.column].refused(err)
			}
			binary.BigEndian.PutUint32(r.key[at:], uint32(len(r.key)-at-4))
		} else {
			field := r.tuple[s.fields[k.column]:]
			r.key = append(r.key, field[:4+binary.BigEndian.Uint32(field)]...)
		}
		k.canon(r.key[at+4:])
	}
	if len(p.key) == 0 {
		r.key = nil
	}
	r.mark()
	return nil
}

func (p *tablePlan) encodeVersion(r *tableRow, values []sink.Value) error {
	if p.version < 0 {
		return nil
	}
	v, c := values[p.version], &p.columns[p.version]
	if v.IsNull() {
		return c.refused(errTableNoVersion)
	}
	if endless(c.enc, v) {
		return c.refused(errTableEndless)
	}
	var err error
	if r.version, err = c.enc.binary(r.version, v); err != nil {
		return c.refused(err)
	}
	return nil
}

// endless says whether a version stands above all others: a row that had it would never
// be replaced.
func endless(enc encoder, v sink.Value) bool {
	if _, text := enc.(encodeText); text || v.Kind != sink.String && v.Kind != sink.Text {
		return false
	}
	var buf [64]byte
	what, negative := encodeSpecial(v.Text(buf[:]))
	return what == "nan" || what == "inf" && !negative
}

// encodeDelete fills key and version; the tuple, if the row stays, with them and
// the mark.
func (p *tablePlan) encodeDelete(r *tableRow, s *tableScratch) error {
	r.kind = rowDelete
	if err := p.encodeKey(r, s); err != nil {
		return err
	}
	if p.gone < 0 {
		return nil
	}
	r.kind = rowMark
	if err := p.encodeVersion(r, s.row.Values); err != nil {
		return err
	}
	r.tuple = append(r.tuple, 0, 0)
	n := 0
	for i := range p.columns {
		c := &p.columns[i]
		v := sink.TimeValue(time.Now())
		if i != p.gone {
			if i != p.version && !p.inKey(i) {
				r.omit.add(c.optional)
				continue
			}
			v = s.row.Values[i]
		}
		at := len(r.tuple)
		r.tuple = append(r.tuple, 0, 0, 0, 0)
		var err error
		if p.text {
			r.tuple, err = c.enc.text(r.tuple, v)
		} else {
			r.tuple, err = c.enc.binary(r.tuple, v)
		}
		if err != nil {
			return c.refused(err)
		}
		binary.BigEndian.PutUint32(r.tuple[at:], uint32(len(r.tuple)-at-4))
		n++
	}
	binary.BigEndian.PutUint16(r.tuple, uint16(n))
	return nil
}

var (
	errTableNullKey   = errors.New("null, and it is part of the key")
	errTableNoVersion = errors.New("no version")
	errTableEndless   = errors.New("NaN or infinity as a version: no later one could replace the row")
	errTableAbsent    = errors.New("absent")
	errTableNothing   = errors.New("nothing to add")
)

func (c *tableColumn) refused(err error) error {
	return &sink.DecodeError{
		Class: sink.ClassValue, Field: fmt.Sprintf("column %q (%s)", c.name, c.from),
		Why: fmt.Sprintf("%v (%s)", err, c.typ), Err: err,
	}
}

// fusedID is the message ID where the target is the memory: what the table finds
// equal is one message.
func (p *tablePlan) fusedID(r *tableRow) semel.ID {
	if len(r.key) == 20 && len(p.key) == 1 && p.key[0].uuid {
		return semel.ID(r.key[4:])
	}
	return semel.IDOf(r.key)
}

// Apply writes the rows in the transaction. It leaves no row out: how many were
// sent and how many the server took must agree.
func (t *Table) Apply(ctx context.Context, tx inbox.Tx[pgx.Tx], items []*inbox.Item) error {
	p := t.plan.Load()
	own, _ := tx.(*inboxTx)
	rows, err := t.rows(p, own, items)
	if err != nil || len(rows) == 0 {
		return err
	}
	w := t.writer(p, tx)
	if err = w.write(ctx, rows); err != nil {
		if halt := p.unfilled(err); halt != nil {
			return halt
		}
		// Some types' input says syntax error of a value; our statements have none.
		if sqlState(err) == "42601" && p.readByServer() {
			err = semel.Permanent(err)
		}
	}
	if err != nil && w.tx != nil {
		return w.tx.note(err) // it may be judged after the transaction was mended
	}
	return err
}

func (w *tableWriter) write(ctx context.Context, rows []*tableRow) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	if err := w.fold(ctx, rows); err != nil {
		return err
	}
	switch {
	case w.p.write.keeps():
		return w.keep(ctx, rows)
	case len(w.p.key) > 0:
		return w.insertKeyed(ctx, rows)
	}
	return w.insert(ctx, rows)
}

func (t *Table) writer(p *tablePlan, tx inbox.Tx[pgx.Tx]) *tableWriter {
	own, _ := tx.(*inboxTx)
	conn := tx.DB().Conn()
	return &tableWriter{Table: t, p: p, conn: conn, pg: conn.PgConn(), tx: own}
}

// rows are those of the items that have one, made again if the plan is newer.
func (t *Table) rows(p *tablePlan, own *inboxTx, items []*inbox.Item) ([]*tableRow, error) {
	rows := make([]*tableRow, 0, len(items))
	for i, it := range items {
		if less, ok := it.Load.(*tableless); ok {
			return nil, semel.FailedAt(i, less.refusal(it))
		}
		r, ok := it.Load.(*tableRow)
		if !ok || r.plan != p {
			var s tableScratch
			t.decode(p, it, &s)
			r = it.Load.(*tableRow)
			if it.Err != nil {
				r.plan = nil // if this attempt fails it is read anew
				continue
			}
		}
		if it.Skip {
			it.Outcome = inbox.Skipped
			continue
		}
		if r.change != nil && own != nil {
			if err := own.rises(it, *r.change); err != nil {
				return nil, semel.FailedAt(i, err)
			}
		}
		if r.tombstone && r.kind == rowPut {
			it.Outcome = inbox.Skipped
			continue
		}
		if r.unknown > 0 && t.cfg.HaltUnknown {
			return nil, semel.FailedAt(i, &inbox.HaltError{
				Partition: it.Position().Log, Kind: "unknown-field",
				Why:  fmt.Sprintf("%s has %d fields without a column in %s", it.Position(), r.unknown, p.info.name),
				Hint: "map them, add columns, or say unknown_fields: ignore",
			})
		}
		r.item, r.at = it, i
		rows = append(rows, r)
	}
	return rows, nil
}

// tableWriter is one Apply.
type tableWriter struct {
	*Table
	p    *tablePlan
	conn *pgx.Conn
	pg   *pgconn.PgConn
	tx   *inboxTx // nil if it is somebody's around one
}

// tableAsked is what of a table was asked together with BEGIN.
type tableAsked struct {
	plan      *tablePlan
	types     []tableType
	unique    bool // its key is guarded by the index that the plan knows
	savepoint bool
}

// queue asks for the types of the columns, as [tableWriter.begin] does, and sets the
// savepoint unless admissions come first, which must not be undone with it.
func (a *tableAsked) queue(p *tablePlan, b *pgx.Batch) {
	var args []any
	if p.keyed() {
		args = append(args, p.unique.Load())
	}
	b.Queue(p.lookName(), args...).Query(func(rows pgx.Rows) error {
		a.unique = rows.Next()
		rows.Close()
		if rows.Err() == nil {
			a.plan, a.types = p, tableTypes(rows.FieldDescriptions())
		}
		return rows.Err()
	})
	if p.keyed() && p.memory != inbox.MemoryInbox {
		b.Queue("SAVEPOINT semel_table").Exec(func(pgconn.CommandTag) error { a.savepoint = true; return nil })
	}
}

func tableTypes(fields []pgconn.FieldDescription) []tableType {
	types := make([]tableType, len(fields))
	for i, f := range fields {
		types[i] = tableType{f.DataTypeOID, f.TypeModifier}
	}
	return types
}

// lookName is the name of the prepared question.
func (p *tablePlan) lookName() string {
	return "semel_look" + strings.TrimPrefix(p.staged, "semel_stage")
}

// looks is the connection on which a plan's question is prepared. It isn't by BEGIN's
// own pipeline: pgx prepares before lock_timeout is set, and would wait for a table
// that somebody has locked.
type looks struct {
	on   *pgx.Conn
	plan *tablePlan
}

// prepare is called in a transaction that has the lock on the table.
func (l *looks) prepare(ctx context.Context, c *pgx.Conn, p *tablePlan) error {
	if !p.selects || c.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement || l.on == c && l.plan == p {
		return nil
	}
	*l = looks{}
	// pgx would answer from what it has under that name, which may be the question to a
	// table that was made anew: the server refuses that for good (0A000).
	if err := c.Deallocate(ctx, p.lookName()); err != nil {
		return err
	}
	if _, err := c.Prepare(ctx, p.lookName(), p.look); err != nil {
		return err
	}
	*l = looks{c, p}
	return nil
}

// keyed says that rows may meet others of their key, which is found by trying.
func (p *tablePlan) keyed() bool { return !p.write.keeps() && len(p.key) > 0 }

// begin compares the types of the columns with those that rows were made for,
// and sets a savepoint where a key may be known, in one round trip, or in none where
// both went with BEGIN. To have the statement described takes a lock on the table
// until the transaction ends, so no ALTER can come between; it takes no privilege,
// and a tenth of the time of asking the catalog.
func (w *tableWriter) begin(ctx context.Context) error {
	var types []tableType
	savepoint, unique := w.p.keyed(), false
	if w.tx != nil && w.tx.asked.plan == w.p {
		types, unique = w.tx.asked.types, w.tx.asked.unique
		savepoint = savepoint && !w.tx.asked.savepoint
	}
	if types == nil || savepoint {
		d, stands, err := w.describe(ctx, savepoint)
		if err != nil {
			return err
		}
		types, unique = tableTypes(d.Fields), stands
		if w.tx != nil && w.tx.store.cfg.Table == w.Table {
			if err := w.tx.store.looks.prepare(ctx, w.tx.conn, w.p); err != nil {
				return err
			}
		}
	}
	if w.p.keyed() && !unique {
		if err := w.unguarded(ctx); err != nil {
			return err
		}
	}
	if slices.Equal(types, *w.p.shapes.Load()) {
		return nil
	}
	// After a restore types of the same name have other numbers.
	r := w.pg.ExecParams(ctx, w.p.fingerprint, nil, nil, nil, nil).Read()
	if r.Err != nil {
		return r.Err
	}
	if len(r.Rows) == 1 && string(r.Rows[0][0]) == w.p.types {
		w.p.shapes.Store(&types)
		return nil
	}
	return &inbox.HaltError{
		Kind: inbox.HaltTableChanged,
		Why:  fmt.Sprintf("columns of %s are not those that the route began with", w.p.info.name),
		Hint: "restart the route, so that it looks at the table again",
		Err:  &TableError{Table: w.p.info.name.String(), Why: "its columns have changed"},
	}
}

// unfilled halts where the server misses a column that nothing is mapped to: when the
// route began there was none that no row could do without, and it is no message's
// fault.
func (p *tablePlan) unfilled(err error) *inbox.HaltError {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "23502" || p.info.swallows || p.info.kind != "p" && pg.TableName != p.info.name.Name ||
		slices.ContainsFunc(p.columns, func(c tableColumn) bool { return c.name == pg.ColumnName }) {
		return nil
	}
	why := "it is NOT NULL without a default, and nothing is mapped to it"
	return &inbox.HaltError{
		Kind: inbox.HaltTableChanged, Why: fmt.Sprintf("column %q of %s: %s", pg.ColumnName, p.info.name, why),
		Hint: "give it a default, or map it, then restart the route", Err: &TableError{Table: p.info.name.String(), Column: pg.ColumnName, Why: why},
	}
}

// readByServer says whether there are columns of types that only the server reads.
func (p *tablePlan) readByServer() bool {
	return slices.ContainsFunc(p.columns, func(c tableColumn) bool { return c.typtype != "b" || !introspectComparable[c.oid] })
}

// unguarded looks for another index that guards the key: the one that was known may
// have been made anew. Without one every repeat would make a row.
func (w *tableWriter) unguarded(ctx context.Context) error {
	info, err := introspect(ctx, w.conn, w.p.info.name)
	if err != nil {
		return err
	}
	names := make([]string, len(w.p.key))
	for i, k := range w.p.key {
		names[i] = w.p.columns[k.column].name
	}
	index, why := info.uniqueOver(names)
	if index != 0 {
		w.p.unique.Store(index)
		return nil
	}
	if why == "" {
		why = "no unique index is over exactly (" + strings.Join(names, ", ") + ")"
	}
	return &inbox.HaltError{
		Kind: inbox.HaltTableChanged, Why: fmt.Sprintf("the key of %s isn't guarded any more: %s", w.p.info.name, why),
		Hint: "create the index again, then restart the route", Err: &TableError{Table: w.p.info.name.String(), Why: why},
	}
}

// describe answers the table's columns, and whether the index that guards the key
// stands, where there is one.
func (w *tableWriter) describe(ctx context.Context, savepoint bool) (d *pgconn.StatementDescription, unique bool, err error) {
	pipe := w.pg.StartPipeline(ctx)
	defer func() {
		if e := pipe.Close(); err == nil {
			err = e
		}
	}()
	pipe.SendPrepare("", w.p.shape, nil)
	if w.p.keyed() { // after the table is locked
		pipe.SendQueryParams(w.p.indexed, [][]byte{strconv.AppendUint(nil, uint64(w.p.unique.Load()), 10)}, []uint32{pgtype.OIDOID}, nil, nil)
	}
	if savepoint {
		pipe.SendQueryParams("SAVEPOINT semel_table", nil, nil, nil, nil)
	}
	if err := pipe.Sync(); err != nil {
		return nil, false, err
	}
	for {
		switch r, err := pipe.GetResults(); r := r.(type) {
		case *pgconn.StatementDescription:
			d = r
		case *pgconn.ResultReader:
			unique = r.NextRow() || unique
			if _, err := r.Close(); err != nil {
				return nil, false, err
			}
		case *pgconn.PipelineSync:
			return d, unique, nil
		default:
			return nil, false, err
		}
	}
}

// complete compares what was sent with what the server took.
func (w *tableWriter) complete(sent int, took int64) error {
	if int64(sent) == took {
		return nil
	}
	return &inbox.HaltError{
		Kind: "rows-swallowed",
		Why:  fmt.Sprintf("%s took %d of %d rows without an error", w.p.info.name, took, sent),
		Hint: "a BEFORE trigger that returns NULL swallows rows, and one that changes the key hides them; filter, or change it, in the route instead",
	}
}

// insert writes rows that nothing is known to conflict with.
func (w *tableWriter) insert(ctx context.Context, rows []*tableRow) error {
	if w.p.info.itself && len(rows) > 1 {
		return w.insertAlone(ctx, rows)
	}
	for omit, group := range tableGroups(rows) {
		var took int64
		var err error
		if w.p.direct {
			took, err = copyInto(ctx, w.pg, w.p.into(omit), group, w.p.text)
		} else {
			took, err = w.statement(ctx, group, omit, "", nil)
		}
		if err != nil {
			return err
		}
		if err := w.complete(len(group), took); err != nil {
			return err
		}
	}
	return nil
}

// insertAlone inserts one row after the other, as they came: a row may need one that
// came before it, and not one that comes after it, in whatever batch.
func (w *tableWriter) insertAlone(ctx context.Context, rows []*tableRow) error {
	if w.p.info.deferrable {
		if err := w.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			return err
		}
	}
	for _, r := range slices.SortedFunc(slices.Values(rows), func(a, b *tableRow) int { return a.at - b.at }) {
		if err := w.insert(ctx, []*tableRow{r}); err != nil {
			return err
		}
	}
	return nil
}

// tableGroups yields rows that leave out the same columns, in order; nearly
// always that is all of them.
func tableGroups(rows []*tableRow) func(yield func(columnSet, []*tableRow) bool) {
	return func(yield func(columnSet, []*tableRow) bool) {
		for len(rows) > 0 {
			omit := rows[0].omit
			n := 1
			for n < len(rows) && rows[n].omit == omit {
				n++
			}
			if n == len(rows) {
				yield(omit, rows)
				return
			}
			var group, others []*tableRow
			for _, r := range rows {
				if r.omit == omit {
					group = append(group, r)
				} else {
					others = append(others, r)
				}
			}
			if !yield(omit, group) {
				return
			}
			rows = others
		}
	}
}

// tableValues bounds the values that go as parameters of one statement; more
// rows are worth a temporary table. The protocol's own bound is 65,535.
const tableValues = 2000

// statement writes by INSERT: where COPY isn't allowed, or existing rows are
// replaced. It answers the number of rows that took effect; returned is called
// with the columns that the suffix returns, in binary form.
func (w *tableWriter) statement(ctx context.Context, rows []*tableRow, omit columnSet, suffix string, returned func([][]byte)) (int64, error) {
	var rr *pgconn.ResultReader
	if n := len(rows) * len(w.p.columns); n <= tableValues {
		sql, values := w.p.values(rows, omit)
		format := []int16{1}
		if w.p.text {
			format[0] = 0
		}
		rr = w.pg.ExecParams(ctx, sql+suffix, values, nil, format, []int16{1})
	} else {
		if err := w.staging(ctx, rows, omit); err != nil {
			return 0, err
		}
		// The temporary table is read as it was written, in key order, and locks
		// are taken in that order.
		list := w.p.list(omit)
		rr = w.pg.ExecParams(ctx, w.p.insertInto(omit)+" SELECT "+list+" FROM pg_temp."+w.p.staged+suffix, nil, nil, nil, []int16{1})
	}
	for rr.NextRow() {
		if returned != nil {
			returned(rr.Values())
		}
	}
	tag, err := rr.Close()
	return tag.RowsAffected(), err
}

// staging sends rows to a temporary table, bound to the transaction: nothing is
// left in the session, which may be a pooler's.
func (w *tableWriter) staging(ctx context.Context, rows []*tableRow, omit columnSet) error {
	if err := w.exec(ctx, w.p.stage); err != nil {
		return err
	}
	took, err := copyInto(ctx, w.pg, "pg_temp."+w.p.staged+" ("+w.p.list(omit)+")", rows, w.p.text)
	if err != nil {
		return err
	}
	return w.complete(len(rows), took)
}

// values is a statement with a parameter for each value. Types are left to the
// server, which takes those of the columns.
func (p *tablePlan) values(rows []*tableRow, omit columnSet) (string, [][]byte) {
	var b strings.Builder
	b.WriteString(p.insertInto(omit))
	b.WriteString(" VALUES ")
	var values [][]byte
	for i, r := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		open := byte('(')
		copyFields(r.tuple, func(field []byte) {
			values = append(values, field)
			b.WriteByte(open)
			open = ','
			fmt.Fprintf(&b, "$%d", len(values))
		})
		b.WriteByte(')')
	}
	return b.String(), values
}
