package postgres

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/nearest"
	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/sink"
)

// tablePlan is what a route and a table make together. It doesn't change.
type tablePlan struct {
	info    *introspectTable
	mapping *sink.Mapping
	write   WriteMode
	columns []tableColumn
	text    bool // some type's binary form isn't known: COPY in text form
	direct  bool // COPY goes into the table itself
	key     []tableKey
	version int // column, or -1
	gone    int // the column that marks deleted rows, the last; or -1
	newer   func(a, b []byte) bool
	kind    rowKind // of messages with a value
	strict  bool    // a field that is absent is refused
	order   tableOrder
	memory  inbox.Memory
	why     string // why that memory
	doubt   string // whether the ID tells messages apart; "": it may
	fused   bool   // the target's key is the message ID

	fingerprint, types string                      // see introspectTable.fingerprint
	shape              string                      // is described as the columns are
	look               string                      // the same as a query of no rows, if it selects
	selects            bool                        // we may read the table
	shapes             atomic.Pointer[[]tableType] // what it was described as
	indexed            string                      // asks whether the index with number $1 guards the key
	unique             atomic.Uint32               // its number
	stage, staged      string                      // makes an empty temporary table; its name
}

// tableType is a type and its modifier, under all domains.
type tableType struct {
	oid uint32
	mod int32
}

type tableColumn struct {
	*introspectColumn
	from     sink.Path
	enc      encoder
	optional int  // its place in a columnSet, if a row may leave the column out; else 0
	lenient  bool // an absent field leaves it out
	adds     bool // a message adds to what is stored
}

// tableKey is a column of the key.
type tableKey struct {
	column int
	tableKeyType
}

// tableKeyType is a type whose values can be told apart by their bytes.
type tableKeyType struct {
	elem  uint32       // of arrays of it
	array string       // the cast of such an array
	canon func([]byte) // makes equal values equal bytes
	one   bool         // each value has one spelling, but for zones and the like
	fold  string       // the expression of it that has; "": the bytes tell
	as    string       // the cast to a type that has an equality; "": it has
	uuid  bool
}

// planner collects a route's mistakes.
type tablePlanner struct {
	*tablePlan
	cfg  TableConfig
	errs []error
}

func (b *tablePlanner) wrong(column, hint, why string, args ...any) {
	b.errs = append(b.errs, &TableError{Table: b.info.name.String(), Column: column, Why: fmt.Sprintf(why, args...), Hint: hint})
}

