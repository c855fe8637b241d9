package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

const day = 24 * time.Hour

// turn turns the ring of billing by one step, as SQL may, with a window of 7 days.
func turn(t testing.TB, c *pgx.Conn) string {
	t.Helper()
	return ask[string](t, c, `SELECT coalesce(semel.rotate(1, 'billing', '7 days', now(), 5000000), '')`)
}

// steps turns the ring until nothing is due.
func steps(t testing.TB, c *pgx.Conn) (all []string) {
	t.Helper()
	for range 20 {
		step := turn(t, c)
		if step == "" {
			return all
		}
		if all = append(all, step); step == "busy" || step == "held" {
			return all
		}
	}
	t.Fatalf("the ring turns for ever: %q", all)
	return nil
}

// pass lets time pass, as far as the ring can tell.
func pass(t testing.TB, c *pgx.Conn, d time.Duration) {
	t.Helper()
	exec1(t, c, `UPDATE semel.generation SET from_time = from_time - $1::interval, to_time = to_time - $1::interval`, d)
}

// list is the ring as it stands: slot and state of what is in it, the oldest first.
func list(t testing.TB, c *pgx.Conn) string {
	t.Helper()
	return ask[string](t, c, `SELECT r.version || ':' || string_agg(' ' || g.slot || ' ' || g.state, '' ORDER BY g.number)
		FROM semel.ring r JOIN semel.generation g USING (scope) WHERE g.number IS NOT NULL GROUP BY r.version`)
}

func wantSteps(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("steps %q, want %q", got, want)
	}
}

// admits is a lane that admits to an inbox, one transaction each.
type admits struct {
	s   *postgres.InboxStore
	row inbox.Row
}

func newAdmits(t testing.TB, url string, partition int32) *admits {
	t.Helper()
	p := semel.Partition{Topic: "orders", Number: partition}
	rings := postgres.NewRings(newPool(t, url), postgres.RingsConfig{Memory: -1}) // whoever builds a filter reads a table
	t.Cleanup(rings.Close)
	s := newStore(t, url, postgres.InboxConfig{Rings: rings})
	_, err := s.Open(t.Context(), record("billing"))
	must(t, err)
	introduce(t, s, p)
	return &admits{s, claim(t, s, p)}
}

func (a *admits) begin(ctx context.Context) (inbox.Tx[pgx.Tx], inbox.Span, error) {
	sp := span(a.row, 1)
	tx, err := a.s.Begin(ctx, []inbox.Span{sp})
	return tx, sp, err
}

// admit answers which of the IDs were fresh, and commits.
func (a *admits) admit(t testing.TB, as ...inbox.Admission) (fresh []bool) {
	t.Helper()
	tx, sp, err := a.begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	vs, err := tx.Admit(t.Context(), as)
	must(t, err)
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	a.row.Next++
	for _, v := range vs {
		fresh = append(fresh, v == inbox.Fresh)
	}
	return fresh
}

// wantFresh admits IDs, all of which must be fresh, or none.
func (a *admits) wantFresh(t testing.TB, want bool, as []inbox.Admission) {
	t.Helper()
	for i, fresh := range a.admit(t, as...) {
		if fresh != want {
			t.Fatalf("admission %d of %d: fresh %t, want %t", i, len(as), fresh, want)
		}
	}
}

// named are admissions of IDs of their own kind.
func named(kind string, n int) []inbox.Admission {
	as := make([]inbox.Admission, n)
	for i := range as {
		as[i] = inbox.Admission{ID: semel.IDOf(fmt.Append(nil, kind, i)), Digest: inbox.Digest{1}}
	}
	return as
}

