package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

func admissions(n int, digest byte) []inbox.Admission {
	as := make([]inbox.Admission, n)
	for i := range as {
		as[i] = inbox.Admission{ID: semel.IDOf(fmt.Append(nil, i)), Digest: inbox.Digest{digest}}
	}
	rand.Shuffle(n, func(i, k int) { as[i], as[k] = as[k], as[i] })
	return as
}

// few and many admissions go different ways.
var sizes = map[string]int{"few": 3, "many": 500}

func TestAdmitKnowsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, row := lane(t, migrated(t))
			all := admissions(n, 1)
			step := func(as []inbox.Admission, commit bool, want inbox.Verdict) {
				t.Helper()
				sp := span(row, 1)
				tx := begin(t, s, sp)
				vs, err := tx.Admit(t.Context(), as)
				must(t, err)
				for i, v := range vs {
					if v != want {
						t.Fatalf("admission %d: verdict %d, want %d", i, v, want)
					}
				}
				if commit {
					must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
					row.Next++
				}
				tx.Rollback(t.Context())
			}
			step(all, false, inbox.Fresh)
			step(all, true, inbox.Fresh)
			step(all, false, inbox.Duplicate)
			other := slices.Clone(all)
			for i := range other {
				other[i].Digest = inbox.Digest{2}
			}
			step(other, false, inbox.Collision)
			for i := range other {
				other[i].Digest = inbox.Digest{}
			}
			step(other, false, inbox.Duplicate)

			// Half of them new: the answers are in the order of the questions.
			mixed := admissions(2*n, 1)
			tx := begin(t, s, span(row, 1))
			vs, err := tx.Admit(t.Context(), mixed)
			must(t, err)
			for i, v := range vs {
				if known := slices.Contains(all, mixed[i]); known != (v == inbox.Duplicate) {
					t.Fatalf("known %t, verdict %d", known, v)
				}
			}
		})
	}
}

func TestConsumersRememberApart(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	for _, consumer := range []string{"a", "b"} {
		s := opened(t, url, consumer)
		introduce(t, s, p0)
		sp := span(claim(t, s, p0), 1)
		tx := begin(t, s, sp)
		vs, err := tx.Admit(t.Context(), admissions(100, 1))
		must(t, err)
		if slices.Contains(vs, inbox.Duplicate) {
			t.Errorf("%s takes another's IDs for its own", consumer)
		}
		must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	}
	if n := ask[int](t, connect(t, url), "SELECT count(*)::int FROM semel.inbox WHERE consumer = 'a' AND how = 'applied'"); n != 100 {
		t.Errorf("the view shows %d", n)
	}
}

// twoLanes are two lanes of a consumer, each with its partition.
func twoLanes(t *testing.T, url string) (s [2]*postgres.InboxStore, rows [2]inbox.Row) {
	t.Helper()
	for i, p := range []semel.Partition{p0, p1} {
		s[i] = newStore(t, url, postgres.InboxConfig{LockTimeout: 20 * time.Second})
		_, err := s[i].Open(t.Context(), record("billing"))
		must(t, err)
		introduce(t, s[i], p)
		rows[i] = claim(t, s[i], p)
	}
	return s, rows
}

func TestRacedCopyIsAConflictAndThenWaits(t *testing.T) {
	t.Parallel()
	s, rows := twoLanes(t, migrated(t))
	as := admissions(200, 1)
	first := begin(t, s[0], span(rows[0], 1))
	_, err := first.Admit(t.Context(), as)
	must(t, err)
	second := begin(t, s[1], span(rows[1], 1))
	raced := make(chan error)
	go func() {
		_, err := second.Admit(context.Background(), as)
		raced <- err
	}()
	waitForLock(t, second)
	must(t, first.Commit(t.Context(), []inbox.Settled{{Span: span(rows[0], 1)}}))
	err = <-raced
	if err == nil || second.Class(err) != inbox.ClassConflict || !second.Failed() {
		t.Fatalf("got %v", err)
	}
	second.Rollback(t.Context())

	rows[0].Next++
	as = admissions(400, 1)
	first = begin(t, s[0], span(rows[0], 1))
	_, err = first.Admit(t.Context(), as)
	must(t, err)
	second = begin(t, s[1], span(rows[1], 1))
	go func() {
		vs, err := second.Admit(context.Background(), as)
		if slices.Contains(vs, inbox.Fresh) {
			err = errors.New("two transactions took one ID for fresh")
		}
		raced <- err
	}()
	waitForLock(t, second)
	must(t, first.Commit(t.Context(), []inbox.Settled{{Span: span(rows[0], 1)}}))
	must(t, <-raced)
}

