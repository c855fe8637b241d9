package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// frozen gives a lane with shared rings and a frozen table of n IDs.
func frozen(t *testing.T, url string, n int, cfg postgres.RingsConfig, asked *questions) (*admits, *postgres.Rings, []inbox.Admission) {
	t.Helper()
	rings := postgres.NewRings(newPool(t, url), cfg)
	t.Cleanup(rings.Close)
	c := connect(t, url)
	first := newAdmits(t, url, 0)
	old := named("old", n)
	first.wantFresh(t, true, old)
	pass(t, c, 2*day)
	wantSteps(t, steps(t, c), "both", "frozen")
	pc, err := pgxpool.ParseConfig(url)
	must(t, err)
	if asked != nil {
		pc.ConnConfig.Tracer = asked
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	must(t, err)
	t.Cleanup(pool.Close)
	s := postgres.NewInboxStore(pool, postgres.InboxConfig{Rings: rings})
	t.Cleanup(s.Close)
	_, err = s.Open(t.Context(), record("billing"))
	must(t, err)
	return &admits{s, claim(t, s, first.row.Partition)}, rings, old
}

// questions counts the IDs that a table is asked about.
type questions struct {
	table string
	n     int
}

func (q *questions) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (q *questions) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (q *questions) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (q *questions) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (q *questions) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if strings.Contains(d.SQL, q.table) {
		q.n += len(d.Args[0].([]pgtype.UUID))
	}
}

func TestFilterSparesTheDatabaseAndIsNeverWrong(t *testing.T) {
	t.Parallel()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			asked := &questions{table: "inbox_1_1"}
			a, rings, old := frozen(t, url, 2000, postgres.RingsConfig{}, asked)
			a.wantFresh(t, true, named("before", n)) // a batch has them built
			rings.Built()
			if got := rings.Bytes(); got < 2*2000 {
				t.Fatalf("the filter takes %d bytes", got)
			}
			if asked.n < n {
				t.Errorf("asked for %d of %d IDs without a filter", asked.n, n)
			}
			asked.n = 0
			a.wantFresh(t, true, named("after", n))
			if asked.n > n/10 {
				t.Errorf("asked for %d of %d new IDs", asked.n, n)
			}
			a.wantFresh(t, false, old)
			a.wantFresh(t, false, old[:1])
		})
	}
}

// Model, R4: a filter that was built while its table was emptied would say no to all
// that the table holds once the database has gone back.
func TestFilterOfATableThatWasEmptiedMeanwhileIsNotKept(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, rings, old := frozen(t, url, 10, postgres.RingsConfig{}, nil)
	c, other := connect(t, url), connect(t, url)
	exec1(t, c, "CREATE TABLE back AS TABLE semel.inbox_1_1; CREATE TABLE list AS TABLE semel.generation")
	exec1(t, c, "BEGIN; LOCK TABLE semel.inbox_1_1 IN ACCESS EXCLUSIVE MODE")
	// A batch whose list names the table would wait for its lock: the builder is woken alone.
	must(t, rings.Build(t.Context(), a.s, other))
	deadline := time.Now().Add(time.Minute)
	for ask[int](t, other, "SELECT count(*)::int FROM pg_locks WHERE relation = 'semel.inbox_1_1'::regclass AND NOT granted") == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the filter is not built")
		}
		time.Sleep(time.Millisecond)
	}
	exec1(t, c, "UPDATE semel.generation SET state = 'unlisted', number = NULL, token = NULL WHERE slot = 1")
	exec1(t, c, "TRUNCATE semel.inbox_1_1")
	exec1(t, c, "COMMIT")
	rings.Built()
	exec1(t, c, `INSERT INTO semel.inbox_1_1 TABLE back;
		UPDATE semel.generation g SET state = l.state, number = l.number, token = l.token FROM list l WHERE g.slot = 1 AND l.slot = 1`)
	a.wantFresh(t, false, old)
}

// A filter beyond the memory isn't built; the database is asked.
func TestFiltersKeepToTheirMemory(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	a, rings, old := frozen(t, url, 2000, postgres.RingsConfig{Memory: 1000}, nil)
	a.wantFresh(t, true, named("new", 100))
	rings.Built()
	if got := rings.Bytes(); got != 0 {
		t.Errorf("filters take %d bytes of 1,000", got)
	}
	a.wantFresh(t, false, old)
}