// A window long, through all states of the ring, an ID is known; and then it goes in
// constant time.
func TestRingRemembersAWindowAndForgets(t *testing.T) {
	t.Parallel()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			a, c := newAdmits(t, url, 0), connect(t, url)
			const share = 7 * day / 6
			var old [][]inbox.Admission
			known := func(turn string) {
				t.Helper()
				for _, as := range old {
					a.wantFresh(t, false, as)
				}
				as := named(turn, n)
				a.wantFresh(t, true, as)
				a.wantFresh(t, false, as)
				old = append(old, as)
			}
			known("first")
			for i := range 6 {
				wantSteps(t, steps(t, c))
				pass(t, c, share)
				if step := turn(t, c); step != "both" {
					t.Fatalf("turn %d: step %q", i, step)
				}
				known(fmt.Sprint("both", i))
				wantSteps(t, steps(t, c), "frozen")
				known(fmt.Sprint("hot", i))
			}
			if got, want := list(t, c), "13: 1 frozen 8 frozen 7 frozen 6 frozen 5 frozen 4 frozen 3 hot"; got != want {
				t.Fatalf("%s, want %s", got, want)
			}
			pass(t, c, 7*day-5*share)
			first := ask[uint32](t, c, "SELECT pg_relation_filenode('semel.inbox_1_1')")
			wantSteps(t, steps(t, c), "dropped", "emptied", "both", "frozen")
			if ask[uint32](t, c, "SELECT pg_relation_filenode('semel.inbox_1_1')") == first {
				t.Error("the oldest table was not truncated")
			}
			a.wantFresh(t, true, old[0])
			for _, as := range old[3:] { // of the second table and after
				a.wantFresh(t, false, as)
			}
		})
	}
}

// Model, R1 and the rule of both: nobody who writes to the older table alone meets one
// who writes to the newer one alone.
func TestRingWaitsForWhoWorksByAnOlderList(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	slow, fast, c := newAdmits(t, url, 0), newAdmits(t, url, 1), connect(t, url)
	slow.wantFresh(t, true, named("a", 3)) // it knows the list
	tx, sp, err := slow.begin(t.Context())
	must(t, err)
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "busy")
	if got := list(t, c); got != "2: 1 hot 8 hot" {
		t.Fatalf("the list is %s", got)
	}
	x := named("x", 1)
	vs, err := tx.Admit(t.Context(), x)
	must(t, err)
	if vs[0] != inbox.Fresh {
		t.Fatal("not fresh")
	}
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	slow.row.Next++
	wantSteps(t, steps(t, c), "frozen")
	fast.wantFresh(t, false, x)
}

// Model, R2: a table that an older list names is not emptied, and nobody waits.
func TestRingEmptiesNothingThatAnOlderListNames(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	slow, c := newAdmits(t, url, 0), connect(t, url)
	x := named("x", 3)
	slow.wantFresh(t, true, x)
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	pass(t, c, 8*day)
	tx, _, err := slow.begin(t.Context()) // its list names the frozen table
	must(t, err)
	defer tx.Rollback(t.Context())
	wantSteps(t, steps(t, c), "dropped", "busy")
	vs, err := tx.Admit(t.Context(), x)
	must(t, err)
	if slices.Contains(vs, inbox.Fresh) {
		t.Error("what the list knows is fresh")
	}
	tx.Rollback(t.Context())
	wantSteps(t, steps(t, c), "emptied")
}

// Model, R3: whoever turns the ring and stops in the middle stops nobody.
func TestStoppedTurnStopsNoBatch(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c, stopped := newAdmits(t, url, 0), connect(t, url), connect(t, url)
	a.wantFresh(t, true, named("a", 3))
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	exec1(t, stopped, "BEGIN")
	pass(t, c, 2*day)
	if step := turn(t, c); step != "" {
		t.Fatalf("an empty table is not turned: %q", step)
	}
	a.wantFresh(t, true, named("b", 3))
	if step := turn(t, stopped); step != "both" { // holds the lock of the version before
		t.Fatalf("step %q", step)
	}
	exec1(t, c, "SET lock_timeout = '1s'")
	a.wantFresh(t, true, named("c", 3))
	if !ask[bool](t, c, "SELECT semel.admit('billing', 'd')") || ask[bool](t, c, "SELECT semel.admit('billing', 'd')") {
		t.Error("the answer is wrong")
	}
	if step := turn(t, c); step != "busy" {
		t.Errorf("two turn at once: %q", step)
	}
	exec1(t, stopped, "ROLLBACK")
	a.wantFresh(t, false, named("c", 3))
}