// waitForLock returns when the transaction's session waits for another.
func waitForLock(t *testing.T, tx inbox.Tx[pgx.Tx]) {
	t.Helper()
	c := connect(t, tx.DB().Conn().Config().ConnString())
	for range 1000 {
		if ask[bool](t, c, "SELECT cardinality(pg_blocking_pids($1)) > 0", tx.DB().Conn().PgConn().PID()) {
			return
		}
		ask[string](t, c, "SELECT pg_sleep(0.01)::text")
	}
	t.Fatal("nobody waits")
}

func TestSameIDsInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, rows := twoLanes(t, url)
	fresh := make([]int, 2)
	var g errgroup.Group
	for i := range s {
		g.Go(func() error {
			for round := range 30 {
				as := admissions(40+200*(round%2), 0)
				for k := range as {
					as[k].ID[15] = byte(round)
				}
				for try := 0; ; try++ {
					sp := span(rows[i], 1)
					tx, err := s[i].Begin(t.Context(), []inbox.Span{sp})
					if err != nil {
						return err
					}
					vs, err := tx.Admit(t.Context(), as)
					if err == nil {
						err = tx.Commit(t.Context(), []inbox.Settled{{Span: sp}})
					}
					if err == nil {
						for _, v := range vs {
							if v == inbox.Fresh {
								fresh[i]++
							}
						}
						rows[i].Next++
						break
					}
					if state, _ := tx.Describe(err); state == "40P01" || tx.Class(err) != inbox.ClassConflict || try > 1 {
						return err
					}
					tx.Rollback(t.Context())
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
	if n := ask[int](t, connect(t, url), "SELECT count(*)::int FROM semel.inbox"); n != fresh[0]+fresh[1] {
		t.Errorf("%d IDs, %v fresh", n, fresh)
	}
}

func TestBurialMarksOnlyTheIDsItAdmitted(t *testing.T) {
	t.Parallel()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			s, row := lane(t, url)
			as := admissions(n, 1)
			before, sp := as[:1], span(row, 1)
			for _, step := range [][]inbox.Admission{before, as} {
				tx := begin(t, s, sp)
				_, err := tx.Admit(t.Context(), step)
				must(t, err)
				if len(step) > 1 {
					must(t, tx.Bury(t.Context(), []inbox.DeadLetter{{ID: as[0].ID}, {ID: as[1].ID}, {}}))
				}
				must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
				row.Next++
				sp = span(row, 1)
			}
			if got := ask[string](t, connect(t, url), "SELECT string_agg(id::text, ' ') FROM semel.inbox WHERE how = 'dead'"); got != as[1].ID.String() {
				t.Errorf("dead are %s, want %s alone", got, as[1].ID)
			}
		})
	}
}

func TestBurialOfHostileMessageCannotFail(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	sp := span(row, 1)
	tx := begin(t, s, sp)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	must(t, tx.Bury(t.Context(), []inbox.DeadLetter{{
		Message: semel.Message{
			Topic: "orders", Partition: 3, Offset: 9, Timestamp: time.UnixMilli(1<<63 - 1), Key: all, Value: []byte{},
			Headers: []semel.Header{{Name: "plain", Value: all}, {Name: "plain"}, {Value: []byte{}}, {Name: "nul\x00"}, {Name: "bad\xff"}},
		},
		SentID: string(all) + strings.Repeat("é", 3000), Class: inbox.DeadDecode, SQLState: "22\x0000",
		Error: "a\x00\xff" + strings.Repeat("é", 3000), Attempts: 2,
	}, {Message: semel.Message{Topic: "orders"}, Class: inbox.DeadHandler}}))
	must(t, tx.Commit(t.Context(), []inbox.Settled{{Span: sp}}))
	c := connect(t, url)
	if key := ask[[]byte](t, c, "SELECT key FROM semel.dead_letter WHERE number = 1"); !bytes.Equal(key, all) {
		t.Errorf("key %x", key)
	}
	if !ask[bool](t, c, "SELECT key IS NULL AND value IS NULL FROM semel.dead_letter WHERE number = 2") {
		t.Error("null became something")
	}
	if n := ask[int](t, c, "SELECT octet_length(error) FROM semel.dead_letter WHERE number = 1"); n < 1998 || n > 2000 {
		t.Errorf("error of %d bytes", n)
	}
	const want = `[{"name": "plain", "value": "AAECAwQ`
	if h := ask[string](t, c, "SELECT headers::text FROM semel.dead_letter WHERE number = 1"); !strings.HasPrefix(h, want) ||
		!strings.HasSuffix(h, `{"name": "plain", "value": null}, {"name": "", "value": ""}, {"value": null, "name_base64": "bnVsAA=="}, {"value": null, "name_base64": "YmFk/w=="}]`) {
		t.Errorf("headers %s", h)
	}
}

func TestAdmitInYourOwnTransaction(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	c := connect(t, url)
	id := semel.IDOf([]byte("order-1"))
	admit := func(consumer string, commit bool) (fresh bool) {
		t.Helper()
		tx, err := c.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(context.Background())
		fresh, err = s.Admit(t.Context(), tx, consumer, id)
		must(t, err)
		if commit {
			must(t, tx.Commit(t.Context()))
		}
		return fresh
	}
	if !admit("a", false) || !admit("a", true) || admit("a", true) || !admit("b", true) {
		t.Error("wrong answers")
	}
	tx, err := c.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	x, y := semel.IDOf([]byte("x")), semel.IDOf([]byte("y"))
	fresh, err := s.AdmitBatch(t.Context(), tx, "a", []semel.ID{y, id, x, y})
	must(t, err)
	if !slices.Equal(fresh, []semel.ID{y, x}) {
		t.Errorf("fresh %v", fresh)
	}
}

func TestAdmitRefusesOtherIsolationLevels(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := connect(t, url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		must(t, err)
		_, err = s.Admit(t.Context(), tx, "a", semel.ID{1})
		var isolation *postgres.IsolationError
		if !errors.As(err, &isolation) {
			t.Errorf("%s: %v", level, err)
		}
	}
}

func TestAdmitOfManyFirstUsersMakesOneInbox(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := newStore(t, url, postgres.InboxConfig{})
	pool := newPool(t, url)
	var g errgroup.Group
	fresh := make([]bool, 8)
	for i := range fresh {
		g.Go(func() error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				fresh[i], err = s.Admit(t.Context(), tx, "new", semel.ID{1})
				return err
			})
		})
	}
	must(t, g.Wait())
	if n := len(slices.DeleteFunc(fresh, func(b bool) bool { return !b })); n != 1 {
		t.Errorf("%d took it for fresh", n)
	}
}

