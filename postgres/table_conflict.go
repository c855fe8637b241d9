package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// insertKeyed adds the rows whose key isn't there. It asks about those of which it
// guesses so, sends the others, and asks about all when the server refuses: the
// guess costs or saves time and decides nothing. A refused COPY is undone to the
// savepoint that begin has set, so the watermark's lock stays.
func (w *tableWriter) insertKeyed(ctx context.Context, rows []*tableRow) error {
	var repeats []*tableRow
	if w.p.fused {
		sortByKey(rows)
		rows, repeats = splitRepeats(rows)
	} else {
		rows = w.firstOfKey(rows)
		sortByKey(rows)
	}
	if w.p.info.others {
		// Whether a row may stand depends on those that stand already, so that they come as
		// they arrived. Two transactions may then wait for each other's keys: a conflict.
		slices.SortFunc(rows, func(a, b *tableRow) int { return cmp.Compare(a.at, b.at) })
	}
	suspects := w.guess.suspects(rows)
	noted := make(chan struct{})
	go func(rows []*tableRow) { w.guess.writes(rows); close(noted) }(rows) // beside what the server does
	defer func() { <-noted }()
	if _, err := w.leaveKnown(ctx, &rows, suspects); err != nil {
		return err
	}
	// A key that another transaction commits between question and COPY is found
	// by the next question.
	for try := 0; len(rows) > 0; try++ {
		err := w.insert(ctx, rows)
		if err == nil {
			break
		}
		// A row whose key is known is no bad row: it isn't written.
		if !refusesData(err) || try == 3 {
			return err
		}
		if err := w.exec(ctx, "ROLLBACK TO SAVEPOINT semel_table"); err != nil {
			return err
		}
		known, perr := w.leaveKnown(ctx, &rows, rows)
		switch {
		case perr != nil:
			return perr
		case known == 0:
			return err // for another reason than its key
		case try == 0 && sqlState(err) == "23505":
			w.guess.refuse()
		}
	}
	w.guess.wrote()
	// A row is stored under each key now: by the first of it, or before that.
	if err := w.there(ctx, repeats); err != nil {
		return err
	}
	// Watermarks are locked by the transaction: updated below a savepoint each would
	// get a multixact for both, and that costs milliseconds.
	return w.atCommit(ctx, "RELEASE SAVEPOINT semel_table")
}

// refusesData says whether the server refused a row for what it holds.
func refusesData(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23"))
}

// sortByKey puts rows in the order of their keys, equal ones as they came. It
// sorts heads of keys side by side in memory, in buckets first: following two
// pointers for every comparison costs a tenth of a batch's time.
func sortByKey(rows []*tableRow) {
	if len(rows) < 2 {
		return
	}
	places, sorted := make([]keyPlace, len(rows)), make([]*tableRow, len(rows))
	var differ uint64
	oneLength := true
	for i, r := range rows {
		places[i] = keyPlace{r.head, int32(i)}
		differ |= r.head ^ rows[0].head
		oneLength = oneLength && r.headLength == rows[0].headLength
	}
	compare := func(a, b keyPlace) int {
		if oneLength && a.head != b.head {
			return cmp.Compare(a.head, b.head)
		}
		if c := bytes.Compare(rows[a.n].key, rows[b.n].key); c != 0 {
			return c
		}
		return int(a.n - b.n)
	}
	if oneLength {
		// The eight highest bits that differ make the buckets.
		shift := max(56-bits.LeadingZeros64(differ), 0)
		var ends [256]int32
		for _, p := range places {
			ends[p.head>>shift&0xff]++
		}
		n := int32(0)
		for i, k := range ends {
			ends[i] = n
			n += k
		}
		inBuckets := make([]keyPlace, len(places))
		for _, p := range places {
			b := p.head >> shift & 0xff
			inBuckets[ends[b]] = p
			ends[b]++
		}
		places = inBuckets
		from := int32(0)
		for _, to := range ends {
			slices.SortFunc(places[from:to], compare)
			from = to
		}
	} else {
		slices.SortFunc(places, compare)
	}
	for i, p := range places {
		sorted[i] = rows[p.n]
	}
	copy(rows, sorted)
}

// keyPlace is the head of a row's key, and where the row is.
type keyPlace struct {
	head uint64
	n    int32
}

