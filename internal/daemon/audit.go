package daemon

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// Audited is what an audit found of one partition.
type Audited struct {
	Route     string           `json:"route"`
	Topic     string           `json:"topic"`
	Partition int32            `json:"partition"`
	Start     int64            `json:"start"` // where the accounts begin
	Next      int64            `json:"next"`  // where they end
	Settled   int64            `json:"settled"`
	Outcomes  map[string]int64 `json:"outcomes"`
	Holes     int64            `json:"holes"`
	Lost      int64            `json:"lost"`
	// Read is what a deep audit counted in the log; nil if it didn't read it.
	Read *int64 `json:"read,omitempty"`
	// Wrong are the differences; none is what an audit hopes for.
	Wrong []string `json:"wrong,omitempty"`
	// Unknown is what could not be proved, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Audit proves the accounts of the routes: that every message that left the
// broker has one outcome, that every offset is accounted for, and that the
// watermark fits the log. Deep reads the log again and compares count and
// checksum with it.
func (v *Viewer) Audit(ctx context.Context, routes []config.Route, deep bool) ([]Audited, error) {
	if err := v.p.reachBroker(ctx); err != nil {
		return nil, err
	}
	var all []Audited
	for _, r := range routes {
		as, err := v.p.audit(ctx, r, deep)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r.Name, err)
		}
		all = append(all, as...)
	}
	return all, nil
}

func (p *parts) audit(ctx context.Context, r config.Route, deep bool) ([]Audited, error) {
	// Rows first: logs only grow, so what a row says must be in them.
	rows, err := p.memory.Watermarks(ctx, r.Consumer)
	if err != nil {
		return nil, err
	}
	borders, err := p.borders(ctx, r.Consumer)
	if err != nil {
		return nil, err
	}
	var as []Audited
	var again []*reading
	acked, err := p.acked(ctx, r.From.Group)
	if err != nil {
		return nil, err
	}
	for _, topic := range topicsOf(rows) {
		log, err := p.topicLog(ctx, topic)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if row.Topic == topic {
				as = append(as, accounts(r.Name, row.Row))
				as[len(as)-1].ack(acked, row.Row, borders[row.Partition].settled)
				if a := &as[len(as)-1]; log.compare(a, row.Row) && deep {
					if g := readable(row.Row, borders[row.Partition], log.logs[row.Partition].Start); g != nil {
						again = append(again, g)
						log.unread(a, g)
					}
				}
			}
		}
	}
	if !deep {
		return as, nil
	}
	if err := p.read(ctx, again); err != nil {
		return nil, err
	}
	for _, g := range again {
		for i := range as {
			if as[i].Topic == g.row.Topic && as[i].Partition == g.row.Number {
				g.compare(&as[i])
			}
		}
	}
	return as, nil
}

// accounts checks what the row alone can prove.
func accounts(route string, w inbox.Row) Audited {
	a := Audited{
		Route: route, Topic: w.Topic, Partition: w.Number, Start: w.Start, Next: w.Next,
		Settled: w.Accounts.Settled.Count, Holes: w.Accounts.Holes, Lost: w.Accounts.Lost, Outcomes: map[string]int64{},
	}
	for i, o := range inbox.Outcomes {
		a.Outcomes[o.String()] = w.Accounts.Outcome[i].Count
	}
	if d, ok := w.Accounts.Check(); !ok {
		if d.Count != 0 {
			a.wrong("settled differs from the sum of outcomes by %d", d.Count)
		} else {
			a.wrong("settled and outcomes are as many, but of other messages: their checksums differ")
		}
	}
	if d := w.Next - w.Start - a.Settled - a.Holes - a.Lost; d != 0 {
		a.wrong("from offset %d to %d there are %d offsets, and %d are settled, holes or lost", w.Start, w.Next, w.Next-w.Start, w.Next-w.Start-d)
	}
	return a
}

func (a *Audited) wrong(format string, args ...any) {
	a.Wrong = append(a.Wrong, fmt.Sprintf(format, args...))
}

func (a *Audited) unknown(format string, args ...any) {
	a.Unknown = append(a.Unknown, fmt.Sprintf(format, args...))
}

// acked are the group's committed offsets.
func (p *parts) acked(ctx context.Context, group string) (map[semel.Partition]int64, error) {
	os, err := p.admin.Offsets(ctx, group)
	if err != nil {
		return nil, err
	}
	of := map[semel.Partition]int64{}
	for _, o := range os {
		of[o.Partition] = o.Next
	}
	return of, nil
}

