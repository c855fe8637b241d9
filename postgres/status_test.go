package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

func TestStatusSeesConsumersAndWatermarks(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	other := opened(t, url, "other")
	introduce(t, other, p0, p1)
	st := postgres.NewStatus(newPool(t, url), "")
	tx, err := newPool(t, url).Begin(t.Context())
	must(t, err)
	_, err = s.Admit(t.Context(), tx, "own loop", semel.ID{1})
	must(t, err)
	must(t, tx.Commit(t.Context()))

	cs, err := st.Consumers(t.Context())
	must(t, err)
	if len(cs) != 3 || fmt.Sprint(cs[0].Record) != fmt.Sprint(record("billing")) || cs[2].Name != "own loop" || cs[2].Memory != "" {
		t.Errorf("consumers %+v", cs)
	}
	ws, err := st.Watermarks(t.Context(), "")
	must(t, err)
	if len(ws) != 3 || ws[0].Consumer != "billing" || ws[0].Claim != row.Claim || ws[2].Partition != p1 {
		t.Errorf("watermarks %+v", ws)
	}
	ws, err = st.Watermarks(t.Context(), "other")
	must(t, err)
	if len(ws) != 2 {
		t.Errorf("%d watermarks of one consumer", len(ws))
	}
	id, err := st.Identity(t.Context())
	must(t, err)
	if id == "" {
		t.Error("no identity")
	}
}

func TestPauseIsSeenByWhoRuns(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := opened(t, url, "billing")
	st := postgres.NewStatus(connect(t, url), "")
	must(t, st.SetDesired(t.Context(), "billing", true, "because"))
	if l, err := s.Look(t.Context(), nil); err != nil || !l.Paused || l.Reason != "because" {
		t.Errorf("%+v, %v", l, err)
	}
	must(t, st.SetDesired(t.Context(), "billing", false, ""))
	if l, err := s.Look(t.Context(), nil); err != nil || l.Paused {
		t.Errorf("%+v, %v", l, err)
	}
	var unknown *postgres.UnknownConsumerError
	if err := st.SetDesired(t.Context(), "nobody", true, ""); !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
	es, err := st.Events(t.Context(), postgres.EventFilter{Consumer: "billing", Kinds: []string{"paused", "resumed"}})
	must(t, err)
	if len(es) != 2 || es[0].Kind != "paused" || es[0].Detail["reason"] != "because" {
		t.Errorf("events %+v", es)
	}
}

func TestDeadLettersAreFoundAndDiscarded(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	m := semel.Message{
		Topic: "orders", Partition: 2, Offset: 5, Timestamp: time.UnixMilli(1000).UTC(), Key: []byte{}, Value: []byte{0, 255}, ID: semel.ID{4},
		Headers: []semel.Header{{Name: "a", Value: []byte{1}}, {Name: "b\xff", Value: nil}, {Name: "", Value: []byte{}}},
	}
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{
		{Message: m, SentID: "x", ID: m.ID, Class: inbox.DeadValue, SQLState: "22P02", Error: "no", Attempts: 3},
		{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadHandler},
		{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadHandler},
	}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))

	st := postgres.NewStatus(connect(t, url), "")
	ds, err := st.DeadLetters(t.Context(), postgres.DeadFilter{Consumers: []string{"billing"}, Classes: []inbox.DeadClass{inbox.DeadValue}, Payload: true})
	must(t, err)
	if len(ds) != 1 {
		t.Fatalf("%d letters", len(ds))
	}
	d := ds[0]
	d.Timestamp = d.Timestamp.UTC()
	if fmt.Sprintf("%+v", d.Message) != fmt.Sprintf("%+v", m) || d.Headers[1].Value != nil || d.Headers[2].Value == nil {
		t.Errorf("message %+v\nwant %+v", d.Message, m)
	}
	if d.MessageID != "x" || d.SQLState != "22P02" || d.Attempts != 3 || d.State != "buried" || d.Size != 2 {
		t.Errorf("letter %+v", d)
	}
	if ds, err = st.DeadLetters(t.Context(), postgres.DeadFilter{Limit: 1}); err != nil || len(ds) != 1 || ds[0].Number != 3 || ds[0].Value != nil {
		t.Errorf("newest: %+v, %v", ds, err)
	}
	for _, step := range []struct {
		f    postgres.DeadFilter
		want int64
	}{
		{postgres.DeadFilter{Before: time.Now().Add(-time.Hour)}, 0},
		{postgres.DeadFilter{Numbers: []int64{1, 99}}, 1},
		{postgres.DeadFilter{Numbers: []int64{1}}, 0},
		{postgres.DeadFilter{Since: time.Now().Add(-time.Hour)}, 2},
	} {
		if n, err := st.Discard(t.Context(), step.f); err != nil || n != step.want {
			t.Errorf("%+v: discarded %d, want %d, %v", step.f, n, step.want, err)
		}
	}
	if ds, err = st.DeadLetters(t.Context(), postgres.DeadFilter{Closed: true}); err != nil || len(ds) != 3 || ds[0].State != "discarded" {
		t.Errorf("closed: %+v, %v", ds, err)
	}
}

func TestDeadLettersAreKeptForATime(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	letter := inbox.DeadLetter{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadHandler}
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{letter, letter, letter}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	c := connect(t, url)
	exec1(t, c, "UPDATE semel.dead_letter SET at = now() - interval '2 days' WHERE number < 3")
	exec1(t, c, "UPDATE semel.dead_letter SET state = 'redrive' WHERE number = 2")
	st := postgres.NewStatus(c, "")
	if n, err := st.PurgeDead(t.Context(), "other", time.Now()); err != nil || n != 0 {
		t.Errorf("of another consumer: %d, %v", n, err)
	}
	if n, err := st.PurgeDead(t.Context(), "billing", time.Now().Add(-24*time.Hour)); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if got := ask[[]int64](t, c, "SELECT array_agg(number ORDER BY number) FROM semel.dead_letter"); !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("left: %v", got)
	}
}

// A stranger who holds what a route wants to write is named, while it waits.
func TestWhoHoldsARouteUpIsNamed(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c, stranger := connect(t, url), connect(t, url)
	exec1(t, c, "CREATE TABLE t (id int PRIMARY KEY)")
	exec1(t, stranger, "SET application_name = 'psql'")
	exec1(t, stranger, "BEGIN")
	exec1(t, stranger, "LOCK TABLE t IN SHARE MODE")
	r := startRoute(t, c, url, "t", inbox.ErrorPolicy{})
	r.send(0, numbered(0, 3)...)
	s := postgres.NewStatus(c, "")
	var waits []postgres.LockWait
	r.until("it waits", func() (is bool) {
		var err error
		waits, err = s.LockWaits(t.Context(), "route")
		must(t, err)
		return len(waits) > 0
	})
	w := waits[0]
	if w.Holder != int32(stranger.PgConn().PID()) || w.Table != "t" || w.Program != "psql" || w.State != "idle in transaction" || w.Seconds <= 0 {
		t.Errorf("%+v", w)
	}
	if got, want := w.String(), fmt.Sprintf("waits for a lock on t that session %d holds (user postgres, psql, idle in transaction, transaction of ", w.Holder); !strings.HasPrefix(got, want) {
		t.Error(got)
	}
	if none, err := s.LockWaits(t.Context(), "rout"); err != nil || len(none) > 0 {
		t.Errorf("another consumer's: %v, %v", none, err)
	}
	exec1(t, stranger, "ROLLBACK")
	r.until("it goes on", func() bool { return r.settled(0) == 3 })
	r.stop()
}
