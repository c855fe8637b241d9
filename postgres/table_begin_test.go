package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// tableLane is a store that asks about its table when it begins.
type tableLane struct {
	t     *testing.T
	c     *pgx.Conn
	store *postgres.InboxStore
	table *postgres.Table
	row   inbox.Row
}

func newTableLane(t *testing.T, cfg postgres.TableConfig, grants ...string) *tableLane {
	t.Helper()
	url := migrated(t)
	l := &tableLane{t: t, c: connect(t, url)}
	exec1(t, l.c, "CREATE DOMAIN public.big AS bigint; CREATE TABLE public.c (id int PRIMARY KEY, v public.big)")
	if len(grants) > 0 {
		opened(t, url, "billing") // as migrate FILE does
		url = granted(t, url, grants...)
	}
	pool := newPool(t, url)
	var err error
	l.table, err = postgres.NewTable(t.Context(), pool, cfg)
	must(t, err)
	l.store = postgres.NewInboxStore(pool, postgres.InboxConfig{LockTimeout: 100 * time.Millisecond, Table: l.table})
	t.Cleanup(l.store.Close)
	_, err = l.store.Open(t.Context(), record("billing"))
	must(t, err)
	introduce(t, l.store, p0)
	l.row = claim(t, l.store, p0)
	return l
}

// settle writes values in a transaction, begun by the COMMIT before if tx is given.
func (l *tableLane) settle(tx inbox.Tx[pgx.Tx], values ...string) (then inbox.Tx[pgx.Tx], err error) {
	l.t.Helper()
	sp := span(l.row, int64(len(values)))
	if tx == nil {
		if tx, err = l.store.Begin(l.t.Context(), []inbox.Span{sp}); err != nil {
			return nil, err
		}
	}
	defer tx.Rollback(l.t.Context())
	items := make([]inbox.Item, len(values))
	ps := make([]*inbox.Item, len(values))
	for i, v := range values {
		items[i].Message = semel.Message{Topic: p0.Topic, Offset: sp.From + int64(i), Value: []byte(v)}
		ps[i] = &items[i]
	}
	l.table.Decode(items)
	if err := l.table.Apply(l.t.Context(), tx, ps); err != nil {
		return nil, err
	}
	l.row.Next = sp.To
	return tx.(inbox.Chainer[pgx.Tx]).CommitAndBegin(l.t.Context(), []inbox.Settled{{Span: sp}}, []inbox.Span{span(l.row, int64(len(values)))})
}

var tableLaneConfig = postgres.TableConfig{Table: "public.c", Write: postgres.WriteInsert, ID: []string{"value.id"}}

// What the table is asked together with BEGIN is as good as what it is asked later:
// its columns are locked and compared, known keys are found, and one after the other
// COMMIT begins the next.
func TestTableIsAskedTogetherWithBegin(t *testing.T) {
	t.Parallel()
	l := newTableLane(t, tableLaneConfig)
	tx, err := l.settle(nil, `{"id":1,"v":1}`)
	must(t, err)
	for i, v := range []string{`{"id":2,"v":1}`, `{"id":1,"v":1}`, `{"id":3,"v":1}`} { // the second is known
		if tx, err = l.settle(tx, v); err != nil {
			t.Fatal(err)
		}
		if i > 0 && tx == nil {
			t.Fatal("COMMIT begins nothing")
		}
	}
	tx.Rollback(t.Context())
	if n := ask[int](t, l.c, "SELECT count(*)::int FROM public.c"); n != 3 {
		t.Errorf("%d rows", n)
	}
	tx = begin(t, l.store, span(l.row, 1))
	exec1(t, l.c, "SET lock_timeout = '50ms'")
	var pg *pgconn.PgError
	if _, err := l.c.Exec(t.Context(), "ALTER TABLE public.c ALTER v TYPE int"); !errors.As(err, &pg) || pg.Code != "55P03" {
		t.Errorf("the table can be altered behind BEGIN: %v", err)
	}
	tx.Rollback(t.Context())
	exec1(t, l.c, "RESET lock_timeout")
	exec1(t, l.c, "ALTER TABLE public.c ALTER v TYPE int")
	_, err = l.settle(nil, `{"id":4,"v":1}`) // a plan that is out of date
	if l.store.Class(err) != inbox.ClassConflict {
		t.Errorf("after ALTER: %v", err)
	}
	_, err = l.settle(nil, `{"id":4,"v":1}`)
	var halt *inbox.HaltError
	if !errors.As(err, &halt) || halt.Kind != "table-changed" {
		t.Errorf("after ALTER: %v", err)
	}
}