// Who reads a table that is to be emptied, such as a dump, holds up the emptying and
// nothing else.
func TestReaderOfADroppedTableHoldsUpItsEmptyingAlone(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c, reader := newAdmits(t, url, 0), connect(t, url), connect(t, url)
	a.wantFresh(t, true, named("a", 3))
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	exec1(t, reader, "BEGIN")
	exec1(t, reader, "SELECT FROM semel.inbox")
	pass(t, c, 8*day)
	a.wantFresh(t, true, named("b", 3))
	exec1(t, c, "SET statement_timeout = '30s'") // who waits for the reader is not there to see it
	wantSteps(t, steps(t, c), "dropped", "both", "frozen", "held")
	a.wantFresh(t, false, named("b", 3))
	exec1(t, reader, "COMMIT")
	wantSteps(t, steps(t, c), "emptied")
}

// Model, R6: a repeat of a message that is a dead letter isn't fresh as long as the
// letter lives.
func TestIDsOfLivingDeadLettersStay(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c, redriver := newAdmits(t, url, 0), connect(t, url), connect(t, url)
	all := named("a", 3)
	tx, sp, err := a.begin(t.Context())
	must(t, err)
	_, err = tx.Admit(t.Context(), all)
	must(t, err)
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{
		{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadValue, ID: all[0].ID},
		{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadValue, ID: all[1].ID},
	}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	a.row.Next++
	exec1(t, c, "UPDATE semel.dead_letter SET state = 'discarded' WHERE id = $1", all[1].ID.String())
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	pass(t, c, 8*day)

	// Who handles the letter again has locked it: the table stays till that is over.
	exec1(t, redriver, "BEGIN")
	exec1(t, redriver, "SELECT FROM semel.dead_letter WHERE id = $1 FOR UPDATE", all[0].ID.String())
	wantSteps(t, steps(t, c), "busy")
	exec1(t, redriver, "COMMIT")
	wantSteps(t, steps(t, c), "dropped", "emptied", "both", "frozen")
	if got := a.admit(t, all...); !slices.Equal(got, []bool{false, true, true}) {
		t.Errorf("fresh: %v", got)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.inbox WHERE how = 'dead' AND at < now()"); n != 1 {
		t.Errorf("%d IDs of the dead", n)
	}
}

// Model, R7: under a snapshot of before the ring was turned nothing is admitted.
func TestAdmitRefusesAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	if !ask[bool](t, c, "SELECT semel.admit('billing', 'x')") {
		t.Fatal("not fresh")
	}
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		exec1(t, c, "BEGIN ISOLATION LEVEL "+level)
		_, err := c.Exec(t.Context(), "SELECT semel.admit('billing', 'y')")
		if code(err) != "SM001" {
			t.Errorf("%s: %v", level, err)
		}
		exec1(t, c, "ROLLBACK")
		exec1(t, c, "BEGIN ISOLATION LEVEL "+level)
		_, err = c.Exec(t.Context(), "SELECT semel.rotate(1, 'billing', '7 days', now(), 1)")
		if code(err) != "SM001" {
			t.Errorf("turned under %s: %v", level, err)
		}
		exec1(t, c, "ROLLBACK")
	}
}

// Model, R8: ROLLBACK TO gives a lock back, so each call takes it anew.
func TestAdmitHoldsTheListAfterASavepointIsUndone(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c, own := connect(t, url), connect(t, url)
	exec1(t, c, "SELECT semel.admit('billing', 'a')")
	exec1(t, own, "BEGIN; SAVEPOINT s")
	exec1(t, own, "SELECT semel.admit('billing', 'b')")
	exec1(t, own, "ROLLBACK TO s")
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	exec1(t, own, "SELECT semel.admit('billing', 'c')")
	pass(t, c, 2*day)
	exec1(t, c, "SELECT semel.admit('billing', 'd')")
	wantSteps(t, steps(t, c), "both", "busy")
	exec1(t, own, "COMMIT")
	wantSteps(t, steps(t, c), "frozen")
	if ask[bool](t, c, "SELECT semel.admit('billing', 'c')") {
		t.Error("twice fresh")
	}
}

