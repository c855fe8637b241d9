package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// countedStore counts how transactions end, and how many probes stand at a time.
type countedStore struct {
	inbox.Store[*inboxtest.Tx]
	commits, begun int
	standing, most int
	fail           func() error // answers COMMIT instead of the store; nil: never
}

func (s *countedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	s.begun++
	s.standing = 0
	return countedTx{tx, tx.(inbox.Prober), s}, nil
}

type countedTx struct {
	inbox.Tx[*inboxtest.Tx]
	prober inbox.Prober
	s      *countedStore
}

func (tx countedTx) Probe(ctx context.Context, f func() error) error {
	err := tx.prober.Probe(ctx, f)
	if err == nil {
		tx.s.standing++
		tx.s.most = max(tx.s.most, tx.s.standing)
	}
	return err
}

func (tx countedTx) TakeBack(ctx context.Context) error {
	tx.s.standing = 0
	return tx.prober.TakeBack(ctx)
}

func (tx countedTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	if tx.s.standing > 0 {
		return fmt.Errorf("COMMIT with %d probes", tx.s.standing)
	}
	if tx.s.fail != nil {
		if err := tx.s.fail(); err != nil {
			return err
		}
	}
	err := tx.Tx.Commit(ctx, settled)
	if err == nil {
		tx.s.commits++
	}
	return err
}

// someBad sends n messages of which each kth is bad.
func (w *world) someBad(n, k int) (bad []string) {
	for i := range n {
		m := message(0, fmt.Sprint(i), fmt.Sprint(i))
		if i%k == 0 {
			m.Value = []byte("bad")
			bad = append(bad, fmt.Sprint(i))
		}
		w.b.Send(m)
	}
	return bad
}

func sifting(s *countedStore, effect inbox.Effect[*inboxtest.Tx], batch int) func(*inbox.Config[*inboxtest.Tx]) {
	return func(c *inbox.Config[*inboxtest.Tx]) {
		s.Store = c.Store
		c.Store = s
		c.Handler, c.Effect, c.Batch.Messages = nil, effect, batch
		c.OnError.InARow, c.OnError.Share = -1, -1
	}
}

func (w *world) wantDead(ids []string) {
	w.t.Helper()
	var got []string
	for _, l := range w.db.Letters() {
		got = append(got, l.SentID)
		if l.Class != inbox.DeadConstraint || l.SQLState != "23514" || l.Attempts != 1 {
			w.t.Errorf("letter %s: %s %s after %d attempts", l.SentID, l.Class, l.SQLState, l.Attempts)
		}
	}
	if !slices.Equal(got, ids) {
		w.t.Errorf("dead %v\nwant %v", got, ids)
	}
}

// A thousand bad messages don't make a thousand transactions: each batch has one that
// fails and one that is committed, and few probes stand at a time.
func TestManyBadMessagesTakeTwoTransactionsABatch(t *testing.T) {
	for name, effect := range map[string]goodRows{"searched": {}, "named": {names: true}, "late": {late: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			const n, batch = 2000, 500
			bad := w.someBad(n, 4)
			s := &countedStore{}
			p := w.start(sifting(s, effect, batch))
			w.settledTo(n)
			p.stop(t)
			w.wantDead(bad)
			if got := len(w.db.Values()); got != n-len(bad) {
				t.Errorf("%d effects, want %d", got, n-len(bad))
			}
			if most := n/batch + 1; s.commits > most || s.begun > 2*most {
				t.Errorf("%d of %d transactions committed for %d batches", s.commits, s.begun, n/batch)
			}
			if s.most == 0 || 2*s.most+4 > 64 {
				t.Errorf("%d probes stood at a time", s.most)
			}
		})
	}
}

// A handler may leave more than rows: another message could fail of that.
func TestHandlersAreTakenApartByTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := w.someBad(100, 10)
	s := &countedStore{}
	p := w.start(sifting(s, nil, 50), func(c *inbox.Config[*inboxtest.Tx]) { c.Handler = countGood })
	w.settledTo(100)
	p.stop(t)
	w.wantDead(bad)
	if s.most != 0 || s.commits < len(bad) {
		t.Errorf("%d probes, %d commits", s.most, s.commits)
	}
}

// What only COMMIT finds out is found by transactions.
func TestWhatNoProbeFindsIsFoundByTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := w.someBad(60, 20)
	effect := &onlyAtCommit{}
	s := &countedStore{fail: effect.judge}
	p := w.start(sifting(s, effect, 60))
	w.settledTo(60)
	p.stop(t)
	w.wantDead(bad)
	if s.most == 0 {
		t.Error("nothing was probed")
	}
}

// onlyAtCommit is refused by COMMIT, which no probe sees.
type onlyAtCommit struct {
	goodRows
	bad bool // in the last Apply
}

