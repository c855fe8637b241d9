package inboxtest

import (
	"context"
	"fmt"
	"time"

	"github.com/semelhq/semel/inbox"
)

// prober is the transaction as one; the test ends if the store has none.
func (w *storeTest[T]) prober(tx inbox.Tx[T]) inbox.Prober {
	w.t.Helper()
	p, ok := tx.(inbox.Prober)
	if !ok {
		w.t.Skip("not a Prober")
	}
	return p
}

// refused wants err to be about data, in a transaction that goes on.
func (w *storeTest[T]) refused(tx inbox.Tx[T], err error) {
	w.t.Helper()
	if err == nil {
		w.t.Fatal("not refused")
	}
	if c := tx.Class(err); c != inbox.ClassPoison || tx.Failed() {
		w.t.Fatalf("class %s, failed %t: %v", c, tx.Failed(), err)
	}
}

func (w *storeTest[T]) probes() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	sp := span(r, 1)
	tx := w.begin(s, sp)
	p := w.prober(tx)
	w.must(w.Effect(w.ctx, tx.DB(), "before"))
	for i := range 3 {
		w.must(p.Probe(w.ctx, func() error { return w.Effect(w.ctx, tx.DB(), fmt.Sprint(i)) }))
		w.refused(tx, p.Probe(w.ctx, func() error {
			w.must(w.Effect(w.ctx, tx.DB(), "gone"))
			return w.Refuse(w.ctx, tx.DB())
		}))
	}
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.wantEffects("before", "0", "1", "2")
}

// What COMMIT would refuse is refused after the probe that did it, and not held
// against a later one; and it stays refused where nobody probes.
func (w *storeTest[T]) judges() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	sp := span(r, 1)
	tx := w.begin(s, sp)
	p := w.prober(tx)
	late := func() error {
		w.must(w.Effect(w.ctx, tx.DB(), "gone"))
		return w.RefuseLate(w.ctx, tx.DB())
	}
	for i := range 2 {
		w.refused(tx, p.Probe(w.ctx, late))
		w.must(p.Probe(w.ctx, func() error { return w.Effect(w.ctx, tx.DB(), fmt.Sprint(i)) }))
	}
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.wantEffects("0", "1")
	r.Next = sp.To
	sp = span(r, 1)
	tx = w.begin(s, sp)
	w.must(w.prober(tx).Probe(w.ctx, func() error { return w.Effect(w.ctx, tx.DB(), "gone") }))
	w.must(w.RefuseLate(w.ctx, tx.DB()))
	if err := tx.Commit(w.ctx, []inbox.Settled{settled(sp)}); err == nil || tx.Class(err) != inbox.ClassPoison {
		w.t.Errorf("committed what is refused: %v", err)
	}
	w.wantEffects("0", "1")
}

func (w *storeTest[T]) takesBack() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	sp := span(r, 1)
	tx := w.begin(s, sp)
	p := w.prober(tx)
	w.must(p.TakeBack(w.ctx))
	v, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
	w.must(err)
	w.wantVerdicts(v, inbox.Fresh)
	w.must(w.Effect(w.ctx, tx.DB(), "before"))
	for range 2 {
		for range 3 {
			w.must(p.Probe(w.ctx, func() error { return w.Effect(w.ctx, tx.DB(), "gone") }))
			w.refused(tx, p.Probe(w.ctx, func() error { return w.Refuse(w.ctx, tx.DB()) }))
		}
		w.must(p.TakeBack(w.ctx))
	}
	w.must(w.Effect(w.ctx, tx.DB(), "after"))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.wantEffects("before", "after")
	r.Next = sp.To
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(1)}), inbox.Duplicate)
}

// Locks of a probe go with it; the row's stays.
func (w *storeTest[T]) probesUnlock() {
	a, b := w.open("a"), w.open("a")
	ra, rb := w.claim(a, part0, "x"), w.claim(b, part1, "y")
	tx := w.begin(a, span(ra, 1))
	p := w.prober(tx)
	w.refused(tx, p.Probe(w.ctx, func() error {
		_, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
		w.must(err)
		return w.Refuse(w.ctx, tx.DB())
	}))
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	other := w.begin(b, span(rb, 1))
	v, err := other.Admit(ctx, []inbox.Admission{{ID: id(1)}})
	w.must(err)
	w.wantVerdicts(v, inbox.Fresh)
	w.must(other.Commit(ctx, []inbox.Settled{settled(span(rb, 1))}))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(span(ra, 1))}))
}