// The window is in log time: whoever stands still, or reads what is old, forgets
// nothing, nor does one whose database's clock jumps.
func TestRingTurnsByLogTimeAndByItsOwnClock(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	x := named("x", 3)
	a.wantFresh(t, true, x)
	pass(t, c, 3*day)
	rotate := func(place, seen string) string {
		t.Helper()
		return ask[string](t, c, fmt.Sprintf(`SELECT coalesce(semel.rotate(1, 'billing', '7 days', %s, 5000000,
			'00000000-0000-0000-0000-000000000001', '%s'), '')`, place, seen))
	}
	exec1(t, c, "UPDATE semel.ring SET seen = '100 days'") // by the clocks of processes it would be time
	for what, step := range map[string]string{
		"unknown":      rotate("NULL", "100 days"),
		"stands still": rotate("now() - interval '3 days'", "100 days"),
	} {
		if step != "" {
			t.Errorf("%s: %q", what, step)
		}
	}
	exec1(t, c, "UPDATE semel.ring SET seen = '0', rotator = NULL")
	for _, seen := range []string{"100 days", "1 minute", "13 hours"} { // the first is of before it called
		if step := rotate("now()", seen); step != "" {
			t.Fatalf("turned before its own clock has seen half: %q", step)
		}
	}
	if step := rotate("now()", "1 hour"); step != "both" {
		t.Fatalf("step %q", step)
	}
	if step := rotate("now()", "0"); step != "frozen" {
		t.Fatalf("step %q", step)
	}
	pass(t, c, 100*day) // the clock jumps
	if step := rotate("now()", "1 minute"); step != "" {
		t.Errorf("step %q", step)
	}
	a.wantFresh(t, false, x)
}

// Of several processes one turns the ring, whose clock counts; another takes over, from
// nothing, when that one is silent.
func TestOneProcessTurnsTheRing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	a.wantFresh(t, true, named("x", 3))
	pass(t, c, 3*day)
	call := func(process int, seen string) string {
		t.Helper()
		return ask[string](t, c, `SELECT coalesce(semel.rotate(1, 'billing', '7 days', now(), 5000000, $1::uuid, $2::interval), '')`,
			fmt.Sprintf("00000000-0000-0000-0000-%012d", process), seen)
	}
	for _, want := range []struct {
		process    int
		seen, step string
	}{
		{1, "0", ""}, {2, "0", "busy"}, {1, "7 hours", ""}, {2, "7 hours", "busy"}, {2, "7 hours", "busy"}, {1, "8 hours", "both"}, {2, "1 day", "busy"}, {1, "0", "frozen"},
	} {
		if step := call(want.process, want.seen); step != want.step {
			t.Fatalf("process %d, %s: %q, want %q", want.process, want.seen, step, want.step)
		}
	}
	a.wantFresh(t, true, named("y", 3))
	pass(t, c, 3*day)
	exec1(t, c, "UPDATE semel.ring SET tried_at = now() - interval '11 minutes'")
	for i, step := range []string{"", "", "both"} {
		if got := call(2, []string{"100 days", "7 hours", "8 hours"}[i]); got != step {
			t.Fatalf("call %d of the one that took over: %q, want %q", i, got, step)
		}
	}
}

func TestFullTableIsTurnedAsLongAsThereIsRoom(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	full := func() (all []string) {
		for {
			step := ask[string](t, c, `SELECT coalesce(semel.rotate(1, 'billing', '7 days', NULL, 1000), '')`)
			if step == "" {
				return all
			}
			all = append(all, step)
		}
	}
	var old [][]inbox.Admission
	for i := range 9 {
		old = append(old, named(fmt.Sprint("n", i), 1500))
		a.wantFresh(t, true, old[i])
		var want []string
		if i < 7 {
			want = []string{"both", "frozen"}
		}
		wantSteps(t, full(), want...)
	}
	for _, as := range old {
		a.wantFresh(t, false, as)
	}
	pass(t, c, 8*day)
	wantSteps(t, steps(t, c), "dropped", "emptied", "dropped", "emptied", "dropped", "emptied", "dropped", "emptied", "dropped", "emptied",
		"dropped", "emptied", "dropped", "emptied", "both", "frozen")
}