func newTablePlan(info *introspectTable, cfg TableConfig) (*tablePlan, error) {
	b := &tablePlanner{tablePlan: &tablePlan{info: info, write: cfg.Write, version: -1, gone: -1, direct: !info.rls}, cfg: cfg}
	switch cfg.Write {
	case WriteAppend, WriteInsert, WriteUpsert, WriteMirror:
	default:
		b.wrong("", "append, insert, upsert or mirror", "no such way to write: %q", cfg.Write)
		return nil, b.errs[0]
	}
	b.pickColumns()
	if len(b.errs) == 0 {
		b.pickVersion()
		b.pickKey()
	}
	if len(b.errs) == 0 {
		b.pickPatch()
		b.pickDeleted()
		b.order = info.order(b.columns)
	}
	if len(b.errs) == 0 {
		b.pickMemory()
		b.makeMapping()
		b.checkRest()
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	b.makeSQL()
	return b.tablePlan, nil
}

// pickColumns finds the mapped columns, in the table's order, and their
// encoders.
func (b *tablePlanner) pickColumns() {
	for _, name := range slices.Sorted(maps.Keys(b.cfg.Columns)) {
		if c := b.info.column(name); c == nil {
			b.missing(name)
		} else if c.generated {
			b.wrong(name, "take it out of the mapping", "it is generated from other columns")
		}
	}
	for name, unit := range b.cfg.Epoch {
		c := b.info.column(name)
		switch {
		case c == nil:
			b.missing(name)
		case !slices.Contains([]uint32{pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID}, c.oid):
			b.wrong(name, "times.epoch is for timestamptz, timestamp and date", "an epoch unit for %s", c.typ)
		case !slices.Contains([]EpochUnit{EpochSeconds, EpochMillis, EpochMicros, EpochNanos}, unit):
			b.wrong(name, "s, ms, us or ns", "no such epoch unit: %q", unit)
		}
	}
	enc := encodeConfig{times: encodeTimes{b.cfg.Zone, b.cfg.Epoch}, strip: b.cfg.StripNUL}
	optional := 0
	for i := range b.info.columns {
		c := tableColumn{introspectColumn: &b.info.columns[i]}
		if b.cfg.Columns == nil {
			if c.generated || c.identity == "a" || c.name == b.cfg.Deleted {
				continue
			}
			c.from = sink.Path{Root: sink.RootValue, Names: []string{c.name}}
		} else {
			expr, ok := b.cfg.Columns[c.name]
			if !ok {
				continue
			}
			var err error
			if c.from, err = sink.ParseExpr(expr); err != nil {
				b.wrong(c.name, "", "%v", err)
				continue
			}
		}
		var fast bool
		if c.enc, fast = newEncoder(c.introspectColumn, enc); !fast {
			b.text = true
		}
		if c.notNull && (c.hasDefault || c.identity != "") {
			optional++
			c.optional, c.lenient = optional, true
		}
		b.checkSource(&c)
		b.columns = append(b.columns, c)
	}
	if len(b.columns) == 0 && len(b.errs) == 0 {
		b.wrong("", "", "no column is mapped")
	}
	b.checkOptional(optional)
}

func (b *tablePlanner) missing(name string) {
	names := make([]string, len(b.info.columns))
	for i, c := range b.info.columns {
		names[i] = c.name
	}
	hint := ""
	if near := nearest.Name(name, names); near != "" {
		hint = "there is " + sqlname.Quote(near)
	}
	b.errs = append(b.errs, &TableError{Table: b.info.name.String(), Column: name, Why: "it does not exist", Hint: hint, Missing: true})
}

// checkSource refuses what no message could fill.
func (b *tablePlanner) checkSource(c *tableColumn) {
	if c.from.IsComputed() {
		b.checkComputed(c)
		return
	}
	whole := c.from.Root == sink.RootValue && len(c.from.Names) == 0
	switch c.enc.(type) {
	case encodeText, encodeAny:
		return
	case encodeJSON:
		whole = whole && b.cfg.Raw
	case encodeInt, encodeNumeric, encodeFloat:
		whole = whole || c.from.Root == sink.RootTimestamp
	case encodeTimestamp, encodeDate:
		if (c.from.Root == sink.RootOffset || c.from.Root == sink.RootPartition) && b.cfg.Epoch[c.name] == "" {
			whole = true
		}
	case encodeBool, encodeUUID, encodeBytea, encodeClock, encodeArray:
		if _, bytes := c.enc.(encodeBytea); bytes && b.cfg.Raw {
			whole = false
		}
		switch c.from.Root {
		case sink.RootTimestamp, sink.RootOffset, sink.RootPartition:
			whole = true
		}
	}
	if whole {
		b.wrong(c.name, "", "%s can't take %s", c.typ, c.from)
	}
}

// checkComputed refuses numbers that went through a double where the column is
// exact.
func (b *tablePlanner) checkComputed(c *tableColumn) {
	exact := c.from.MayBeNumber()
	enc := c.enc
	if a, ok := enc.(encodeArray); ok {
		enc, exact = a.elem, true
	}
	switch enc.(type) {
	case encodeInt, encodeNumeric, encodeTimestamp, encodeDate, encodeClock:
	default:
		return
	}
	if exact {
		b.wrong(c.name, "select it without computing; string(…) around what is a text; or a column of double precision", "%s is exact, and %s may be a number, which went through a double", c.typ, c.from)
	}
}

func (b *tablePlanner) index(column string) int {
	return slices.IndexFunc(b.columns, func(c tableColumn) bool { return c.name == column })
}

func (b *tablePlanner) pickVersion() {
	if b.cfg.Version == "" {
		return
	}
	path, err := sink.ParsePath(b.cfg.Version)
	if err != nil {
		b.wrong("", "", "version: %v", err)
		return
	}
	if !b.write.keeps() {
		b.wrong("", "version is for write: upsert and mirror", "version with write: %s", b.write)
		return
	}
	b.version = slices.IndexFunc(b.columns, func(c tableColumn) bool { return c.from.Equal(path) })
	if b.version < 0 {
		b.wrong("", "map a column to it: the stored version is compared", "no column takes the version %s", path)
		return
	}
	if b.newer = tableNewer(b.columns[b.version].oid); b.newer == nil {
		b.wrong(b.columns[b.version].name, "use an integer, numeric, date or timestamp", "%s can't be a version", b.columns[b.version].typ)
	}
}

// pickKey decides what conflicts: the key that an insert may meet and an upsert
// replaces.
func (b *tablePlanner) pickKey() {
	if b.write == WriteAppend {
		return
	}
	if b.info.hides {
		b.wrong("", "a role with BYPASSRLS, or a policy FOR SELECT USING (true) for this one", "row security may hide rows from this role: a key that is there would not be found")
		return
	}
	names := b.cfg.PrimaryKey
	for _, n := range names {
		if b.info.column(n) == nil {
			b.missing(n)
			return
		}
	}
	if names == nil {
		names = b.info.primaryKey()
		unmapped := func(n string) bool { return b.index(n) < 0 }
		if b.write == WriteInsert && slices.ContainsFunc(names, unmapped) {
			return // the database makes the key: nothing to meet
		}
	}
	if len(names) == 0 {
		if b.write.keeps() {
			b.wrong("", "name one with primary_key, over a unique index", "it has no primary key, and %s needs one", b.write)
		}
		return
	}
	index, why := b.info.uniqueOver(names)
	if index == 0 {
		if why == "" {
			why = "no unique index is over exactly these columns"
		}
		b.wrong("", "", "key (%s): %s", strings.Join(names, ", "), why)
		return
	}
	b.unique.Store(index)
	for _, n := range names {
		i := b.index(n)
		if i < 0 {
			b.wrong(n, "map it", "it is part of the key, and nothing is mapped to it")
			continue
		}
		c := &b.columns[i]
		kt, ok := tableKeyTypeOf(c.introspectColumn)
		if !ok {
			b.wrong(n, "a key can be of integers, numeric, uuid, text, times, boolean, bytea, network addresses, bits or an enum", "%s in a key: values can't be told apart exactly", c.typ)
			continue
		}
		c.optional, c.lenient = 0, false
		b.key = append(b.key, tableKey{i, kt})
	}
}

// pickMemory decides what recognises a repeat. The target can do it only if its
// key is exactly the ID.
func (b *tablePlanner) pickMemory() {
	switch {
	case len(b.cfg.ID) == 0 && !b.cfg.Identified:
		b.memory, b.why = inbox.MemoryPosition, "messages have no ID"
		return
	case len(b.cfg.ID) == 0:
		b.memory, b.why = inbox.MemoryInbox, "the ID is no column of the table"
		return
	}
	b.memory, b.why = inbox.MemoryInbox, "no unique key of the table is exactly the ID"
	inKey := len(b.key) > 0
	var id idParts
	for _, expr := range b.cfg.ID {
		path, err := sink.ParsePath(expr)
		if err != nil {
			b.wrong("", "", "id: %v", err)
			return
		}
		inKey = inKey && slices.ContainsFunc(b.key, func(k tableKey) bool { return b.columns[k.column].from.Equal(path) })
		id.add(b, path)
	}
	if b.eats(id) {
		return
	}
	same := inKey && len(b.key) == len(b.cfg.ID) && !b.cfg.SeveralTopics
	if !same || b.write != WriteInsert {
		return
	}
	for _, k := range b.key {
		c := b.columns[k.column]
		if !c.notNull {
			b.why = fmt.Sprintf("the key is the ID, but column %s may be null", sqlname.Quote(c.name))
			return
		}
		if !k.one {
			b.why = fmt.Sprintf("the key is the ID, but column %s (%s) takes different IDs for one", sqlname.Quote(c.name), c.typ)
			return
		}
	}
	b.memory, b.fused, b.why = inbox.MemoryTarget, true, "its key ("+b.keyNames()+") is exactly the ID"
	for _, k := range b.key {
		if e, is := b.columns[k.column].enc.(encodeInt); is {
			b.columns[k.column].enc = encodePlain{e}
		}
	}
}

// idParts are what a message ID is made of.
type idParts struct {
	key, few, kinds []string
	others          bool
}

func (id *idParts) add(b *tablePlanner, p sink.Path) {
	ofKind := func(c tableColumn) bool {
		after := p.Root == sink.RootEnvelope && len(p.Names) > 1 && p.Names[0] == "after" && c.from.Root == sink.RootValue && slices.Equal(p.Names[1:], c.from.Names)
		return (c.from.Equal(p) || after) && (c.typtype == "e" || c.oid == pgtype.BoolOID)
	}
	switch {
	case slices.ContainsFunc(b.key, func(k tableKey) bool { return b.columns[k.column].isKeyOf(p) }):
		id.key = append(id.key, p.String())
	case p.IsFew():
		id.few = append(id.few, p.String())
	case slices.ContainsFunc(b.columns, ofKind):
		id.kinds = append(id.kinds, p.String())
	default:
		id.others = true
	}
}

// eats refuses an ID that is the same in messages that are no repeats. Where it may be
// meant (an order has each status once) that is left to be said.
func (b *tablePlanner) eats(id idParts) bool {
	const hint = "identify messages by what differs between two updates of a row"
	few := strings.Join(id.few, ", ")
	switch {
	case id.others:
		return false
	case len(id.key)+len(id.kinds) == 0:
		b.wrong("", "identify messages by what differs between any two of them", "the message ID takes few values (%s): nearly every message would be a duplicate", few)
	case !b.write.keeps() || len(b.key) == 0:
		return false
	case len(id.few)+len(id.kinds) == 0:
		b.wrong("", hint, "the message ID is the key, or a part of it: every later update of a row would be a duplicate")
	case len(id.kinds) == 0:
		b.wrong("", hint, "the message ID is of the row's key and what takes few values (%s): later updates of a row would be a duplicate", few)
	default:
		b.doubt = fmt.Sprintf("two updates of a row with the same %s have one message ID: the second is taken for a repeat", strings.Join(append(id.kinds, id.few...), ", "))
		return false
	}
	return true
}

// isKeyOf says whether a column of the key takes a path, or what is the same in
// every message of the row: the message's key, by which deletions find it, and the
// row in a change event.
func (c *tableColumn) isKeyOf(p sink.Path) bool {
	names := c.from.Names
	switch {
	case c.from.Equal(p):
		return true
	case c.from.Root != sink.RootValue || len(names) == 0:
		return false
	case p.Root == sink.RootKey:
		return len(p.Names) == 0 || slices.Equal(p.Names, names) || slices.Equal(p.Names, []string{c.name})
	case p.Root == sink.RootEnvelope && len(p.Names) > 1 && (p.Names[0] == "after" || p.Names[0] == "before"):
		return slices.Equal(p.Names[1:], names)
	}
	return false
}

// pickPatch decides what of a row a message leaves as it is, or adds to.
func (b *tablePlanner) pickPatch() {
	b.strict = b.cfg.Absent == AbsentError
	patch := b.cfg.Absent == AbsentKeep || len(b.cfg.Combine) > 0
	switch {
	case !patch:
		return
	case !b.write.keeps():
		b.wrong("", "write: upsert", "write: %s replaces and adds to nothing that is stored", b.write)
		return
	case b.version >= 0:
		b.wrong("", "without a version the order of the partition counts", "a version with what is stored: a late patch or delta would be dropped, though nothing replaces it")
		return
	case len(b.cfg.Combine) > 0 && b.write == WriteMirror:
		b.wrong("", "write: upsert", "write: mirror holds what another table holds: there is nothing to add to")
		return
	}
	b.kind = rowPatch
	for _, name := range b.cfg.Combine {
		i := b.index(name)
		switch {
		case i < 0:
			b.wrong(name, "map it", "nothing is mapped to it, so there is nothing to add")
		case b.inKey(i):
			b.wrong(name, "", "it is part of the key")
		case !slices.Contains([]uint32{pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID}, b.columns[i].oid):
			b.wrong(name, "use an integer or numeric: sums of others depend on the order", "%s can't be added to exactly", b.columns[i].typ)
		default:
			b.columns[i].adds = true
			b.columns[i].optional, b.columns[i].lenient = 0, false // of no field nothing can be added
		}
	}
	if b.cfg.Absent == AbsentKeep {
		b.numberColumns(func(c *tableColumn) { c.lenient = true })
	}
}

// numberColumns lets rows leave out any column but those of the key.
func (b *tablePlanner) numberColumns(each func(*tableColumn)) {
	optional := 0
	for i := range b.columns {
		if b.inKey(i) {
			continue
		}
		optional++
		b.columns[i].optional = optional
		each(&b.columns[i])
	}
	b.checkOptional(optional)
}

func (b *tablePlanner) checkOptional(n int) {
	if n > maxOptional {
		b.wrong("", "absent: set-null, or fewer columns that are NOT NULL with a default", "rows may leave out %d columns, of these %d", maxOptional, n)
	}
}

// columnSet are columns that a row leaves out, by [tableColumn.optional].
type columnSet [maxOptional / 64]uint64

const maxOptional = 512

func (s *columnSet) has(column int) bool {
	column--
	return column >= 0 && column < maxOptional && s[column/64]&(1<<(column%64)) != 0
}

func (s *columnSet) add(column int) {
	if column--; column >= 0 {
		s[column/64] |= 1 << (column % 64)
	}
}

func (s *columnSet) addOthers(than columnSet) {
	for i, bits := range than {
		s[i] |= ^bits
	}
}

func (s *columnSet) meets(other columnSet) bool {
	for i, bits := range other {
		if s[i]&bits != 0 {
			return true
		}
	}
	return false
}

// pickDeleted finds the column that marks deleted rows.
func (b *tablePlanner) pickDeleted() {
	mirrors := b.write == WriteMirror && b.cfg.Tombstone == TombstoneDelete
	switch {
	case b.cfg.Tombstone == TombstoneDelete && b.write != WriteMirror:
		b.wrong("", "write: mirror", "write: %s deletes nothing", b.write)
		return
	case b.cfg.Deleted == "" && mirrors && b.version >= 0:
		b.wrong("", "deleted: a column of type timestamptz, NULL in rows that live", "a deletion under a version has to leave its row, or an older message that comes late would bring it back")
		return
	case b.cfg.Deleted == "":
		return
	case !mirrors || b.version < 0:
		b.wrong(b.cfg.Deleted, "without a version rows are really deleted, in the order of the partition", "a mark for deleted rows is for write: mirror with a version")
		return
	}
	info := b.info.column(b.cfg.Deleted)
	switch {
	case info == nil:
		b.missing(b.cfg.Deleted)
		return
	case b.index(info.name) >= 0:
		b.wrong(info.name, "take it out of the mapping", "it marks deleted rows, and takes nothing from messages")
		return
	case info.oid != pgtype.TimestamptzOID:
		b.wrong(info.name, "timestamp with time zone", "%s can't hold the time of a deletion", info.typ)
		return
	case info.notNull:
		b.wrong(info.name, "allow NULL", "it is NOT NULL, and rows that live have no time of deletion")
		return
	}
	for _, c := range b.info.columns {
		i := b.index(c.name)
		if c.notNull && !c.hasDefault && c.identity == "" && !c.generated && i != b.version && (i < 0 || !b.inKey(i)) {
			b.wrong(c.name, "allow NULL, or give it a default", "it is NOT NULL without a default: a deletion that comes before its row makes one of key, version and mark alone")
		}
	}
	c := tableColumn{introspectColumn: info}
	c.enc, _ = newEncoder(info, encodeConfig{})
	b.gone = len(b.columns)
	b.columns = append(b.columns, c)
	lenient := func(*tableColumn) {}
	b.numberColumns(lenient)
}

func (p *tablePlan) inKey(column int) bool {
	return slices.ContainsFunc(p.key, func(k tableKey) bool { return k.column == column })
}

// sets says whether a row that is there takes a column from the row that replaces or
// patches it. Of its key it takes another spelling of what is equal (a citext in
// capitals, 1.00 for 1.0): the last one, as of any other column. A batch writes no
// more than that.
func (p *tablePlan) sets(column int) bool {
	if p.columns[column].identity == "a" {
		return false
	}
	for _, k := range p.key {
		if k.column == column {
			return !k.one
		}
	}
	return true
}

func (b *tablePlanner) makeMapping() {
	cfg := sink.MappingConfig{KeyFormat: b.cfg.KeyFormat, Raw: b.cfg.Raw, Open: b.cfg.Open, TopicInID: b.cfg.SeveralTopics, KeepUnsent: b.cfg.Absent == AbsentKeep, Typed: b.cfg.Fit != nil && b.cfg.Fit.Evolve}
	for i, c := range b.columns {
		if i != b.gone {
			cfg.Columns = append(cfg.Columns, sink.Column{Name: c.name, From: c.from})
		}
	}
	if b.cfg.Tombstone == TombstoneDelete {
		for _, k := range b.key {
			cfg.KeyColumns = append(cfg.KeyColumns, b.columns[k.column].name)
		}
	}
	if b.cfg.Filter != "" {
		var err error
		if cfg.Filter, err = sink.ParseFilter(b.cfg.Filter); err != nil {
			b.wrong("", "", "filter: %v", err)
			return
		}
	}
	for _, expr := range b.cfg.ID {
		path, err := sink.ParsePath(expr)
		if err != nil {
			b.wrong("", "", "id: %v", err)
			return
		}
		cfg.ID = append(cfg.ID, path)
	}
	var err error
	if b.mapping, err = sink.NewMapping(cfg); err != nil {
		b.wrong("", "", "%v", err)
	}
}

// checkRest finds columns that every row would fail on.
func (b *tablePlanner) checkRest() {
	if b.info.swallows {
		return // the trigger may fill them
	}
	for _, c := range b.info.columns {
		if c.notNull && !c.hasDefault && c.identity == "" && !c.generated && b.index(c.name) < 0 {
			b.wrong(c.name, "map it, or give it a default", "it is NOT NULL without a default, and nothing is mapped to it")
		}
	}
}

func (b *tablePlanner) makeSQL() {
	plain := make([]introspectColumn, len(b.columns))
	for i, c := range b.columns {
		plain[i] = *c.introspectColumn
	}
	b.fingerprint, b.types = b.info.fingerprint(plain)
	b.shape = "SELECT " + b.list(columnSet{}) + " FROM " + b.info.name.sql()
	b.look = "SELECT " + b.list(columnSet{}) + " FROM ONLY " + b.info.name.sql() + " LIMIT 0"
	if b.keyed() {
		// ON CONFLICT would miss an index that is gone; COPY takes the rows.
		index := "FROM pg_catalog.pg_index AS i WHERE i.indexrelid = $1 AND i.indrelid = " + introspectLiteral(b.info.name.sql()) + "::regclass AND i.indisunique AND i.indisvalid"
		b.indexed = "SELECT " + index
		b.look = "SELECT " + b.list(columnSet{}) + " FROM (SELECT " + index + ") AS i LEFT JOIN ONLY " + b.info.name.sql() + " AS t ON false"
	}
	b.selects = b.info.selects
	types := make([]tableType, len(plain))
	for i, c := range plain {
		types[i] = tableType{c.oid, c.mod}
	}
	b.shapes.Store(&types)
	// One transaction may write to several tables.
	name := fnv.New64a()
	name.Write([]byte(b.shape + b.types))
	b.staged = fmt.Sprintf("semel_stage_%016x", name.Sum64())
	b.stage = fmt.Sprintf("CREATE TEMP TABLE IF NOT EXISTS %[1]s ON COMMIT DROP AS SELECT %[2]s FROM %[3]s WITH NO DATA; TRUNCATE pg_temp.%[1]s",
		b.staged, b.list(columnSet{}), b.info.name.sql())
}

// list names the columns of rows that leave some out.
func (p *tablePlan) list(omit columnSet) string {
	var names []string
	for _, c := range p.columns {
		if !omit.has(c.optional) {
			names = append(names, pgx.Identifier{c.name}.Sanitize())
		}
	}
	return strings.Join(names, ", ")
}

func (p *tablePlan) into(omit columnSet) string { return p.info.name.sql() + " (" + p.list(omit) + ")" }

func (p *tablePlan) insertInto(omit columnSet) string {
	sql := "INSERT INTO " + p.info.name.sql() + " AS t (" + p.list(omit) + ")"
	if slices.ContainsFunc(p.columns, func(c tableColumn) bool { return c.identity == "a" }) {
		sql += " OVERRIDING SYSTEM VALUE" // COPY does so by itself
	}
	return sql
}

// onConflict replaces rows; each statement locks the rows of the key in the order
// in which they come.
func (p *tablePlan) onConflict(omit columnSet) string {
	var keys, set []string
	for _, k := range p.key {
		keys = append(keys, pgx.Identifier{p.columns[k.column].name}.Sanitize())
	}
	for i, c := range p.columns {
		if !omit.has(c.optional) && p.sets(i) {
			name := pgx.Identifier{c.name}.Sanitize()
			set = append(set, name+" = excluded."+name)
		}
	}
	if set == nil { // a row of its key alone
		set = []string{keys[0] + " = excluded." + keys[0]}
	}
	sql := " ON CONFLICT (" + strings.Join(keys, ", ") + ") DO UPDATE SET " + strings.Join(set, ", ")
	if p.version < 0 {
		return sql
	}
	v := pgx.Identifier{p.columns[p.version].name}.Sanitize()
	return sql + " WHERE t." + v + " IS NULL OR t." + v + " < excluded." + v + " RETURNING " + p.keyOut()
}

// Path says how rows get into the table, for explain.
func (t *Table) Path() string {
	p := t.plan.Load()
	form := "binary"
	if p.text {
		form = "text"
	}
	straight := fmt.Sprintf("COPY straight into %s (%s)", p.info.name, form)
	if !p.direct {
		straight = "INSERT, since row-level security forbids COPY"
	}
	switch {
	case p.kind == rowPatch:
		return fmt.Sprintf("existing rows are locked in key order and updated, the others inserted where nobody was faster; many rows by COPY (%s) to a temporary table", form)
	case p.write.keeps():
		guard := ""
		if p.version >= 0 {
			guard = " where the version is greater"
		}
		return fmt.Sprintf("the newest of each key, sorted, by COPY (%s) to a temporary table, then INSERT … ON CONFLICT DO UPDATE%s; few rows without the temporary table", form, guard)
	case len(p.key) > 0:
		return straight + fmt.Sprintf(", sorted by (%s); while keys are met that exist, they are asked for first", p.keyNames())
	}
	return straight
}

// keyOut are the key columns of the table t, as [tablePlan.appendKey] reads them.
func (p *tablePlan) keyOut() string {
	var out []string
	for _, k := range p.key {
		out = append(out, k.out("t."+pgx.Identifier{p.columns[k.column].name}.Sanitize()))
	}
	return strings.Join(out, ", ")
}

func (p *tablePlan) keyNames() string {
	var names []string
	for _, k := range p.key {
		names = append(names, sqlname.Quote(p.columns[k.column].name))
	}
	return strings.Join(names, ", ")
}

// IDDoubt says what makes it doubtful that message IDs tell messages apart; "" if
// nothing does.
func (t *Table) IDDoubt() string { return t.plan.Load().doubt }

// MemoryWhy says in a few words why [Table.Memory] is what it is.
func (t *Table) MemoryWhy() string { return t.plan.Load().why }

// Describe tells what goes where, one fact a line, for explain and check.
func (t *Table) Describe() []string {
	p := t.plan.Load()
	out := []string{
		fmt.Sprintf("table %s, write %s", p.info.name, p.write),
		"path: " + t.Path(),
	}
	switch p.memory {
	case inbox.MemoryPosition:
		out = append(out, "memory: the watermark alone")
	case inbox.MemoryTarget:
		out = append(out, "memory: the table's own unique index over ("+p.keyNames()+")")
	default:
		out = append(out, "memory: the inbox")
	}
	for i, c := range p.columns {
		line := fmt.Sprintf("column %s %s <- %s", sqlname.Quote(c.name), c.typ, c.from)
		switch {
		case c.adds:
			line += ", added to what is stored"
		case i == p.gone:
			line = fmt.Sprintf("column %s %s marks deleted rows", sqlname.Quote(c.name), c.typ)
		case c.lenient && p.kind == rowPatch:
			line += ", as it is where absent"
		case c.lenient:
			line += ", default where absent"
		}
		if _, any := c.enc.(encodeAny); any {
			line += ", read by the server"
		}
		out = append(out, line)
	}
	if p.info.triggers > 0 {
		out = append(out, fmt.Sprintf("%d triggers", p.info.triggers))
	}
	if p.info.foreignKeys > 0 {
		out = append(out, fmt.Sprintf("%d foreign keys", p.info.foreignKeys))
	}
	if p.info.kind == "p" {
		out = append(out, "partitioned")
	}
	return out
}
