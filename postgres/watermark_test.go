package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

func watermark(t *testing.T, url string) (*postgres.Watermark, *pgxpool.Pool) {
	t.Helper()
	pool := newPool(t, url)
	return postgres.NewWatermark(pool, postgres.WatermarkConfig{Consumer: "loop"}), pool
}

// advance is a transaction of a loop: the watermark, then an effect.
func advance(ctx context.Context, w *postgres.Watermark, pool *pgxpool.Pool, level pgx.TxIsoLevel, spans ...inbox.Span) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		if err := w.Advance(ctx, tx, spans...); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO effect SELECT 1")
		return err
	})
}

func claimed(t *testing.T, w *postgres.Watermark, p semel.Partition, start, want int64) inbox.Claim {
	t.Helper()
	c, next, err := w.Claim(t.Context(), p, semel.TopicID{}, start)
	must(t, err)
	if next != want {
		t.Fatalf("the claim says %d, want %d", next, want)
	}
	return c
}

func TestAdvanceHoldsWhileTheClaimDoes(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE effect (n integer)")
	first := claimed(t, w, p0, 40, 40)
	must(t, advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: first, From: 40, To: 45}))
	must(t, advance(t.Context(), w, pool, pgx.RepeatableRead, inbox.Span{Claim: first, From: 45, To: 45}))
	must(t, advance(t.Context(), w, pool, pgx.Serializable, inbox.Span{Claim: first, From: 45, To: 50}))
	fenced := func(why string, claim inbox.Claim, from int64) {
		t.Helper()
		err := advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: claim, From: from, To: from + 10})
		if !errors.Is(err, semel.ErrFenced) || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q, got %v", why, err)
		}
	}
	fenced("settled up to 50", first, 45)
	fenced("went back to 50", first, 60)
	second := claimed(t, w, p0, 0, 50)
	if second.Generation != first.Generation+1 || second.Token == first.Token {
		t.Errorf("%+v after %+v", second, first)
	}
	fenced("later claim", first, 50)
	must(t, advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: second, From: 50, To: 60}))
	exec1(t, c, "DELETE FROM semel.watermark")
	fenced("gone", second, 60)
	claimed(t, w, p0, 40, 40)
	if n := ask[int](t, c, "SELECT count(*)::int FROM effect"); n != 4 {
		t.Errorf("%d effects of 4", n)
	}
}

func TestAdvanceRefusesWhatIsNoStep(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	c := claimed(t, w, p0, 5, 5)
	for _, s := range []inbox.Span{{Claim: c, From: 5, To: 4}, {From: 5, To: 6}} {
		if err := advance(t.Context(), w, pool, pgx.ReadCommitted, s); err == nil || errors.Is(err, semel.ErrFenced) || !strings.Contains(err.Error(), "22023") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return w.Advance(t.Context(), tx) }); err != nil {
		t.Error(err)
	}
}

// An error that a loop swallows must not let its effects through.
func TestFencedTransactionCannotCommit(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	exec1(t, connect(t, url), "CREATE TABLE effect (n integer)")
	old := claimed(t, w, p0, 0, 0)
	claimed(t, w, p0, 0, 0)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	_ = w.Advance(t.Context(), tx, inbox.Span{Claim: old, To: 1})
	_, _ = tx.Exec(t.Context(), "INSERT INTO effect VALUES (1)")
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("committed")
	}
	if n := ask[int](t, connect(t, url), "SELECT count(*)::int FROM effect"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestFirstClaimsAtTheSameTimeHaveOneWinner(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	exec1(t, connect(t, url), "CREATE TABLE effect (n integer)")
	claims := make([]inbox.Claim, 6)
	var g errgroup.Group
	for i := range claims {
		g.Go(func() (err error) {
			claims[i], _, err = w.Claim(t.Context(), p0, semel.TopicID{}, 7)
			return err
		})
	}
	must(t, g.Wait())
	hold := 0
	for _, c := range claims {
		err := advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: c, From: 7, To: 8})
		if err == nil {
			hold++
		} else if !errors.Is(err, semel.ErrFenced) {
			t.Error(err)
		}
	}
	if hold != 1 {
		t.Errorf("%d claims hold", hold)
	}
}

func TestClaimEndsAZombieInsideALoopsTransaction(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"plain", "savepoint"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			w, _ := watermark(t, url)
			zombie, err := connect(t, url).Begin(t.Context())
			must(t, err)
			tx := zombie
			if way == "savepoint" {
				tx, err = zombie.Begin(t.Context())
				must(t, err)
			}
			must(t, w.Advance(t.Context(), tx, inbox.Span{Claim: claimed(t, w, p0, 0, 0), To: 100}))
			if way == "savepoint" {
				must(t, tx.Commit(t.Context())) // it is released, and its own lock with it
			}
			c := claimed(t, w, p0, 0, 0) // it would wait for good
			if err := zombie.Commit(t.Context()); err == nil {
				t.Error("the zombie committed")
			}
			db := connect(t, url)
			if n := ask[int](t, db, "SELECT count(*)::int FROM semel.event WHERE kind = 'zombie-ended' AND consumer = 'loop'"); n != 1 {
				t.Errorf("%d events", n)
			}
			if at := ask[int64](t, db, "SELECT next_offset FROM semel.watermark WHERE claim_token = $1::text::uuid", semel.ID(c.Token).String()); at != 0 {
				t.Errorf("the row stands at %d", at)
			}
		})
	}
}