func code(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// While two tables are hot an ID is in both, so that whoever works by the newer one
// alone, later, knows it.
func TestTwoHotTablesKnowAnID(t *testing.T) {
	t.Parallel()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			a, c := newAdmits(t, url, 0), connect(t, url)
			a.wantFresh(t, true, named("old", 1))
			pass(t, c, 2*day)
			wantSteps(t, []string{turn(t, c)}, "both")
			x := named("x", n)
			a.wantFresh(t, true, x)
			a.wantFresh(t, false, x)
			for _, table := range []string{"semel.inbox_1_1", "semel.inbox_1_8"} {
				if got := ask[int](t, c, "SELECT count(*)::int FROM "+table+" WHERE id = ANY($1)", uuids(x)); got != n {
					t.Errorf("%d of %d IDs in %s", got, n, table)
				}
			}
		})
	}
}

func uuids(as []inbox.Admission) (out []string) {
	for _, a := range as {
		out = append(out, a.ID.String())
	}
	return out
}

func TestAdmitInSQLKnowsAllTablesOfTheRing(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	x := named("x", 3)
	a.wantFresh(t, true, x)
	pass(t, c, 2*day)
	for _, step := range []string{"both", "frozen"} {
		wantSteps(t, []string{turn(t, c)}, step)
		if ask[bool](t, c, "SELECT semel.admit('billing', $1::uuid)", x[0].ID.String()) {
			t.Errorf("%s: admit: fresh", step)
		}
		if n := ask[int](t, c, "SELECT count(*)::int FROM semel.admit_batch('billing', $1::uuid[])", uuids(x)); n != 0 {
			t.Errorf("%s: admit_batch: %d fresh", step, n)
		}
	}
}

// What is held is the lock of the version that was thought to be current: if the list
// is another's, that one's is taken.
func TestListIsTheOneWhoseLockIsHeld(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	slow, c := newAdmits(t, url, 0), connect(t, url)
	slow.wantFresh(t, true, named("a", 1)) // it knows version 1
	pass(t, c, 2*day)
	wantSteps(t, []string{turn(t, c)}, "both")
	tx, _, err := slow.begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	wantSteps(t, []string{turn(t, c)}, "busy") // version 1 is held as well
	tx.Rollback(t.Context())
	tx, _, err = slow.begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	wantSteps(t, []string{turn(t, c)}, "frozen") // version 1 is not
	wantSteps(t, []string{turn(t, c)}, "busy")   // version 2 is
}

// Also if the row of the partition isn't where the last batch has left it.
func TestListIsHeldWhereTheRowHasMoved(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	slow, c := newAdmits(t, url, 0), connect(t, url)
	slow.wantFresh(t, true, named("a", 1)) // it knows version 1
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	exec1(t, c, "SELECT semel.admit('billing', 'b')")
	exec1(t, c, "UPDATE semel.watermark SET redriven = redriven")
	tx, _, err := slow.begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "busy") // version 3 is held
}

// letter buries an ID of a and answers its number, marked to be handled again.
func (a *admits) letter(t testing.TB, c *pgx.Conn, id inbox.Admission) int64 {
	t.Helper()
	tx, sp, err := a.begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Admit(t.Context(), []inbox.Admission{id})
	must(t, err)
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadValue, ID: id.ID}}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	a.row.Next++
	return ask[int64](t, c, "UPDATE semel.dead_letter SET state = 'redrive' WHERE id = $1 RETURNING number", id.ID.String())
}

func (a *admits) redrive(t testing.TB, id inbox.Admission) inbox.Verdict {
	t.Helper()
	tx, err := a.s.Redrive(t.Context(), nil, 0)
	must(t, err)
	defer tx.Rollback(t.Context())
	v, err := tx.Readmit(t.Context(), id)
	must(t, err)
	must(t, tx.Close(t.Context(), inbox.Applied))
	return v
}