func (e *onlyAtCommit) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	e.bad = false
	for _, it := range items {
		if string(it.Value) == "bad" {
			e.bad = true
		} else if err := count(ctx, tx.DB(), it.Message); err != nil {
			return err
		}
	}
	return nil
}

func (e *onlyAtCommit) judge() error {
	defer func() { e.bad = false }() // a batch of burials applies nothing
	if e.bad {
		return inboxtest.ErrRefused
	}
	return nil
}

// A conflict says nothing about a message: what was found under it is found again, and
// after some of them by transactions, which hold fewer locks.
func TestConflictWhileSiftingBuriesNobody(t *testing.T) {
	for conflicts, commits := range map[int]int{2: 1, 3: 2} {
		t.Run(fmt.Sprint(conflicts), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			bad := w.someBad(40, 8)
			met := 0
			s := &countedStore{fail: func() error {
				if met++; met <= conflicts {
					return inboxtest.ErrLockTimeout
				}
				return nil
			}}
			p := w.start(sifting(s, goodRows{}, 40))
			w.settledTo(40)
			p.stop(t)
			w.wantDead(bad)
			if met <= conflicts || s.commits != commits {
				t.Errorf("%d commits, %d tried", s.commits, met)
			}
		})
	}
}

// A message that has attempts left is not buried with the others: it waits, what was
// before it is settled, and what comes later follows.
func TestWhoHasAttemptsLeftWaitsWhileOthersAreSifted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := w.someBad(60, 15)
	effect := &laterGood{at: "31"}
	p := w.start(sifting(&countedStore{}, effect, 60), func(c *inbox.Config[*inboxtest.Tx]) { c.OnError.Attempts = 3 })
	w.settledTo(60)
	p.stop(t)
	var got []string
	for _, l := range w.db.Letters() {
		got = append(got, l.SentID)
		if l.Attempts != 3 {
			t.Errorf("%s is dead after %d attempts", l.SentID, l.Attempts)
		}
	}
	if !slices.Equal(got, bad) {
		t.Errorf("dead %v, want %v", got, bad)
	}
	if n := w.db.Values()["31"]; n != 1 || effect.tries < 3 {
		t.Errorf("31 has %d effects after %d tries", n, effect.tries)
	}
}

// laterGood refuses a message until something has come that it needs.
type laterGood struct {
	goodRows
	at    string
	tries int
}

func (e *laterGood) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	if slices.ContainsFunc(items, func(it *inbox.Item) bool { return string(it.Key) == e.at }) && len(items) == 1 {
		e.tries++
	}
	for i, it := range items {
		if string(it.Key) == e.at && e.tries < 3 {
			return semel.FailedAt(i, tx.DB().Refuse())
		}
	}
	return e.goodRows.Apply(ctx, tx, items)
}

// lateRow refuses a message until something has come.
type lateRow struct {
	goodRows
	needs string
	came  bool
}

func (e *lateRow) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for _, it := range items {
		if string(it.Key) == e.needs && !e.came {
			return tx.DB().Refuse()
		}
	}
	return e.goodRows.Apply(ctx, tx, items)
}

// What was refused in a transaction that wasn't committed may be right in the next one.
func TestAVerdictPassesWithItsTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := w.someBad(40, 8)
	effect := &lateRow{needs: "17"}
	s := &countedStore{fail: func() error {
		if effect.came {
			return nil
		}
		effect.came = true
		return inboxtest.ErrLockTimeout
	}}
	p := w.start(sifting(s, effect, 40))
	w.settledTo(40)
	p.stop(t)
	w.wantDead(bad)
	if n := w.db.Values()["17"]; n != 1 || !effect.came {
		t.Errorf("%d effects of what came late", n)
	}
}

// oneRow has one row for each key, and says so before it is refused another.
type oneRow struct{ separable bool }

func (o oneRow) Separable() bool   { return o.separable }
func (oneRow) Decode([]inbox.Item) {}

func (oneRow) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	seen := map[string]bool{}
	for _, it := range items {
		if seen[string(it.Key)] {
			it.Err, it.Class = errors.New("there is a row"), inbox.DeadConstraint
		}
		seen[string(it.Key)] = true
	}
	for _, it := range items {
		if it.Err == nil {
			if err := countGood(ctx, tx.DB(), it.Message); err != nil {
				return err
			}
		}
	}
	return nil
}

// Else the second message of a key is dead because of a first one that was refused.
func TestWhatAFailedApplySaysOfMessagesCountsForNothing(t *testing.T) {
	for _, separable := range []bool{true, false} {
		t.Run(fmt.Sprint("separable ", separable), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			bad := message(0, "0", "k")
			bad.Value = []byte("bad")
			w.b.Send(bad, message(0, "1", "k"), message(0, "2", "other"))
			p := w.start(sifting(&countedStore{}, oneRow{separable}, 3))
			w.settledTo(3)
			p.stop(t)
			w.wantDead([]string{"0"})
			w.wantOnce("k", "other")
		})
	}
}
