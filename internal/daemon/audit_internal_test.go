package daemon

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
)

var (
	auditTopic     = semel.TopicID{1}
	auditPartition = semel.Partition{Topic: "t", Number: 0}
)

// settledRow has settled the offsets from start to next, all applied.
func settledRow(start, next int64) inbox.Row {
	r := inbox.Row{Start: start, Next: next}
	r.Partition, r.TopicID = auditPartition, auditTopic
	for o := start; o < next; o++ {
		h := inbox.Hash(auditTopic, o)
		r.Accounts.Settled.Add(h)
		r.Accounts.Outcome[inbox.Applied].Add(h)
	}
	return r
}

func wants(t *testing.T, what string, got []string, part string) {
	t.Helper()
	switch {
	case part == "" && len(got) > 0:
		t.Errorf("%s: %q", what, got)
	case part != "" && (len(got) != 1 || !strings.Contains(got[0], part)):
		t.Errorf("%s: want one that says %q, got %q", what, part, got)
	}
}

func TestAuditFindsAMessageWithoutAnOutcome(t *testing.T) {
	r := settledRow(5, 9)
	wants(t, "whole", accounts("r", r).Wrong, "")
	r.Accounts.Outcome[inbox.Applied] = r.Accounts.Outcome[inbox.Applied].Minus(inbox.Tally{Count: 1, Sum: inbox.Hash(auditTopic, 6)})
	wants(t, "one missing", accounts("r", r).Wrong, "sum of outcomes by 1")
}

func TestAuditFindsAnOutcomeOfAnotherMessage(t *testing.T) {
	r := settledRow(5, 9)
	r.Accounts.Outcome[inbox.Applied].Sum += inbox.Hash(auditTopic, 99) - inbox.Hash(auditTopic, 6)
	wants(t, "swapped", accounts("r", r).Wrong, "checksums differ")
}

func TestAuditFindsAnOffsetThatNobodyAccountsFor(t *testing.T) {
	r := settledRow(5, 9)
	r.Next = 12
	wants(t, "three offsets more", accounts("r", r).Wrong, "7 offsets, and 4 are settled")
	r.Accounts.Holes, r.Accounts.Lost = 1, 2
	wants(t, "holes and lost", accounts("r", r).Wrong, "")
}

func TestAuditFindsAnAckAboveTheWatermark(t *testing.T) {
	r := settledRow(0, 9)
	for _, c := range []struct {
		acked, cut int64
		part       string
	}{{9, 0, ""}, {3, 0, ""}, {10, 0, "above the watermark 9"}, {12, 12, ""}, {13, 12, "above the watermark 9"}} {
		a := accounts("r", r)
		a.ack(map[semel.Partition]int64{auditPartition: c.acked}, r, c.cut)
		wants(t, "ack", a.Wrong, c.part)
	}
}

func TestAuditHoldsTheWatermarkAgainstTheLog(t *testing.T) {
	log := func(start, end int64) topicLog {
		l := kafka.Log{Partition: auditPartition, Start: start, End: end, Stable: end}
		return topicLog{id: auditTopic, logs: map[semel.Partition]kafka.Log{auditPartition: l}}
	}
	for _, c := range []struct {
		what           string
		log            topicLog
		wrong, unknown string
		readable       bool
	}{
		{"fits", log(0, 20), "", "", true},
		{"cut", log(0, 7), "the log ends at 7", "", false},
		{"head gone", log(6, 20), "", "", true},
		{"made again", topicLog{id: semel.TopicID{2}}, "", "was made again", false},
		{"deleted", topicLog{gone: true}, "", "doesn't exist", false},
	} {
		r := settledRow(5, 9)
		a := accounts("r", r)
		if got := c.log.compare(&a, r); got != c.readable {
			t.Errorf("%s: readable is %v", c.what, got)
		}
		wants(t, c.what, a.Wrong, c.wrong)
		wants(t, c.what, a.Unknown, c.unknown)
	}
}

func TestDeepAuditFindsALossADoubleAndASwap(t *testing.T) {
	again := func(offsets ...int64) []string {
		r := settledRow(5, 9)
		g := readable(r, known{}, 0)
		for _, o := range offsets {
			g.take([]*kgo.Record{{Offset: o}})
		}
		if !g.done {
			t.Errorf("%v: the end was not seen", offsets)
		}
		a := accounts("r", r)
		g.compare(&a)
		return a.Wrong
	}
	wants(t, "the same", again(5, 6, 7, 8, 9), "")
	wants(t, "one less in the log", again(5, 6, 8), "the log holds 3 messages and 4 are settled")
	wants(t, "one more in the log", again(5, 6, 7, 7, 8), "the log holds 5 messages and 4 are settled")
	wants(t, "another one", again(5, 5, 7, 8), "checksums differ")
}

// A claim notes the accounts: from there on the log is compared, though its head
// is gone or was cut.
func TestDeepAuditComparesRangeByRange(t *testing.T) {
	r := settledRow(5, 20)
	at := func(next int64) border { return border{next, settledRow(5, next).Accounts.Settled} }
	read := func(g *reading, skip int64) (wrong []string, from int64) {
		for o := g.borders[0].at; o < 20; o++ {
			if o != skip {
				g.take([]*kgo.Record{{Offset: o}})
			}
		}
		a := accounts("r", r)
		g.compare(&a)
		return a.Wrong, g.borders[0].at
	}
	claims := known{borders: []border{at(5), at(8), at(12)}}
	wrong, from := read(readable(r, claims, 0), -1)
	if from != 5 {
		t.Errorf("read from %d", from)
	}
	wants(t, "all there", wrong, "")
	wrong, _ = read(readable(r, claims, 0), 10)
	wants(t, "one missing", wrong, "from offset 8 to 12 the log holds 3 messages and 4 are settled")
	wrong, from = read(readable(r, claims, 9), -1)
	if from != 12 {
		t.Errorf("with a log from 9 on, read from %d", from)
	}
	wants(t, "head gone", wrong, "")
	if g := readable(r, known{cut: true}, 0); g != nil {
		t.Errorf("after a cut, before a claim, read from %d", g.borders[0].at)
	}
}