// ack holds the broker's committed offset against the row: it follows the
// watermark and never passes it, unless it is still the one that was there before
// the row was, or of a log that was cut.
func (a *Audited) ack(acked map[semel.Partition]int64, w inbox.Row, cut int64) {
	if at, ok := acked[w.Partition]; ok && at > max(w.Next, cut) && at != w.Adopted {
		a.wrong("the group has committed %d, above the watermark %d: the database went back and no consumer has noticed yet, or somebody else commits in this group", at, w.Next)
	}
}

// topicLog is what the broker says of a topic.
type topicLog struct {
	id   semel.TopicID
	gone bool
	// compacted: the broker may remove messages out of the middle.
	compacted bool
	logs      map[semel.Partition]kafka.Log
}

func (p *parts) topicLog(ctx context.Context, topic string) (topicLog, error) {
	t := topicLog{logs: map[semel.Partition]kafka.Log{}}
	ts, err := p.admin.Topics(ctx, topic)
	var unknown *inbox.UnknownTopicError
	switch {
	case errors.As(err, &unknown):
		t.gone = true
		return t, nil
	case err != nil:
		return t, err
	}
	t.id = ts[0].ID
	t.compacted = strings.Contains(ts[0].Configs["cleanup.policy"], "compact")
	logs, err := p.admin.Logs(ctx, topic)
	for _, l := range logs {
		t.logs[l.Partition] = l
	}
	return t, err
}

// compare holds the row against the log, and says whether the log can be read
// for what the row has settled.
func (t topicLog) compare(a *Audited, w inbox.Row) bool {
	l, ok := t.logs[w.Partition]
	var none semel.TopicID
	switch {
	case t.gone:
		a.unknown("the topic doesn't exist any more")
		return false
	case t.id != w.TopicID && t.id != none && w.TopicID != none:
		a.unknown("the topic was made again since: it had the ID %s and has %s", w.TopicID, t.id)
		return false
	case !ok:
		a.wrong("the broker has no such partition")
		return false
	}
	if w.Next > l.End {
		a.wrong("the watermark is %d and the log ends at %d: it was cut, or is another one", w.Next, l.End)
		return false
	}
	if w.Next < l.Start {
		a.unknown("%d offsets above the watermark are no longer in the log: they will be counted as lost", l.Start-w.Next)
	}
	return true
}

// unread says what a deep audit can't read again.
func (t topicLog) unread(a *Audited, g *reading) {
	from, begins := g.borders[0].at, t.logs[g.row.Partition].Start
	switch {
	case from <= a.Start:
	case g.anew:
		a.unknown("offsets %d to %d are not compared: the accounts begin anew at %d, after a reset or a cut", a.Start, from-1, from)
	default:
		a.unknown("offsets %d to %d can't be read again: the log begins at %d", a.Start, from-1, begins)
	}
	if t.compacted {
		a.unknown("the topic is compacted: messages that were settled may be gone from it")
	}
	g.compacted = t.compacted
}

// border is a place at which the accounts are known.
type border struct {
	at      int64
	settled inbox.Tally
}

// known are the borders of one partition since its log was last cut.
type known struct {
	borders []border
	lost    []inbox.Ahead // at most once: in the log, and not settled
	cut     bool          // so the accounts' start is no border
	// settled is how far the row was before the cut: acks are never lowered, so the
	// group's offset stays there until the new log is as long.
	settled int64
}

// borders are the places of each partition at which a claim noted the accounts,
// in order. What lies before a cut, a changed topic or a reset is of other accounts.
func (p *parts) borders(ctx context.Context, consumer string) (map[semel.Partition]known, error) {
	events, err := p.memory.Events(ctx, postgres.EventFilter{
		Consumer: consumer, Limit: 10_000,
		Kinds: []string{inbox.EventClaim, inbox.EventLost, inbox.EventCut, inbox.EventTopicChanged, inbox.EventReset},
	})
	if err != nil {
		return nil, err
	}
	of := map[semel.Partition]known{}
	for _, e := range events {
		k := of[e.Partition]
		switch e.Kind {
		case inbox.EventClaim:
		case inbox.EventLost:
			if l, ok := lostOf(e.Detail); ok {
				k.lost = append(k.lost, l)
				of[e.Partition] = k
			}
			continue
		default:
			k := known{cut: true}
			if was, ok := e.Detail["settled"].(float64); ok && e.Kind == inbox.EventCut {
				k.settled = int64(was)
			}
			of[e.Partition] = k
			continue
		}
		if b, ok := borderOf(e.Detail); ok && (len(k.borders) == 0 || k.borders[len(k.borders)-1].at < b.at) {
			k.borders = append(k.borders, b)
			of[e.Partition] = k
		}
	}
	return of, nil
}

func borderOf(detail map[string]any) (b border, ok bool) {
	next, ok1 := detail["next"].(float64)
	count, ok2 := detail["settled"].(float64)
	text, ok3 := detail["settled_sum"].(string)
	sum, err := strconv.ParseUint(text, 10, 64)
	return border{int64(next), inbox.Tally{Count: int64(count), Sum: sum}}, ok1 && ok2 && ok3 && err == nil
}