// A dump that is restored leaves types of the same names with other OIDs: the question that is prepared is prepared anew,
// once, and goes with BEGIN and COMMIT again.
func TestTableIsAskedAnewWhenItsTypesHaveOtherOIDs(t *testing.T) {
	t.Parallel()
	l := newTableLane(t, tableLaneConfig)
	tx, err := l.settle(nil, `{"id":1,"v":1}`)
	must(t, err)
	if tx, err = l.settle(tx, `{"id":2,"v":1}`); err != nil || tx == nil {
		t.Fatalf("COMMIT begins nothing: %v", err)
	}
	tx.Rollback(t.Context())
	exec1(t, l.c, `ALTER TABLE public.c RENAME TO old; ALTER INDEX public.c_pkey RENAME TO old_pkey; ALTER DOMAIN public.big RENAME TO old_big;
		CREATE DOMAIN public.big AS bigint; CREATE TABLE public.c (id int PRIMARY KEY, v public.big); INSERT INTO public.c SELECT * FROM public.old`)
	_, err = l.settle(nil, `{"id":3,"v":1}`)
	if l.store.Class(err) != inbox.ClassConflict {
		t.Fatalf("the question that was prepared is not refused: %v", err)
	}
	tx = nil
	for i := 3; i <= 5; i++ {
		if tx, err = l.settle(tx, fmt.Sprintf(`{"id":%d,"v":1}`, i)); err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	if tx == nil {
		t.Fatal("COMMIT begins nothing any more")
	}
	tx.Rollback(t.Context())
	if n := ask[int](t, l.c, "SELECT count(*)::int FROM public.c"); n != 5 {
		t.Errorf("%d rows", n)
	}
}

// A table that is locked is no row that is fenced.
func TestLockedTableIsNoFence(t *testing.T) {
	t.Parallel()
	l := newTableLane(t, tableLaneConfig)
	tx, err := l.settle(nil, `{"id":0,"v":1}`)
	must(t, err)
	if tx != nil {
		tx.Rollback(t.Context())
	}
	exec1(t, l.c, "BEGIN; LOCK TABLE public.c IN ACCESS EXCLUSIVE MODE")
	_, err = l.store.Begin(t.Context(), []inbox.Span{span(l.row, 1)})
	var fenced *inbox.FencedError
	if err == nil || errors.As(err, &fenced) || l.store.Class(err) != inbox.ClassConflict {
		t.Errorf("Begin answers %v, class %s", err, l.store.Class(err))
	}
	exec1(t, l.c, "ROLLBACK")
	_, err = l.settle(nil, `{"id":1,"v":1}`)
	must(t, err)
}

// Who may only insert asks in another way.
func TestWhoMayOnlyInsertIsServed(t *testing.T) {
	t.Parallel()
	l := newTableLane(t, postgres.TableConfig{Table: "public.c", Write: postgres.WriteAppend}, "INSERT ON public.c")
	tx, err := l.settle(nil, `{"id":1,"v":1}`)
	for i := 2; err == nil && i < 5; i++ {
		tx, err = l.settle(tx, `{"id":`+string(rune('0'+i))+`,"v":1}`)
	}
	must(t, err)
	if tx != nil {
		tx.Rollback(t.Context())
	}
	if n := ask[int](t, l.c, "SELECT count(*)::int FROM public.c"); n != 4 {
		t.Errorf("%d rows", n)
	}
}

// Keys that this lane has written are asked about, and only they: a batch with a few
// repeats isn't refused. What somebody else wrote is found by the refusal.
func TestOwnRepeatsAreSuspected(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE c (id int PRIMARY KEY)`, postgres.TableConfig{Table: "c", Write: postgres.WriteInsert, ID: []string{"value.id"}})
	row := func(n int) string { return fmt.Sprintf(`{"id":%d}`, n) }
	for batch := range 5 {
		values := tableValuesOf(100, func(i int) string { return row(100*batch + i) })
		if batch > 0 {
			values = append(values, row(100*batch-1), row(7))
		}
		items := b.settle(values...)
		for i := range items {
			want := inbox.Applied
			if i >= 100 {
				want = inbox.DuplicateID
			}
			if items[i].Outcome != want {
				t.Fatalf("message %d of batch %d: %s", i, batch, items[i].Outcome)
			}
		}
	}
	if n := b.table.Refusals(); n != 0 {
		t.Errorf("%d batches were refused", n)
	}
	b.exec("INSERT INTO c SELECT generate_series(1000, 1010)")
	for batch := range 3 {
		n := 1005 + batch
		items := b.settle(row(n), row(2000+batch))
		if items[0].Outcome != inbox.DuplicateID || items[1].Outcome != inbox.Applied {
			t.Errorf("batch %d: %s, %s", batch, items[0].Outcome, items[1].Outcome)
		}
	}
	if n := b.table.Refusals(); n != 2 { // then all are asked
		t.Errorf("%d batches were refused", n)
	}
}
