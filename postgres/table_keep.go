package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// keep brings keys to their last states, as if the rows came one by one, wherever
// batches are cut. Which states have to be written for that, and in which order,
// depends on who may refuse one: see [tableOrder].
func (w *tableWriter) keep(ctx context.Context, rows []*tableRow) error {
	if w.p.info.deferrable {
		// One by one each would be looked at when its transaction ends.
		if err := w.exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			return err
		}
	}
	k := &keeper{tableWriter: w}
	joined := func(r *tableRow) bool { return r.kind == rowPatch || r.kind == rowMark }
	if w.p.order >= orderArrival || !slices.ContainsFunc(rows, joined) {
		return k.write(ctx, rows)
	}
	if err := w.exec(ctx, "SAVEPOINT semel_keep"); err != nil {
		return err
	}
	for k.lost = map[string]bool{}; ; k.there = nil {
		err := k.write(ctx, rows)
		if !errors.Is(err, errOvertaken) {
			if err != nil {
				return err
			}
			return w.atCommit(ctx, "RELEASE SAVEPOINT semel_keep") // before the watermark is moved, see insertKeyed
		}
		if err := w.exec(ctx, "ROLLBACK TO SAVEPOINT semel_keep"); err != nil {
			return err
		}
		for _, r := range rows {
			r.item.Outcome = inbox.Applied
		}
	}
}

// write is one try of keep.
func (k *keeper) write(ctx context.Context, rows []*tableRow) error {
	order := k.p.order
	doubtful := slices.ContainsFunc(rows, func(r *tableRow) bool { return r.doubtful || r.kind == rowMark })
	several := mixed(rows)
	if order == orderFree && !doubtful && !several {
		return k.reduced(ctx, rows)
	}
	byKey := slices.Clone(rows)
	sortByKey(byKey)
	if several || order >= orderArrival {
		if err := k.lock(ctx, byKey); err != nil {
			return err
		}
	}
	rounds := [][]*tableRow{byKey}
	switch {
	case order >= orderArrival:
		rounds = stretches(rows, order)
	case !repeated(byKey):
	case order == orderFree && !doubtful:
		return k.newest(ctx, rows, byKey)
	default:
		rounds = byTurn(byKey)
	}
	for _, round := range rounds {
		if err := k.round(ctx, round); err != nil {
			if len(round) == 1 && order >= orderArrival && refusesData(err) {
				return semel.FailedAt(round[0].at, err)
			}
			return err
		}
	}
	return nil
}

// keeper is one keep.
type keeper struct {
	*tableWriter
	there map[string]bool // keys that have a row, which is locked; nil: not asked
	// lost are the keys that others were faster to insert; nil: who is overtaken keeps
	// what it has in hand.
	lost map[string]bool
}

// errOvertaken says that somebody else has inserted a key since it was looked for.
var errOvertaken = errors.New("overtaken")

// mixed says whether rows take several statements, or one that takes no locks in
// the order in which rows are sent.
func mixed(rows []*tableRow) bool {
	for _, r := range rows {
		if r.kind != rowPut || r.omit != rows[0].omit {
			return true
		}
	}
	return false
}

func sameKey(a, b *tableRow) bool { return string(a.key) == string(b.key) }

// repeated says whether a key comes twice; rows are sorted.
func repeated(rows []*tableRow) bool {
	for i := 1; i < len(rows); i++ {
		if sameKey(rows[i-1], rows[i]) {
			return true
		}
	}
	return false
}

// byTurn parts sorted rows into rounds: the first of each key, the second ones,
// and so on.
func byTurn(rows []*tableRow) (rounds [][]*tableRow) {
	turn := 0
	for i, r := range rows {
		if turn++; i == 0 || !sameKey(rows[i-1], r) {
			turn = 0
		}
		if turn == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[turn] = append(rounds[turn], r)
	}
	return rounds
}

// stretches cuts rows where a key comes again, or what they do changes, and
// wherever a statement wouldn't go through them in their order.
func stretches(rows []*tableRow, order tableOrder) (out [][]*tableRow) {
	seen := map[string]bool{}
	from := 0
	for i, r := range rows {
		joined := r.kind == rowPatch || r.kind == rowMark
		if i > from && (order == orderAlone || joined || seen[string(r.key)] || r.kind != rows[i-1].kind || r.omit != rows[i-1].omit) {
			out = append(out, rows[from:i])
			clear(seen)
			from = i
		}
		seen[string(r.key)] = true
	}
	return append(out, rows[from:])
}

