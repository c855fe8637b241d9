package lab_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
)

// What a kill leaves between watermark and effect is lost, never made twice, and the
// accounts say which messages.
func TestAtMostOnceIsKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, with(inbox.MemoryPosition), func(s *spec) { s.AtMostOnce = true })
	for _, c := range []struct {
		at    step
		nth   int
		loses bool
	}{
		{joined, 1, false},
		{claimed, 1, false},
		{polled, 1, false},
		{begun, 1, false},
		{effected, 1, false}, // the watermark is where it was
		{committed, 1, true},
		{acked, 1, true},
		{begun, 2, true},
		{inEffect, 1, true},
		{effected, 2, true},
		{committed, 2, false},
		{acked, 2, false},
	} {
		was, _ := w.lost()
		w.send(0, 25)
		p := w.spawn(stopAt(c.at, c.nth))
		p.says(sayStopped)
		p.kill()
		next := w.spawn()
		w.caughtUp()
		next.drain() // what was under way has its effect
		lost, recorded := w.lost()
		if (lost > was) != c.loses {
			t.Errorf("killed at %s, time %d: %d messages lost", c.at, c.nth, lost-was)
		}
		if missing := w.missing(); !slices.Equal(missing, recorded) {
			t.Errorf("killed at %s, time %d: without effect are %v, recorded as lost %v", c.at, c.nth, missing, recorded)
		}
		if t.Failed() {
			return
		}
	}
	w.watch.check()
}

// lost is how many messages the rows count as lost, and the IDs of those that events
// name.
func (w *world) lost() (n int64, ids []string) {
	w.t.Helper()
	rows, err := w.rows(within(w.t))
	must(w.t, err)
	for p, r := range rows {
		if n += r.lost; r.balance != 0 {
			w.t.Errorf("partition %d: %d more messages settled than have an outcome", p, r.balance)
		}
	}
	found, err := w.db.Query(within(w.t), "SELECT generate_series((detail->>'from')::bigint, (detail->>'to')::bigint - 1) FROM semel.event WHERE kind = 'lost'")
	must(w.t, err)
	offsets, err := pgx.CollectRows(found, pgx.RowTo[int64])
	must(w.t, err)
	for _, o := range offsets {
		ids = append(ids, fmt.Sprintf("m-%d", o+1))
	}
	if int64(len(ids)) != n {
		w.t.Errorf("%d messages count as lost, and %d are recorded", n, len(ids))
	}
	slices.Sort(ids)
	return n, ids
}

// missing are the messages without an effect; none may have two.
func (w *world) missing() (ids []string) {
	w.t.Helper()
	found, err := w.db.Query(within(w.t), "SELECT mid FROM effect")
	must(w.t, err)
	mids, err := pgx.CollectRows(found, pgx.RowTo[string])
	must(w.t, err)
	times := map[string]int{}
	for _, id := range mids {
		if times[id]++; times[id] > 1 {
			w.t.Errorf("%s took effect twice", id)
		}
	}
	for i := range w.next {
		if id := fmt.Sprintf("m-%d", i+1); times[id] == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
