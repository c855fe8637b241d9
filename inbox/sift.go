package inbox

import (
	"context"
	"errors"
	"time"
)

const (
	// maxSifts is how often a batch is sifted again after conflicts before it is taken
	// apart by transactions, which hold fewer locks at a time.
	maxSifts = 3
	// maxProbes is how many pieces stand at a time. With PostgreSQL each is up to two
	// subtransactions, and beyond 64 of a session every other one pays for them.
	maxProbes = 28
)

// sifts says whether what failed can be found inside one transaction.
func (l *lane[T]) sifts(b batch, f *failure) bool {
	effect, ok := l.effect.(Separable)
	if !ok || !effect.Separable() || b.n < 2 || l.cfg.AtMostOnce {
		return false
	}
	_, ok = f.tx.(Prober)
	return ok
}

// sift finds the items that the database refuses. Pieces are probed in order and
// halved where they fail; then all is taken back, so that the effect is made once, by
// one Apply like any other, of the items that are answered. Those that were found are
// dead; the verdict passes with the transaction, unless the search stops at an item
// for which a policy has something else than burial.
func (l *lane[T]) sift(ctx context.Context, tx Tx[T], b batch, fresh []*Item, at []int, met *failure) (good []*Item, places []int, err error) {
	s := &sieve[T]{l: l, ctx: ctx, tx: tx, probes: tx.(Prober), batch: b, fresh: fresh, at: at, began: time.Now(), marks: l.limit}
	b.each(func(_ int, it *Item) { s.items = append(s.items, it) })
	if err = s.searchAll(met); err == nil {
		if err = s.probes.TakeBack(ctx); err != nil {
			err = failed(tx, err, -1)
		}
	}
	var stop *stopAt
	var slow *slowError
	f := asFailure(err)
	if errors.As(err, &stop) || errors.As(err, &slow) || f != nil && f.at >= 0 {
		// What comes before is settled by a transaction that knows who is dead.
		for _, it := range s.found {
			it.passing = false
		}
	}
	for _, i := range s.good {
		fresh[i].retry()
		good, places = append(good, fresh[i]), append(places, at[i])
	}
	return good, places, err
}

// sieve is one sift.
type sieve[T any] struct {
	l      *lane[T]
	ctx    context.Context
	tx     Tx[T]
	probes Prober
	batch  batch
	items  []*Item // all of the batch
	fresh  []*Item
	at     []int // their places in the batch
	began  time.Time

	good  []int // fresh ones that passed
	found []*Item
	stand int   // pieces that passed and were not taken back
	marks limit // as it is after the items that are decided
	told  int   // how many of the batch those are
}

func (s *sieve[T]) searchAll(met *failure) error {
	n := len(s.fresh)
	for i, at := range s.at {
		if at == met.at {
			_, err := s.around(0, i, n)
			return err
		}
	}
	_, err := s.search(0, n, met.at < 0)
	return err
}

// search decides the items from lo up to hi, and says whether one was found. refused:
// as a whole they fail, as far as is known.
func (s *sieve[T]) search(lo, hi int, refused bool) (found bool, err error) {
	switch {
	case lo == hi:
		return false, nil
	case len(s.good)+len(s.found) > 0 && time.Since(s.began) > s.l.cfg.Batch.Time:
		return false, &slowError{done: s.at[lo]}
	case refused && hi-lo > 1:
		return s.halves(lo, hi)
	}
	f := s.probe(s.fresh[lo:hi])
	switch {
	case f == nil:
		return false, s.pass(lo, hi)
	case f.class != ClassPoison && f.class != ClassHandler || s.tx.Failed():
		f.at = -1
		return false, f
	case hi-lo == 1:
		return true, s.bury(lo, f)
	case f.at >= 0:
		return s.around(lo, lo+f.at, hi)
	}
	return s.halves(lo, hi)
}

func (s *sieve[T]) halves(lo, hi int) (found bool, err error) {
	mid := lo + (hi-lo)/2
	first, err := s.search(lo, mid, false)
	if err != nil {
		return first, err
	}
	second, err := s.search(mid, hi, !first)
	return first || second, err
}

// around searches with a culprit that was named.
func (s *sieve[T]) around(lo, named, hi int) (found bool, err error) {
	if _, err := s.search(lo, named, false); err != nil {
		return true, err
	}
	if _, err := s.search(named, named+1, true); err != nil {
		return true, err
	}
	_, err = s.search(named+1, hi, false)
	return true, err
}

// probe tries items; at of its failure is a place among them.
func (s *sieve[T]) probe(items []*Item) *failure {
	for _, it := range items {
		it.retry()
	}
	err := s.probes.Probe(s.ctx, func() error { return applied(s.ctx, s.l.effect, s.tx, items) })
	if err == nil {
		return nil
	}
	for _, it := range items {
		it.retry() // it may have been refused after Apply
	}
	return named(s.tx, err, len(items))
}

// pass keeps a piece. Too many that stand are made one.
func (s *sieve[T]) pass(lo, hi int) error {
	for i := lo; i < hi; i++ {
		s.good = append(s.good, i)
	}
	if s.stand++; s.stand == maxProbes {
		if err := s.join(); err != nil {
			return err
		}
	}
	return s.count(hi)
}

func (s *sieve[T]) join() error {
	if err := s.probes.TakeBack(s.ctx); err != nil {
		return failed(s.tx, err, -1)
	}
	all := make([]*Item, len(s.good))
	for n, i := range s.good {
		all[n] = s.fresh[i]
	}
	s.stand = 1
	if f := s.probe(all); f != nil {
		f.at = -1
		return f
	}
	return nil
}

// bury settles an item that fails alone. The search ends at one that has attempts
// left.
func (s *sieve[T]) bury(i int, f *failure) error {
	it, at := s.fresh[i], s.at[i]
	f.at = at
	one := s.batch.slice(at, at+1)
	if s.l.retries(one, f) {
		return f
	}
	attempts := 1
	if _, p := s.l.only(one); p.trouble.offset == it.Offset {
		attempts += p.trouble.attempts
	}
	it.condemn(f, attempts, true)
	s.found = append(s.found, it)
	return s.count(i + 1)
}

// count takes what is decided into the limit: it halts where one by one would.
func (s *sieve[T]) count(decided int) error {
	for end := s.at[decided-1] + 1; s.told < end; s.told++ {
		if halt := s.l.count(&s.marks, s.items[s.told]); halt != nil {
			return &stopAt{s.told, halt}
		}
	}
	return nil
}