func TestSQLHashesAsGoDoes(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	uuids := rapid.StringMatching(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{11}[0-9a-gA-F\n]`)
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.OneOf(uuids.AsAny(), rapid.String().AsAny()).Draw(t, "sent").(string)
		want := semel.IDOf([]byte(sent)).String()
		var got string
		if err := c.QueryRow(ctx, "SELECT semel.id_of($1::bytea)::text", []byte(sent)).Scan(&got); err != nil || got != want {
			t.Fatalf("bytes: %s, want %s, %v", got, want, err)
		}
		if strings.Contains(sent, "\x00") {
			return
		}
		if err := c.QueryRow(ctx, "SELECT semel.id_of($1::text)::text", sent).Scan(&got); err != nil || got != want {
			t.Fatalf("text: %s, want %s, %v", got, want, err)
		}
	})
}

func TestSQLFunctionsForOtherLanguages(t *testing.T) {
	t.Parallel()
	c := connect(t, migrated(t))
	for sql, want := range map[string]bool{
		"SELECT semel.admit('text', 'order-1') AND NOT semel.admit('text', 'order-1')":             true,
		"SELECT semel.admit('bytes', '\\x00'::bytea) AND NOT semel.admit('bytes', '\\x00'::bytea)": true,
		"SELECT semel.admit('uuid', gen_random_uuid())":                                            true,
		"SELECT semel.remember('old', ARRAY['a', 'b', 'a']) = 2 AND NOT semel.admit('old', 'a') AND semel.remember('old', ARRAY[semel.id_of('b'::text), semel.id_of('c'::text)]) = 1": true,
	} {
		if got := ask[bool](t, c, sql); got != want {
			t.Errorf("%s: %t", sql, got)
		}
	}
	id := ask[string](t, c, `SELECT semel.outbox_add('orders', NULL, 'v', '[{"name": "a", "value": null}]')::text`)
	if !ask[bool](t, c, "SELECT key IS NULL AND value = 'v' AND xid::text::bigint > 0 AND shard BETWEEN 0 AND 63 FROM semel.outbox WHERE id = $1::text::uuid", id) {
		t.Error("outbox row is wrong")
	}
	ask[string](t, c, `SELECT semel.outbox_add_bytes('orders', '\x00', NULL)::text`)
	a := ask[int](t, c, `SELECT shard FROM semel.outbox WHERE key = '\x00'`)
	ask[string](t, c, `SELECT semel.outbox_add_bytes('other', '\x00', NULL)::text`)
	if !ask[bool](t, c, `SELECT bool_and(shard = $1) FROM semel.outbox WHERE key = '\x00'`, a) {
		t.Error("one key lies in two shards")
	}
}