// splitRepeats takes out the rows, sorted by key, whose key the one before has.
func splitRepeats(rows []*tableRow) (first, repeats []*tableRow) {
	is := func(i int) bool { return rows[i].head == rows[i-1].head && bytes.Equal(rows[i].key, rows[i-1].key) }
	i := 1
	for i < len(rows) && !is(i) {
		i++
	}
	if i >= len(rows) {
		return rows, nil
	}
	first = append(make([]*tableRow, 0, len(rows)-1), rows[:i]...)
	for ; i < len(rows); i++ {
		if is(i) {
			repeats = append(repeats, rows[i])
		} else {
			first = append(first, rows[i])
		}
	}
	return first, repeats
}

// atCommit runs a statement before anything of COMMIT: in its pipeline, if the
// transaction is the store's own.
func (w *tableWriter) atCommit(ctx context.Context, sql string) error {
	if w.tx == nil {
		return w.exec(ctx, sql)
	}
	w.tx.atCommit = append(w.tx.atCommit, sql)
	return nil
}

func (w *tableWriter) exec(ctx context.Context, sql string) error {
	_, err := w.pg.Exec(ctx, sql).ReadAll()
	return err
}

// firstOfKey settles rows whose key an earlier row of the batch has: one by one
// they would have met it.
func (w *tableWriter) firstOfKey(rows []*tableRow) []*tableRow {
	first := make(map[string]*tableRow, len(rows))
	out := make([]*tableRow, 0, len(rows))
	for _, r := range rows {
		if r.key != nil {
			if f, ok := first[string(r.key)]; ok {
				w.exists(r, bytes.Equal(f.tuple, r.tuple))
				continue
			}
			first[string(r.key)] = r
		}
		out = append(out, r)
	}
	return out
}

var (
	errTableExists    = errors.New("a row of another message ID has this key")
	errTableCollision = errors.New("a row with this ID and other values exists")
)

// exists settles a row whose key is taken.
func (w *tableWriter) exists(r *tableRow, equal bool) {
	switch {
	case w.p.fused && !equal && w.cfg.OnCollision != inbox.CollisionDuplicate:
		r.item.Err, r.item.Class = errTableCollision, inbox.DeadCollision
	case !w.p.fused && w.cfg.OnExists == ExistsDeadLetter:
		r.item.Err, r.item.Class = errTableExists, inbox.DeadConstraint
	default:
		r.item.Outcome = inbox.DuplicateID
	}
}

// leaveKnown asks about some of the rows, settles those whose key is in the table and
// leaves the others.
func (w *tableWriter) leaveKnown(ctx context.Context, rows *[]*tableRow, about []*tableRow) (int, error) {
	ask := make([]*tableRow, 0, len(about))
	for _, r := range about {
		if r.key != nil {
			ask = append(ask, r)
		}
	}
	if len(ask) == 0 {
		return 0, nil
	}
	known := map[string]bool{}
	var key []byte
	err := w.query(ctx, w.p.probe(""), w.p.keyArrays(ask), func(fields [][]byte) {
		key = w.p.appendKey(key[:0], fields)
		known[string(key)] = true
	})
	if err != nil || len(known) == 0 {
		return 0, err
	}
	var fresh, there []*tableRow
	for _, r := range *rows {
		if r.key != nil && known[string(r.key)] {
			there = append(there, r)
		} else {
			fresh = append(fresh, r)
		}
	}
	if err := w.there(ctx, there); err != nil {
		return 0, err
	}
	*rows = fresh
	return len(there), nil
}

// there settles rows whose key the table has.
func (w *tableWriter) there(ctx context.Context, rows []*tableRow) (err error) {
	var equal map[*tableRow]bool
	if len(rows) > 0 && w.p.fused && w.cfg.OnCollision != inbox.CollisionDuplicate {
		if equal, err = w.equalToStored(ctx, rows); err != nil {
			return err
		}
	}
	for _, r := range rows {
		w.exists(r, equal[r])
	}
	return nil
}

func (w *tableWriter) query(ctx context.Context, sql string, params [][]byte, row func([][]byte)) error {
	rr := w.pg.ExecParams(ctx, sql, params, nil, []int16{1}, []int16{1})
	for rr.NextRow() {
		row(rr.Values())
	}
	_, err := rr.Close()
	return err
}

func (p *tablePlan) keyArrays(rows []*tableRow) [][]byte {
	arrays := make([][]byte, len(p.key))
	for i, k := range p.key {
		arrays[i] = tableArray(rows, i, k.elem)
	}
	return arrays
}

