package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// Lanes of two processes with filters of their own, and callers in SQL, admit the same IDs
// while several turn the ring, time passes in leaps, sessions are ended, and letters are
// buried and closed. An ID has one effect, and one more for each time that the ring
// forgot it; none is called known that never had one.
func TestRingIsExactUnderRandomTurns(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `SELECT semel.register('billing');
		CREATE TABLE effect (id uuid NOT NULL); CREATE TABLE known (id uuid NOT NULL); CREATE TABLE forgotten (id uuid NOT NULL);
		CREATE INDEX ON effect (id);`)
	const lanes, turns, callers = 4, 300, 2
	r := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	pool := make([]semel.ID, 400)
	for i := range pool {
		pool[i] = semel.IDOf(fmt.Append(nil, seed, i))
	}
	draw := func(r *rand.Rand) []inbox.Admission {
		n := 1 + r.IntN(20)
		if r.IntN(3) == 0 {
			n = 80 + r.IntN(100) // these go in by COPY
		}
		var as []inbox.Admission
		for _, i := range r.Perm(len(pool))[:n] {
			as = append(as, inbox.Admission{ID: pool[i]})
		}
		return as
	}

	var fresh, repeats, undone, killed, forgot, drops atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	work, wctx := errgroup.WithContext(ctx)
	processes := []*postgres.Rings{postgres.NewRings(newPool(t, url), postgres.RingsConfig{}), postgres.NewRings(newPool(t, url), postgres.RingsConfig{})}
	t.Cleanup(func() {
		for _, p := range processes {
			p.Close()
		}
	})
	for i := range lanes {
		p := semel.Partition{Topic: "orders", Number: int32(i)}
		s := newStore(t, url, postgres.InboxConfig{Rings: processes[i%2]})
		_, err := s.Open(wctx, record("billing"))
		must(t, err)
		introduce(t, s, p)
		row := claim(t, s, p)
		work.Go(func() error {
			r := r(uint64(i))
			for n := 0; n < turns && wctx.Err() == nil; {
				next, err := randomBatch(wctx, s, row, draw(r), r, &fresh, &repeats)
				if err == nil {
					n++
				} else {
					undone.Add(1)
				}
				for err != nil && wctx.Err() == nil {
					next, err = s.Claim(wctx, p, inbox.Owner{Host: "here"}, keep)
				}
				row = next
			}
			return wctx.Err()
		})
	}
	for i := range callers {
		conn := connect(t, url)
		work.Go(func() error {
			r := r(uint64(100 + i))
			for range turns {
				as := draw(r)
				asked := make([]pgtype.UUID, len(as))
				for i, a := range as {
					asked[i] = pgtype.UUID{Bytes: a.ID, Valid: true}
				}
				_, err := conn.Exec(wctx, `WITH f AS MATERIALIZED (SELECT semel.admit_batch('billing', $1::uuid[]) AS id), e AS (INSERT INTO effect SELECT id FROM f)
					INSERT INTO known SELECT u FROM unnest($1::uuid[]) u WHERE u NOT IN (SELECT id FROM f)`, asked)
				if err != nil && code(err) != "40001" {
					return err
				}
			}
			return nil
		})
	}

	disturb, dctx := errgroup.WithContext(ctx)
	disturbing := func(n uint64, f func(r *rand.Rand, conn *pgx.Conn) error) {
		conn := connect(t, url)
		disturb.Go(func() error {
			for r := r(n); wctx.Err() == nil && dctx.Err() == nil; {
				if err := f(r, conn); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range 2 { // who turns: what goes off the list is noted in the same transaction
		disturbing(uint64(200+i), func(r *rand.Rand, conn *pgx.Conn) error {
			return pgx.BeginFunc(dctx, conn, func(tx pgx.Tx) error {
				var step string
				size := []int{1, 5_000_000}[r.IntN(2)]
				err := tx.QueryRow(dctx, `SELECT coalesce(semel.rotate(1, 'billing', '1 hour', now(), $1), '')`, size).Scan(&step)
				if err != nil || step != "dropped" {
					return err
				}
				drops.Add(1)
				rows, err := tx.Query(dctx, `SELECT g.relation::text, g.number IS NOT NULL FROM semel.generation g WHERE pg_relation_size(g.relation) > 0 ORDER BY 2`)
				if err != nil {
					return err
				}
				off, still := "", "SELECT NULL::uuid AS id"
				var name string
				var listed bool
				if _, err = pgx.ForEachRow(rows, []any{&name, &listed}, func() error {
					if !listed {
						off = name
					} else {
						still += " UNION ALL SELECT id FROM " + name
					}
					return nil
				}); err != nil || off == "" {
					return err
				}
				tag, err := tx.Exec(dctx, fmt.Sprintf(`INSERT INTO forgotten SELECT id FROM %s o WHERE NOT EXISTS (SELECT FROM (%s) s WHERE s.id = o.id)`, off, still))
				forgot.Add(tag.RowsAffected())
				return err
			})
		})
	}
	disturbing(300, func(r *rand.Rand, conn *pgx.Conn) error { // time passes
		_, err := conn.Exec(dctx, `WITH l AS MATERIALIZED (SELECT FROM semel.ring FOR UPDATE), n AS (SELECT count(*) FROM l)
			UPDATE semel.generation SET from_time = from_time - $1::interval, to_time = to_time - $1::interval FROM n`,
			fmt.Sprintf("%d minutes", r.IntN(40)))
		if err == nil {
			_, err = conn.Exec(dctx, "SELECT pg_sleep(0.02)")
		}
		return err
	})
	disturbing(400, func(r *rand.Rand, conn *pgx.Conn) error { // a session ends
		tag, err := conn.Exec(dctx, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'semel/billing/%' AND backend_xid IS NOT NULL ORDER BY random() LIMIT 1) v`)
		killed.Add(tag.RowsAffected())
		if err == nil {
			_, err = conn.Exec(dctx, "SELECT pg_sleep(0.05)")
		}
		return err
	})
	disturbing(500, func(r *rand.Rand, conn *pgx.Conn) error { // letters are closed
		_, err := conn.Exec(dctx, `UPDATE semel.dead_letter SET state = 'discarded' WHERE state = 'buried' AND random() < 0.2`)
		if err == nil {
			_, err = conn.Exec(dctx, "SELECT pg_sleep(0.1)")
		}
		return err
	})
	must(t, work.Wait())
	cancel()
	_ = disturb.Wait() // their context has ended

	t.Logf("%d fresh, %d repeats, %d batches undone, %d sessions ended, %d drops that forgot %d IDs", fresh.Load(), repeats.Load(), undone.Load(), killed.Load(), drops.Load(), forgot.Load())
	if drops.Load() == 0 || forgot.Load() == 0 || killed.Load() == 0 || repeats.Load() == 0 {
		t.Error("a disturbance never came")
	}
	if n := ask[int](t, c, `SELECT count(*)::int FROM (SELECT id, count(*) AS n FROM effect GROUP BY id) e
		WHERE n > 1 + (SELECT count(*) FROM forgotten f WHERE f.id = e.id)`); n != 0 {
		t.Errorf("%d IDs took effect more often than they were forgotten", n)
	}
	if n := ask[int](t, c, `SELECT count(DISTINCT id)::int FROM known WHERE id NOT IN (SELECT id FROM effect)`); n != 0 {
		t.Errorf("%d IDs were called known and never had an effect", n)
	}
	if n := ask[int](t, c, `SELECT count(*)::int FROM semel.dead_letter d WHERE state = 'buried' AND id NOT IN (SELECT id FROM semel.inbox)`); n != 0 {
		t.Errorf("the IDs of %d living letters are gone", n)
	}
}

// randomBatch settles a batch of admissions, one of which may be buried.
func randomBatch(ctx context.Context, s *postgres.InboxStore, row inbox.Row, as []inbox.Admission, r *rand.Rand, fresh, repeats *atomic.Int64) (inbox.Row, error) {
	sp := span(row, 1)
	tx, err := s.Begin(ctx, []inbox.Span{sp})
	if err != nil {
		return row, err
	}
	defer tx.Rollback(ctx)
	vs, err := tx.Admit(ctx, as)
	if err != nil {
		return row, err
	}
	var in, out []pgtype.UUID
	for i, v := range vs {
		id := pgtype.UUID{Bytes: as[i].ID, Valid: true}
		if v == inbox.Fresh {
			in = append(in, id)
		} else {
			out = append(out, id)
		}
	}
	if _, err := tx.DB().Exec(ctx, `WITH e AS (INSERT INTO effect SELECT unnest($1::uuid[])) INSERT INTO known SELECT unnest($2::uuid[])`, in, out); err != nil {
		return row, err
	}
	if at := slices.Index(vs, inbox.Fresh); at >= 0 && r.IntN(4) == 0 {
		letter := inbox.DeadLetter{Message: semel.Message{Topic: "orders"}, Class: inbox.DeadValue, ID: as[at].ID}
		if err := tx.Bury(ctx, []inbox.DeadLetter{letter}); err != nil {
			return row, err
		}
	}
	if err := tx.Commit(ctx, []inbox.Settled{{Span: sp}}); err != nil {
		return row, err
	}
	fresh.Add(int64(len(in)))
	repeats.Add(int64(len(out)))
	row.Next++
	return row, nil
}