// lock takes the rows of the keys in key order, before statements that would take
// them in another: writers of the same keys wait for one another, never in a
// circle.
func (k *keeper) lock(ctx context.Context, rows []*tableRow) error {
	if k.there == nil {
		k.there = make(map[string]bool, len(rows))
	}
	ask := make([]*tableRow, 0, len(rows))
	for i, r := range rows {
		if i == 0 || !sameKey(rows[i-1], r) {
			ask = append(ask, r)
		}
	}
	var key []byte
	return k.query(ctx, k.p.probe(" FOR UPDATE"), k.p.keyArrays(ask), func(fields [][]byte) {
		key = k.p.appendKey(key[:0], fields)
		k.there[string(key)] = true
	})
}

// newest writes what is left of rows after each other where nobody judges what
// lies between; byKey are the same in key order.
func (k *keeper) newest(ctx context.Context, rows, byKey []*tableRow) error {
	if k.p.combines() {
		return k.sums(ctx, byKey)
	}
	// A deletion makes nothing of what its key had before, and is not made of it.
	last := map[string]*tableRow{}
	for _, r := range rows {
		if r.kind == rowDelete {
			last[string(r.key)] = r
		}
	}
	if len(last) > 0 {
		var deletes, puts []*tableRow
		ended := map[string]bool{}
		for _, r := range rows {
			switch end := last[string(r.key)]; {
			case r == end:
				deletes = append(deletes, r)
				ended[string(r.key)] = true
			case end != nil && !ended[string(r.key)]:
				r.item.Outcome = inbox.Superseded
			default:
				puts = append(puts, r)
			}
		}
		sortByKey(deletes)
		if err := k.delete(ctx, deletes); err != nil {
			return err
		}
		rows = puts
	}
	for _, round := range tableRounds(rows) {
		if err := k.reduced(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// sums has the server add up what rows of a key add, as long as they leave out the
// same columns.
func (k *keeper) sums(ctx context.Context, byKey []*tableRow) error {
	rounds := [][]*tableRow{byKey}
	if slices.ContainsFunc(byKey, func(r *tableRow) bool { return r.omit != byKey[0].omit }) {
		rounds = byTurn(byKey)
	}
	for _, round := range rounds {
		if err := k.round(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// round writes rows of different keys, or several of a key that are added up.
func (k *keeper) round(ctx context.Context, rows []*tableRow) error {
	groups := map[rowKind][]*tableRow{}
	for _, r := range rows {
		groups[r.kind] = append(groups[r.kind], r)
	}
	for kind := rowPut; kind <= rowMark; kind++ {
		of := groups[kind]
		if len(of) == 0 {
			continue
		}
		if kind == rowDelete {
			if err := k.delete(ctx, of); err != nil {
				return err
			}
			continue
		}
		for omit, group := range tableGroups(of) {
			var err error
			if kind == rowPut {
				var missed []*tableRow
				missed, err = k.upsertGroup(ctx, group, omit)
				for _, r := range missed {
					r.item.Outcome = inbox.Stale
				}
				k.have(group)
			} else {
				err = k.patch(ctx, group, omit)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// have notes that keys have a row.
func (k *keeper) have(rows []*tableRow) {
	if k.there == nil {
		return
	}
	for _, r := range rows {
		k.there[string(r.key)] = true
	}
}

// delete removes the rows of the keys that have one; a key without is as it should
// be.
func (k *keeper) delete(ctx context.Context, rows []*tableRow) error {
	var there []*tableRow
	for _, r := range rows {
		if k.there[string(r.key)] {
			there = append(there, r)
		}
	}
	if len(there) == 0 {
		return nil
	}
	took := 0
	err := k.planned(ctx, len(there), func() error {
		return k.query(ctx, k.p.deleteKeys(), k.p.keyArrays(there), func([][]byte) { took++ })
	})
	if err != nil {
		return err
	}
	for _, r := range there {
		delete(k.there, string(r.key))
	}
	return k.complete(len(there), int64(took))
}

func (p *tablePlan) deleteKeys() string {
	var casts, names []string
	for i, k := range p.key {
		casts = append(casts, fmt.Sprintf("$%d::%s", i+1, k.array))
		names = append(names, fmt.Sprintf("k%d", i))
	}
	var same []string
	for i, k := range p.key {
		same = append(same, k.same(pgx.Identifier{p.columns[k.column].name}.Sanitize(), fmt.Sprintf("k%d", i)))
	}
	return fmt.Sprintf("DELETE FROM %s AS t USING unnest(%s) AS u(%s) WHERE %s RETURNING 1::int2",
		p.info.name.sql(), strings.Join(casts, ", "), strings.Join(names, ", "), strings.Join(same, " AND "))
}

// tablePurge is how many marked rows are removed at a time.
const tablePurge = 1000

// purge removes rows that were marked before the window of $2 seconds. That ends
// where consumer $1 last moved: one that stands still forgets nothing.
func (p *tablePlan) purge(watermark string) string {
	gone := pgx.Identifier{p.columns[p.gone].name}.Sanitize()
	return fmt.Sprintf(`WITH old AS (
		SELECT o.tableoid, o.ctid FROM %[1]s AS o
		WHERE o.%[2]s < (SELECT least(now(), max(w.updated_at)) FROM %[4]s w WHERE w.consumer = $1 HAVING count(*) > 0) - make_interval(secs => $2::float8)
		LIMIT %[3]d FOR UPDATE SKIP LOCKED)
		DELETE FROM %[1]s AS t USING old WHERE t.ctid = old.ctid AND t.tableoid = old.tableoid`, p.info.name.sql(), gone, tablePurge, watermark)
}

// tablePlanned is how many rows may be joined by whatever plan; for more it would
// perhaps be one that reads the whole table.
const tablePlanned = 50

// planned runs a statement that joins n rows with the table by its key.
func (w *tableWriter) planned(ctx context.Context, n int, run func() error) error {
	if n <= tablePlanned {
		return run()
	}
	const ways = "hashjoin mergejoin seqscan"
	set := func(to string) string {
		var b strings.Builder
		for way := range strings.FieldsSeq(ways) {
			fmt.Fprintf(&b, "SET LOCAL enable_%s TO %s; ", way, to)
		}
		return b.String()
	}
	// Plans that avoid what is off look dear, and dear ones are compiled.
	if err := w.exec(ctx, set("off")+"SET LOCAL jit TO off"); err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	return w.exec(ctx, set("DEFAULT"))
}

// patch changes the rows that are there and inserts the others. ON CONFLICT DO
// UPDATE would judge the proposed row first: a CHECK, or NOT NULL, would refuse a
// change that leaves the row as it must be. Rows of one key are added up; only
// where columns are combined there may be several.
//
// Rows that were there are locked by now, in key order. Then all others are inserted,
// in key order, and only then is anything changed: who waits for a key to be inserted,
// or changed by somebody who found it, waits for one who is further. A key that
// was lost is locked by beginning anew: with others in hand that would be out of
// order.
func (k *keeper) patch(ctx context.Context, rows []*tableRow, omit columnSet) error {
	for try := 0; len(rows) > 0; try++ {
		var update, insert []*tableRow
		for _, r := range rows {
			if k.there[string(r.key)] {
				update = append(update, r)
			} else {
				insert = append(insert, r)
			}
		}
		lost, err := k.insertNew(ctx, insert, omit)
		if err != nil {
			return err
		}
		if len(lost) > 0 && k.yields(lost) {
			return errOvertaken
		}
		if err := k.update(ctx, update, omit); err != nil || len(lost) == 0 {
			return err
		}
		if err := k.lock(ctx, lost); err != nil {
			return err
		}
		if try == 3 {
			return k.complete(len(rows), int64(len(rows)-len(lost)))
		}
		rows = lost
	}
	return nil
}

// yields says whether to begin anew for rows that were lost. One that was lost before
// and isn't there is swallowed by a trigger, or deleted.
func (k *keeper) yields(lost []*tableRow) bool {
	if k.lost == nil || slices.ContainsFunc(lost, func(r *tableRow) bool { return k.lost[string(r.key)] }) {
		return false
	}
	for _, r := range lost {
		k.lost[string(r.key)] = true
	}
	return true
}

// update changes rows that are there, and locked.
func (k *keeper) update(ctx context.Context, rows []*tableRow, omit columnSet) error {
	if len(rows) == 0 {
		return nil
	}
	wrote, err := k.join(ctx, rows, omit, k.p.updateFrom)
	if err != nil {
		return err
	}
	var missed []*tableRow
	keys := 0
	for i, r := range rows {
		if i > 0 && sameKey(rows[i-1], r) {
			continue
		}
		keys++
		if !wrote[string(r.key)] {
			missed = append(missed, r)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	if k.p.version < 0 {
		return k.complete(keys, int64(keys-len(missed)))
	}
	for _, r := range missed {
		r.item.Outcome = inbox.Stale
	}
	return k.swallowed(ctx, rows, missed)
}

// insertNew inserts rows and answers those whose key somebody else was faster to
// insert.
func (k *keeper) insertNew(ctx context.Context, rows []*tableRow, omit columnSet) (lost []*tableRow, err error) {
	if len(rows) == 0 {
		return nil, nil
	}
	wrote, err := k.join(ctx, rows, omit, k.p.insertFrom)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if wrote[string(r.key)] {
			if k.there != nil {
				k.there[string(r.key)] = true
			}
		} else {
			lost = append(lost, r)
		}
	}
	return lost, nil
}

// join runs a statement over rows, as parameters or from a temporary table, and
// answers the keys that the statement returns.
func (w *tableWriter) join(ctx context.Context, rows []*tableRow, omit columnSet, statement func(omit columnSet, from string, merged bool) string) (map[string]bool, error) {
	from, params, err := w.relation(ctx, rows, omit)
	if err != nil {
		return nil, err
	}
	format := []int16{1}
	if w.p.text {
		format[0] = 0
	}
	wrote := make(map[string]bool, len(rows))
	var key []byte
	err = w.planned(ctx, len(rows), func() error {
		rr := w.pg.ExecParams(ctx, statement(omit, from, repeated(rows)), params, nil, format, []int16{1})
		for rr.NextRow() {
			key = w.p.appendKey(key[:0], rr.Values())
			wrote[string(key)] = true
		}
		_, err := rr.Close()
		return err
	})
	return wrote, err
}

// relation makes rows what a statement can select from, in their order, with their
// number in it as semel_n.
func (w *tableWriter) relation(ctx context.Context, rows []*tableRow, omit columnSet) (from string, params [][]byte, err error) {
	list := w.p.list(omit)
	if len(rows)*len(w.p.columns) > tableValues {
		if err := w.staging(ctx, rows, omit); err != nil {
			return "", nil, err
		}
		return fmt.Sprintf("(SELECT row_number() OVER () AS semel_n, %s FROM pg_temp.%s)", list, w.p.staged), nil, nil
	}
	var casts []string
	for _, c := range w.p.columns {
		if !omit.has(c.optional) {
			casts = append(casts, c.cast)
		}
	}
	var b strings.Builder
	for n, r := range rows {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "(%d", n)
		i := 0
		copyFields(r.tuple, func(field []byte) {
			params = append(params, field)
			fmt.Fprintf(&b, ",$%d::%s", len(params), casts[i])
			i++
		})
		b.WriteByte(')')
	}
	return fmt.Sprintf("(SELECT * FROM (VALUES %s) AS v(semel_n, %s))", b.String(), list), params, nil
}

func (p *tablePlan) combines() bool {
	return slices.ContainsFunc(p.columns, func(c tableColumn) bool { return c.adds })
}

// added is a relation with one row for each key: the last one's, with the sum
// of what is added, and the highest and lowest of the sums on the way.
func (p *tablePlan) added(omit columnSet, from string) string {
	sums := []string{"r.*"} // patches of a key may add nothing
	var keys, all, ends []string
	for _, k := range p.key {
		keys = append(keys, pgx.Identifier{p.columns[k.column].name}.Sanitize())
	}
	key := strings.Join(keys, ", ")
	for i, c := range p.columns {
		if omit.has(c.optional) {
			continue
		}
		name := pgx.Identifier{c.name}.Sanitize()
		if !c.adds {
			all = append(all, name)
			continue
		}
		sums = append(sums, fmt.Sprintf("sum(%s::numeric) OVER (PARTITION BY %s ORDER BY semel_n) AS semel_sum%d", name, key, i))
		all = append(all, fmt.Sprintf("semel_sum%d AS %s", i, name))
		ends = append(ends, fmt.Sprintf("max(semel_sum%[1]d) OVER (PARTITION BY %[2]s) AS semel_high%[1]d, min(semel_sum%[1]d) OVER (PARTITION BY %[2]s) AS semel_low%[1]d", i, key))
	}
	return fmt.Sprintf("(SELECT DISTINCT ON (%s) semel_n, %s FROM (SELECT %s FROM %s AS r) AS r ORDER BY %s, semel_n DESC)",
		key, strings.Join(append(all, ends...), ", "), strings.Join(sums, ", "), from, key)
}

// total is what a column holds after u's sum was added to base: out of range if it
// was that on the way.
func (c *tableColumn) total(i int, base string, merged bool) string {
	name := pgx.Identifier{c.name}.Sanitize()
	if !merged {
		return base + "u." + name
	}
	sum := func(of string) string { return fmt.Sprintf("(%su.%s)::%s", base, of, c.typ) }
	return fmt.Sprintf("CASE WHEN %s IS NOT NULL AND %s IS NOT NULL THEN %s END",
		sum(fmt.Sprintf("semel_high%d", i)), sum(fmt.Sprintf("semel_low%d", i)), sum(name))
}

func (p *tablePlan) updateFrom(omit columnSet, from string, merged bool) string {
	var set, same []string
	for i, c := range p.columns {
		name := pgx.Identifier{c.name}.Sanitize()
		switch {
		case omit.has(c.optional) || !p.sets(i):
		case c.adds:
			set = append(set, name+" = "+c.total(i, "coalesce(t."+name+", 0) + ", merged))
		default:
			set = append(set, name+" = u."+name)
		}
	}
	for _, k := range p.key {
		name := pgx.Identifier{p.columns[k.column].name}.Sanitize()
		same = append(same, k.same(name, name))
	}
	if set == nil { // nothing but its key
		name := pgx.Identifier{p.columns[p.key[0].column].name}.Sanitize()
		set = append(set, name+" = t."+name)
	}
	if p.version >= 0 {
		v := pgx.Identifier{p.columns[p.version].name}.Sanitize()
		same = append(same, "(t."+v+" IS NULL OR t."+v+" < u."+v+")")
	}
	if merged {
		from = p.added(omit, from)
	}
	return fmt.Sprintf("UPDATE %s AS t SET %s FROM %s AS u WHERE %s RETURNING %s",
		p.info.name.sql(), strings.Join(set, ", "), from, strings.Join(same, " AND "), p.keyOut())
}

func (p *tablePlan) insertFrom(omit columnSet, from string, merged bool) string {
	var values, keys []string
	for i, c := range p.columns {
		if omit.has(c.optional) {
			continue
		}
		if c.adds {
			values = append(values, c.total(i, "", merged))
		} else {
			values = append(values, "u."+pgx.Identifier{c.name}.Sanitize())
		}
	}
	for _, k := range p.key {
		keys = append(keys, pgx.Identifier{p.columns[k.column].name}.Sanitize())
	}
	if merged {
		from = p.added(omit, from)
	}
	return p.insertInto(omit) + " SELECT " + strings.Join(values, ", ") + " FROM " + from + " AS u ORDER BY u.semel_n ON CONFLICT (" +
		strings.Join(keys, ", ") + ") DO NOTHING RETURNING " + p.keyOut()
}

// tableRounds parts rows so that in each round none leaves out what an earlier one
// of its key says. Rows of a key stay in order; nearly always there is one round.
func tableRounds(rows []*tableRow) [][]*tableRow {
	same := func(r *tableRow) bool { return r.omit == rows[0].omit }
	if !slices.ContainsFunc(rows, func(r *tableRow) bool { return !same(r) }) {
		return [][]*tableRow{rows}
	}
	type place struct {
		round int
		said  columnSet // the optional columns, in this round
	}
	var rounds [][]*tableRow
	places := make(map[string]place, len(rows))
	for _, r := range rows {
		at := places[string(r.key)]
		if r.omit.meets(at.said) {
			at = place{round: at.round + 1}
		}
		at.said.addOthers(r.omit)
		places[string(r.key)] = at
		if at.round == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[at.round] = append(rounds[at.round], r)
	}
	return rounds
}

// reduced writes the newest row of each key, in key order: writers of the same
// keys wait for one another and never in a circle.
func (k *keeper) reduced(ctx context.Context, rows []*tableRow) error {
	w := k.tableWriter
	var newer func(i, j int) bool
	if w.p.version >= 0 {
		newer = func(i, j int) bool { return w.p.newer(rows[i].version, rows[j].version) }
	}
	red := sink.Reduce(len(rows), func(i int) []byte { return rows[i].key }, newer)
	before, err := w.storedBefore(ctx, rows, &red)
	if err != nil {
		return err
	}
	place := make(map[*tableRow]int, len(red.Rows))
	write := make([]*tableRow, len(red.Rows))
	for n, i := range red.Rows {
		write[n] = rows[i]
		place[rows[i]] = i
	}
	sortByKey(write)
	stale := map[int]bool{}
	for omit, group := range tableGroups(write) {
		var missed []*tableRow
		if w.p.kind == rowPatch {
			err = k.patch(ctx, group, omit)
		} else {
			missed, err = w.upsertGroup(ctx, group, omit)
		}
		if err != nil {
			return err
		}
		for _, r := range missed {
			stale[place[r]] = true
		}
	}
	for i, r := range rows {
		stored := before[string(r.key)]
		switch {
		case red.Fates[i] == sink.Stale, stale[red.By[i]], stored != nil && !w.p.newer(r.version, stored):
			r.item.Outcome = inbox.Stale
		case red.Fates[i] == sink.Superseded:
			r.item.Outcome = inbox.Superseded
		}
	}
	return nil
}

// storedBefore asks for the stored versions of keys with overtaken rows: one that
// was stale already is stale, wherever the batch is cut. It takes no locks, for
// they would come out of key order; whoever writes in between is neither before
// nor after.
func (w *tableWriter) storedBefore(ctx context.Context, rows []*tableRow, red *sink.Reduction) (map[string][]byte, error) {
	if w.p.version < 0 {
		return nil, nil
	}
	var ask []*tableRow
	asked := map[int]bool{}
	for i, fate := range red.Fates {
		if by := red.By[i]; fate == sink.Superseded && !asked[by] {
			asked[by] = true
			ask = append(ask, rows[by])
		}
	}
	if ask == nil {
		return nil, nil
	}
	return w.stored(ctx, ask)
}

// stored answers the versions that the table has under the rows' keys; nothing for
// null.
func (w *tableWriter) stored(ctx context.Context, rows []*tableRow) (map[string][]byte, error) {
	versions := make(map[string][]byte)
	var key []byte
	version := pgx.Identifier{w.p.columns[w.p.version].name}.Sanitize()
	err := w.query(ctx, w.p.probe("", "t."+version), w.p.keyArrays(rows), func(fields [][]byte) {
		n := len(w.p.key)
		key = w.p.appendKey(key[:0], fields[:n])
		versions[string(key)] = append([]byte(nil), fields[n]...)
	})
	return versions, err
}

// upsertGroup answers the rows that the stored version refused.
func (w *tableWriter) upsertGroup(ctx context.Context, rows []*tableRow, omit columnSet) ([]*tableRow, error) {
	wrote := make(map[string]bool)
	var key []byte
	var keep func([][]byte)
	if w.p.version >= 0 {
		keep = func(fields [][]byte) {
			key = w.p.appendKey(key[:0], fields)
			wrote[string(key)] = true
		}
	}
	took, err := w.statement(ctx, rows, omit, w.p.onConflict(omit), keep)
	if err != nil {
		return nil, err
	}
	if w.p.version < 0 || int(took) == len(rows) {
		return nil, w.complete(len(rows), took)
	}
	var missed []*tableRow
	for _, r := range rows {
		if !wrote[string(r.key)] {
			missed = append(missed, r)
		}
	}
	return missed, w.swallowed(ctx, rows, missed)
}

// swallowed halts where rows that seem stale were dropped by a trigger: then there
// is no row, or an older one.
func (w *tableWriter) swallowed(ctx context.Context, rows, missed []*tableRow) error {
	versions, err := w.stored(ctx, missed)
	if err != nil {
		return err
	}
	swallowed := 0
	for _, r := range missed {
		if v := versions[string(r.key)]; v == nil || w.p.newer(r.version, v) {
			swallowed++
		}
	}
	return w.complete(len(rows), int64(len(rows)-swallowed))
}