// probe asks for keys: one look-up for each leaves no room for a plan that reads
// the table whole. With `key = ANY` the planner does that to a table of 100,000
// rows, for 5,000 keys: 27 ms instead of 5.
// locked is "" or what locks the rows that are found.
func (p *tablePlan) probe(locked string, more ...string) string {
	var casts, names, same []string
	for i, k := range p.key {
		name := pgx.Identifier{p.columns[k.column].name}.Sanitize()
		casts = append(casts, fmt.Sprintf("$%d::%s", i+1, k.array))
		names = append(names, fmt.Sprintf("k%d", i))
		same = append(same, k.same(name, fmt.Sprintf("k%d", i)))
	}
	out := []string{p.keyOut()}
	return fmt.Sprintf("SELECT %s FROM unnest(%s) AS u(%s) CROSS JOIN LATERAL (SELECT t.* FROM %s AS t WHERE %s LIMIT 1%s) AS t",
		strings.Join(append(out, more...), ", "), strings.Join(casts, ", "), strings.Join(names, ", "), p.info.name.sql(), strings.Join(same, " AND "), locked)
}

// equalToStored says which rows say what the table holds under their key. The
// messages are read again, as text, and the server compares: an honest repeat
// may write a document or a number in another way.
func (w *tableWriter) equalToStored(ctx context.Context, rows []*tableRow) (map[*tableRow]bool, error) {
	p := w.p
	arrays := make([][]byte, 1+len(p.columns))
	for i := range arrays {
		b := make([]byte, 20, 20+16*len(rows))
		binary.BigEndian.PutUint32(b, 1)
		binary.BigEndian.PutUint32(b[4:], 1)  // there may be nulls
		binary.BigEndian.PutUint32(b[8:], 25) // text
		binary.BigEndian.PutUint32(b[12:], uint32(len(rows)))
		binary.BigEndian.PutUint32(b[16:], 1)
		arrays[i] = b
	}
	var row sink.Row
	for n, r := range rows {
		if err := p.mapping.Decode(&r.item.Message, &row); err != nil {
			return nil, err
		}
		arrays[0] = appendTableText(arrays[0], fmt.Appendf(nil, "%d", n))
		for i := range p.columns {
			v := row.Values[i]
			if v.IsNull() {
				arrays[i+1] = append(arrays[i+1], 255, 255, 255, 255)
				continue
			}
			text, err := p.columns[i].enc.text(nil, v)
			if err != nil {
				return nil, err
			}
			arrays[i+1] = appendTableText(arrays[i+1], text)
		}
	}
	equal := make(map[*tableRow]bool, len(rows))
	err := w.query(ctx, p.compare(), arrays, func(fields [][]byte) {
		n := 0
		for _, c := range fields[0] {
			n = n*10 + int(c-'0')
		}
		equal[rows[n]] = true
	})
	return equal, err
}

func appendTableText(dst, text []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(text))), text...)
}

// compare returns the numbers of the rows that equal the stored ones in all
// mapped columns, those apart that hold a message's place. An absent field whose
// default was taken can't be compared.
func (p *tablePlan) compare() string {
	params, names := []string{"$1::text[]"}, []string{"n"}
	var key, all []string
	for i, c := range p.columns {
		params = append(params, fmt.Sprintf("$%d::text[]", i+2))
		names = append(names, fmt.Sprintf("c%d", i))
		stored, sent := "t."+pgx.Identifier{c.name}.Sanitize(), fmt.Sprintf("u.c%d::%s", i, c.cast)
		if n := slices.IndexFunc(p.key, func(k tableKey) bool { return k.column == i }); n >= 0 {
			key = append(key, stored+p.key[n].as+" = "+sent+p.key[n].as)
			continue
		}
		if c.from.IsPlace() {
			continue
		}
		switch {
		case c.typname == "json":
			stored, sent = stored+"::jsonb", sent+"::jsonb"
		case !introspectComparable[c.oid] && !introspectComparable[c.elem] && (c.typtype != "e" || c.domain):
			stored, sent = stored+"::text", sent+"::text" // perhaps without an equality
		}
		is := stored + " IS NOT DISTINCT FROM " + sent
		if c.lenient {
			is = fmt.Sprintf("(u.c%d IS NULL OR %s)", i, is)
		}
		all = append(all, is)
	}
	if all == nil {
		all = []string{"true"}
	}
	return fmt.Sprintf("SELECT u.n FROM unnest(%s) AS u(%s) CROSS JOIN LATERAL (SELECT t.* FROM %s AS t WHERE %s LIMIT 1) AS t WHERE %s",
		strings.Join(params, ", "), strings.Join(names, ", "), p.info.name.sql(), strings.Join(key, " AND "), strings.Join(all, " AND "))
}