func lostOf(detail map[string]any) (l inbox.Ahead, ok bool) {
	from, ok1 := detail["from"].(float64)
	count, ok2 := detail["lost"].(float64)
	text, ok3 := detail["sum"].(string)
	sum, err := strconv.ParseUint(text, 10, 64)
	return inbox.Ahead{From: int64(from), Count: int64(count), Sum: sum}, ok1 && ok2 && ok3 && err == nil
}

// reading is a stretch of a log that is read again, from border to border.
type reading struct {
	row       inbox.Row
	borders   []border // at least two, ascending; the last is the row
	tallies   []inbox.Tally
	lost      []inbox.Ahead
	compacted bool
	anew      bool // the accounts begin anew at the first border
	done      bool
}

// readable is what of a row's accounts the log still holds; nil if nothing.
func readable(w inbox.Row, k known, logStart int64) *reading {
	all := k.borders
	if !k.cut && (len(all) == 0 || all[0].at > w.Start) {
		all = append([]border{{at: w.Start}}, all...)
	}
	g := &reading{row: w, anew: k.cut && len(k.borders) > 0 && k.borders[0].at >= logStart}
	for _, b := range all {
		if b.at >= logStart && b.at < w.Next {
			g.borders = append(g.borders, b)
		}
	}
	if len(g.borders) == 0 {
		return nil
	}
	g.borders = append(g.borders, border{w.Next, w.Accounts.Settled})
	g.tallies = make([]inbox.Tally, len(g.borders)-1)
	if g.lost = k.lost; w.Ahead != nil {
		g.lost = append(g.lost, *w.Ahead)
	}
	return g
}

// stillAfter is how long a log may give nothing before a deep audit takes what
// it has for all there is.
const stillAfter = 15 * time.Second

// read reads the stretches again, all at once, as a stranger to every group.
func (p *parts) read(ctx context.Context, rs []*reading) error {
	if len(rs) == 0 {
		return nil
	}
	at := map[string]map[int32]kgo.Offset{}
	of := map[semel.Partition]*reading{}
	for _, r := range rs {
		if at[r.row.Topic] == nil {
			at[r.row.Topic] = map[int32]kgo.Offset{}
		}
		at[r.row.Topic][r.row.Number] = kgo.NewOffset().At(r.borders[0].at)
		of[r.row.Partition] = r
	}
	cl, err := p.reader(at, kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	left := len(rs)
	for left > 0 {
		wait, cancel := context.WithTimeout(ctx, stillAfter)
		fs := cl.PollFetches(wait)
		still := wait.Err() != nil
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if still {
			return nil // what is missing shows in the comparison
		}
		for _, e := range fs.Errors() {
			return fmt.Errorf("read %s/%d again: %w", e.Topic, e.Partition, e.Err)
		}
		fs.EachPartition(func(f kgo.FetchTopicPartition) {
			r := of[semel.Partition{Topic: f.Topic, Number: f.Partition}]
			if r == nil || r.done {
				return
			}
			if r.take(f.Records) {
				left--
				cl.PauseFetchPartitions(map[string][]int32{f.Topic: {f.Partition}})
			}
		})
	}
	return nil
}

// take counts records, and says whether the end was reached. Markers of Kafka
// transactions are passed over, as they are no messages.
func (r *reading) take(records []*kgo.Record) bool {
	for _, m := range records {
		if m.Offset < r.row.Next && !m.Attrs.IsControl() {
			i := sort.Search(len(r.borders), func(i int) bool { return r.borders[i].at > m.Offset }) - 1
			if i >= 0 && i < len(r.tallies) {
				r.tallies[i].Add(inbox.Hash(r.row.TopicID, m.Offset))
			}
		}
		r.done = r.done || m.Offset >= r.row.Next-1
	}
	return r.done
}

// compare holds what was read against what was settled, range by range.
func (r *reading) compare(a *Audited) {
	var read int64
	for i, have := range r.tallies {
		from, to := r.borders[i], r.borders[i+1]
		settled := to.settled.Minus(from.settled)
		for _, l := range r.lost {
			if l.From >= from.at && l.From < to.at {
				settled = settled.Plus(l.Tally())
			}
		}
		read += have.Count
		switch {
		case have == settled:
		case r.compacted && have.Count < settled.Count:
			// said before
		case have.Count != settled.Count:
			a.wrong("from offset %d to %d the log holds %d messages and %d are settled", from.at, to.at, have.Count, settled.Count)
		default:
			a.wrong("from offset %d to %d as many messages are in the log as are settled, but others: the checksums differ", from.at, to.at)
		}
	}
	a.Read = &read
}