func TestStrangersAreNotEnded(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	c := claimed(t, w, p0, 0, 0)
	stranger, err := connect(t, url).Begin(t.Context())
	must(t, err)
	_, err = stranger.Exec(t.Context(), "SELECT FROM semel.watermark FOR UPDATE")
	must(t, err)
	if _, _, err := w.Claim(t.Context(), p0, semel.TopicID{}, 0); err == nil || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("claim: %v", err)
	}
	err = advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: c, To: 1})
	if !errors.Is(err, semel.ErrFenced) || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("advance: %v", err)
	}
	must(t, stranger.Commit(t.Context()))
}

func TestClaimsThatAreRefused(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, _ := watermark(t, url)
	opened(t, url, "billing")
	run := postgres.NewWatermark(newPool(t, url), postgres.WatermarkConfig{Consumer: "billing"})
	if _, _, err := run.Claim(t.Context(), p0, semel.TopicID{}, 0); err == nil || !strings.Contains(err.Error(), "SM005") {
		t.Errorf("a consumer that a run has: %v", err)
	}
	for _, step := range []struct {
		topic semel.TopicID
		holds bool
	}{{semel.TopicID{}, true}, {semel.TopicID{1}, true}, {semel.TopicID{}, true}, {semel.TopicID{2}, false}, {semel.TopicID{1}, true}} {
		_, _, err := w.Claim(t.Context(), p0, step.topic, 0)
		if (err == nil) != step.holds || err != nil && !strings.Contains(err.Error(), "SM005") {
			t.Errorf("topic %s: %v", step.topic, err)
		}
	}
	if _, err := connect(t, url).Exec(t.Context(), "SELECT semel.claim('loop', 'orders', 0, NULL)"); err == nil || !strings.Contains(err.Error(), "22004") {
		t.Errorf("no start: %v", err)
	}
}

func TestManyPartitionsInATransactionNeverDeadlock(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	exec1(t, connect(t, url), "CREATE TABLE effect (n integer)")
	var spans []inbox.Span
	for i := range int32(6) {
		spans = append(spans, inbox.Span{Claim: claimed(t, w, semel.Partition{Topic: "orders", Number: i}, 0, 0)})
	}
	var g errgroup.Group
	for range 4 {
		mine := append([]inbox.Span(nil), spans...)
		g.Go(func() error {
			for range 30 {
				rand.Shuffle(len(mine), func(i, k int) { mine[i], mine[k] = mine[k], mine[i] })
				if err := advance(t.Context(), w, pool, pgx.ReadCommitted, mine...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
}

func TestSessionsAreNamedAsARunNamesThem(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`[a-z/ ~!.-]{0,30}`), rapid.StringMatching(`[^\x00]{0,30}`)).Draw(t, "consumer")
		var got string
		if err := c.QueryRow(ctx, "SELECT semel.session_of($1::text)", name).Scan(&got); err != nil || got != postgres.NameSessions(name) {
			t.Fatalf("%q, want %q, %v", got, postgres.NameSessions(name), err)
		}
	})
}

// Loops that follow the steps, over a log with holes: claims are taken away at any
// time, transactions fail, answers to COMMIT are lost, and the database is put
// back. Every message takes effect once.
func TestLoopsOfTheirOwnTakeEffectOnce(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	w, pool := watermark(t, url)
	db := connect(t, url)
	exec1(t, db, "CREATE TABLE effect (at bigint)")
	const end = 600
	var log []int64 // offsets that hold a message
	for at := range int64(end) {
		if at%7 != 3 && at%11 != 5 {
			log = append(log, at)
		}
	}
	loop := func(seed uint64) error {
		r := rand.New(rand.NewPCG(seed, 1))
		for {
			claim, next, err := w.Claim(t.Context(), p0, semel.TopicID{}, 0)
			if err != nil {
				return err
			}
			for {
				if next >= log[len(log)-1]+1 {
					return nil
				}
				var batch []int64
				size := 1 + r.IntN(9)
				for _, at := range log {
					if at >= next && len(batch) < size {
						batch = append(batch, at)
					}
				}
				to := batch[len(batch)-1] + 1
				fault := r.IntN(12)
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if err := w.Advance(t.Context(), tx, inbox.Span{Claim: claim, From: next, To: to}); err != nil {
						return err
					}
					if _, err := tx.Exec(t.Context(), "INSERT INTO effect SELECT unnest($1::bigint[])", batch); err != nil {
						return err
					}
					if fault == 0 {
						return errors.New("the handler fails")
					}
					return nil
				})
				if fault == 1 {
					err = errors.New("the answer to COMMIT is lost") // or a rebalance
				}
				if err != nil {
					break // claim again
				}
				next = to
			}
		}
	}
	run := func() {
		t.Helper()
		var g errgroup.Group
		for i := range uint64(3) {
			g.Go(func() error { return loop(i) })
		}
		must(t, g.Wait())
	}
	once := func() {
		t.Helper()
		if got := ask[string](t, db, "SELECT count(*) || ' ' || count(DISTINCT at) FROM effect"); got != fmt.Sprintf("%d %d", len(log), len(log)) {
			t.Errorf("effects, different ones: %s, of %d", got, len(log))
		}
	}
	run()
	once()
	// A restore takes effects and places back together. The one that went on
	// before it sees it at its next step.
	claim, next, err := w.Claim(t.Context(), p0, semel.TopicID{}, 0)
	must(t, err)
	exec1(t, db, "BEGIN; DELETE FROM effect WHERE at >= 250; UPDATE semel.watermark SET next_offset = 250, claim_token = gen_random_uuid(); COMMIT")
	if err := advance(t.Context(), w, pool, pgx.ReadCommitted, inbox.Span{Claim: claim, From: next, To: next + 1}); !errors.Is(err, semel.ErrFenced) {
		t.Errorf("got %v", err)
	}
	run()
	once()
	exec1(t, db, "TRUNCATE effect, semel.watermark") // to before the first claim
	run()
	once()
}
