package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
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
				as[len(as)-1].ack(acked, row.Row)
				if a := &as[len(as)-1]; log.compare(a, row.Row) && deep && row.Next > row.Start {
					again = append(again, &reading{row: row.Row})
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
// watermark and never passes it.
func (a *Audited) ack(acked map[semel.Partition]int64, w inbox.Row) {
	if at, ok := acked[w.Partition]; ok && at > w.Next {
		a.wrong("the group has committed %d, above the watermark %d: the database went back and no consumer has noticed yet, or somebody else commits in this group", at, w.Next)
	}
}

// topicLog is what the broker says of a topic.
type topicLog struct {
	id   semel.TopicID
	gone bool
	logs map[semel.Partition]kafka.Log
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
	if w.Start < l.Start {
		a.unknown("the log begins at %d, the accounts at %d: what lies before can't be read again", l.Start, w.Start)
		return false
	}
	return true
}

// reading is a stretch of a log that is read again.
type reading struct {
	row   inbox.Row
	tally inbox.Tally
	done  bool
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
		at[r.row.Topic][r.row.Number] = kgo.NewOffset().At(r.row.Start)
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
			r.tally.Add(inbox.Hash(r.row.TopicID, m.Offset))
		}
		r.done = r.done || m.Offset >= r.row.Next-1
	}
	return r.done
}

// compare holds what was read against what was settled.
func (r *reading) compare(a *Audited) {
	a.Read = &r.tally.Count
	settled := r.row.Accounts.Settled
	switch {
	case r.row.Accounts.Lost > 0 && r.tally != settled:
		a.unknown("%d offsets were lost to retention in between; the log holds %d messages and %d are settled", r.row.Accounts.Lost, r.tally.Count, settled.Count)
	case r.tally.Count != settled.Count:
		a.wrong("the log holds %d messages and %d are settled", r.tally.Count, settled.Count)
	case r.tally.Sum != settled.Sum:
		a.wrong("as many messages are in the log as are settled, but others: the checksums differ")
	}
}