// Model: who works while two tables are hot gets an ID into the older one, and then finds
// that somebody who works by the next list has buried it. That letter was not applied.
func TestLetterIsRedrivenThoughItsIDWentIntoTheOlderTable(t *testing.T) {
	t.Parallel()
	inSQL := func(call string) func(*testing.T, string, inbox.Admission) (uint32, func() error) {
		return func(t *testing.T, url string, x inbox.Admission) (uint32, func() error) {
			c := connect(t, url)
			return c.PgConn().PID(), func() error {
				_, err := c.Exec(t.Context(), call, x.ID.String())
				return err
			}
		}
	}
	for name, other := range map[string]func(*testing.T, string, inbox.Admission) (pid uint32, admit func() error){
		"admit":       inSQL("SELECT semel.admit('billing', $1::uuid)"),
		"admit_batch": inSQL("SELECT semel.admit_batch('billing', ARRAY[$1::uuid])"),
		"Go": func(t *testing.T, url string, x inbox.Admission) (uint32, func() error) {
			p := semel.Partition{Topic: "orders", Number: 2}
			s := newStore(t, url, postgres.InboxConfig{LockTimeout: time.Hour})
			_, err := s.Open(t.Context(), record("billing"))
			must(t, err)
			introduce(t, s, p)
			a := &admits{s, claim(t, s, p)}
			tx, sp, err := a.begin(t.Context())
			must(t, err)
			return tx.DB().Conn().PgConn().PID(), func() error {
				if _, err := tx.Admit(t.Context(), []inbox.Admission{x}); err != nil {
					return err
				}
				return tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			a, c, stop := newAdmits(t, url, 0), connect(t, url), connect(t, url)
			a.wantFresh(t, true, named("old", 1))
			pass(t, c, 2*day)
			wantSteps(t, []string{turn(t, c)}, "both")
			x := named("x", 1)[0]
			pid, admit := other(t, url, x)
			exec1(t, stop, "BEGIN")
			exec1(t, stop, "LOCK TABLE semel.inbox_1_1 IN SHARE MODE")
			done := make(chan error, 1)
			go func() { done <- admit() }()
			until(t, c, "SELECT cardinality(pg_blocking_pids($1)) > 0", pid) // it works by the list of both
			wantSteps(t, []string{turn(t, c)}, "frozen")
			a.letter(t, c, x)
			exec1(t, stop, "ROLLBACK")
			must(t, <-done)
			if v := a.redrive(t, x); v != inbox.Fresh {
				t.Errorf("verdict %v", v)
			}
		})
	}
}

func TestLetterOfTwoHotTablesIsRedriven(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	a.wantFresh(t, true, named("old", 1))
	pass(t, c, 2*day)
	wantSteps(t, []string{turn(t, c)}, "both")
	x := named("x", 1)[0]
	a.letter(t, c, x)
	if v := a.redrive(t, x); v != inbox.Fresh {
		t.Errorf("verdict %v", v)
	}
}

// Its table may be frozen by then, and another letter of the same ID applied.
func TestRedriveAsksFrozenTables(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, c := newAdmits(t, url, 0), connect(t, url)
	x := named("x", 1)[0]
	number := a.letter(t, c, x)
	again := func() { exec1(t, c, "UPDATE semel.dead_letter SET state = 'redrive' WHERE number = $1", number) }
	freeze := func() {
		pass(t, c, 2*day)
		a.wantFresh(t, true, named(fmt.Sprint("filler", ask[int64](t, c, "SELECT version FROM semel.ring")), 1))
		wantSteps(t, steps(t, c), "both", "frozen")
	}
	freeze()
	if v := a.redrive(t, x); v != inbox.Fresh {
		t.Fatalf("of a frozen table: verdict %v", v)
	}
	a.wantFresh(t, false, []inbox.Admission{x})
	again()
	if v := a.redrive(t, x); v != inbox.Duplicate {
		t.Fatalf("twice: verdict %v", v)
	}
	freeze()
	again()
	if v := a.redrive(t, x); v != inbox.Duplicate {
		t.Errorf("twice, and the second time frozen: verdict %v", v)
	}
}
