package inboxtest

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// bury buries a message under an ID and answers what was kept, and the row.
func (w *storeTest[T]) bury(s inbox.Store[T], n byte) (inbox.DeadLetter, inbox.Row) {
	w.t.Helper()
	r := w.claim(s, part0, "x")
	sp := span(r, 1)
	tx := w.begin(s, sp)
	_, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(n), Dead: true}})
	w.must(err)
	d := inbox.DeadLetter{
		Message: semel.Message{
			Topic: part0.Topic, Partition: part0.Number, Offset: r.Next, Timestamp: time.UnixMilli(1_700_000_000_123).UTC(),
			Key: []byte{0xff, 0}, Value: []byte{}, Headers: []semel.Header{{Name: "h", Value: []byte{0xfe}}, {Name: "n"}},
		},
		ID: id(n), SentID: "sent", Class: inbox.DeadValue, SQLState: "22003", Error: "why", Attempts: 3,
	}
	w.must(tx.Bury(w.ctx, []inbox.DeadLetter{d}))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	r.Next = sp.To
	return d, r
}

func (w *storeTest[T]) redrive(s inbox.Store[T], ps ...semel.Partition) inbox.Redrive[T] {
	w.t.Helper()
	tx, err := s.Redrive(w.ctx, ps, 0)
	w.must(err)
	if tx != nil {
		w.t.Cleanup(func() { tx.Rollback(context.WithoutCancel(w.ctx)) })
	}
	return tx
}

func (w *storeTest[T]) wantStates(want ...string) {
	w.t.Helper()
	if got := w.LetterStates(); !slices.Equal(got, want) {
		w.t.Errorf("letters are %q, want %q", got, want)
	}
}

func (w *storeTest[T]) redrives() {
	a, b := w.open("a"), w.open("a")
	d, _ := w.bury(a, 1)
	if tx := w.redrive(a); tx != nil {
		w.t.Fatal("a letter that isn't marked is handed out")
	}
	w.Mark()
	look, err := b.Look(w.ctx, nil)
	w.must(err)
	if !look.Marked {
		w.t.Error("a look doesn't see the mark")
	}
	if tx := w.redrive(w.open("other")); tx != nil {
		w.t.Error("another consumer is handed the letter")
	}
	tx := w.redrive(a)
	if tx == nil {
		w.t.Fatal("no letter")
	}
	got := tx.Letter().DeadLetter
	got.Message.Timestamp = got.Message.Timestamp.UTC()
	if !reflect.DeepEqual(got, d) {
		w.t.Errorf("the letter is\n%+v, was\n%+v", got, d)
	}
	if w.redrive(b) != nil {
		w.t.Error("a locked letter is handed out twice")
	}
	v, err := tx.Readmit(w.ctx, inbox.Admission{ID: id(1)})
	w.must(err)
	if v != inbox.Fresh {
		w.t.Errorf("an ID known as dead is %v", v)
	}
	w.must(w.Effect(w.ctx, tx.DB(), "again"))
	w.must(tx.Close(w.ctx, inbox.Applied))
	w.wantStates("redriven applied")
	if w.redrive(b) != nil {
		w.t.Error("a closed letter is handed out")
	}
	w.wantEffects("again")
	row := w.row(a, part0)
	if row.Accounts.Redriven != 1 || row.Accounts.Outcome[inbox.Dead].Count != 0 || row.Accounts.Outcome[inbox.Applied].Count != 1 {
		w.t.Errorf("accounts: %+v", row.Accounts)
	}
	// The row has moved: the lane that holds the claim goes on all the same.
	w.wantVerdicts(w.settle(a, &row, inbox.Admission{ID: id(1)}), inbox.Duplicate)
	if n := w.row(a, part0).Accounts.Redriven; n != 1 {
		w.t.Errorf("a batch after it leaves %d redriven", n)
	}
}

func (w *storeTest[T]) redrivesApplied() {
	s := w.open("a")
	w.bury(s, 1)
	r := w.claim(s, part0, "x")
	w.settle(s, &r, inbox.Admission{ID: id(2)})
	w.Mark()
	tx := w.redrive(s)
	v, err := tx.Readmit(w.ctx, inbox.Admission{ID: id(2)})
	w.must(err)
	if v != inbox.Duplicate {
		w.t.Errorf("an ID known as applied is %v", v)
	}
	w.must(tx.Close(w.ctx, inbox.DuplicateID))
	w.wantStates("redriven duplicate")
	if n := w.row(s, part0).Accounts.Redriven; n != 0 {
		w.t.Errorf("%d redriven, though nothing took effect", n)
	}
}

func (w *storeTest[T]) redrivesOneID() {
	s := w.open("a")
	w.bury(s, 1)
	w.bury(s, 1)
	w.Mark()
	for _, want := range []inbox.Verdict{inbox.Fresh, inbox.Duplicate} {
		tx := w.redrive(s)
		v, err := tx.Readmit(w.ctx, inbox.Admission{ID: id(1)})
		w.must(err)
		if v != want {
			w.t.Errorf("letter %d: the ID is %v, want %v", tx.Letter().Number, v, want)
		}
		w.must(tx.Close(w.ctx, inbox.Applied))
	}
}

func (w *storeTest[T]) redriveRollsBack() {
	s := w.open("a")
	w.bury(s, 1)
	w.Mark()
	tx := w.redrive(s)
	_, err := tx.Readmit(w.ctx, inbox.Admission{ID: id(1)})
	w.must(err)
	w.must(w.Effect(w.ctx, tx.DB(), "lost"))
	tx.Rollback(w.ctx)
	w.wantEffects()
	w.wantStates("redrive")
	again := w.redrive(s)
	v, err := again.Readmit(w.ctx, inbox.Admission{ID: id(1)})
	w.must(err)
	if v != inbox.Fresh {
		w.t.Errorf("after a roll-back the ID is %v", v)
	}
}

func (w *storeTest[T]) reburies() {
	s := w.open("a")
	w.bury(s, 1)
	w.Mark()
	tx := w.redrive(s)
	n := tx.Letter().Number
	tx.Rollback(w.ctx)
	w.must(s.Rebury(w.ctx, n, inbox.DeadLetter{Class: inbox.DeadConstraint, SQLState: "23514", Error: "anew"}))
	w.wantStates("buried")
	w.Mark()
	tx = w.redrive(s)
	if l := tx.Letter(); l.Class != inbox.DeadConstraint || l.SQLState != "23514" || l.Error != "anew" || l.Attempts != 4 || l.SentID != "sent" {
		w.t.Errorf("letter: %+v", l)
	}
	w.must(tx.Close(w.ctx, inbox.Skipped))
	w.must(s.Rebury(w.ctx, n, inbox.DeadLetter{Class: inbox.DeadValue, Error: "late"}))
	w.wantStates("redriven skipped")
}

func (w *storeTest[T]) redrivesOwn() {
	s := w.open("a")
	_, r := w.bury(s, 1)
	w.Mark()
	if w.redrive(s, part1) != nil {
		w.t.Error("the letter of a partition that somebody owns is handed to another")
	}
	w.must(s.Release(w.ctx, []inbox.Claim{r.Claim}))
	if w.redrive(s, part1) == nil {
		w.t.Error("the letter of a partition that nobody owns is left")
	}
}

func (w *storeTest[T]) redrivesCollision() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	sp := span(r, 2)
	tx := w.begin(s, sp)
	_, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
	w.must(err)
	w.must(tx.Bury(w.ctx, []inbox.DeadLetter{{
		Message: semel.Message{Topic: part0.Topic, Offset: r.Next + 1}, ID: id(1), Class: inbox.DeadCollision, Error: "why", Attempts: 1,
	}}))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.Mark()
	v, err := w.redrive(s).Readmit(w.ctx, inbox.Admission{ID: id(1)})
	w.must(err)
	if v != inbox.Duplicate {
		w.t.Errorf("the ID of the message that took effect is %v", v)
	}
}

func (w *storeTest[T]) redrivesCrash() {
	a, b := w.open("a"), w.open("a")
	r := w.claim(a, part0, "x")
	sp := span(r, 1)
	tx := w.begin(a, sp)
	w.must(tx.Bury(w.ctx, []inbox.DeadLetter{{
		Message: semel.Message{Topic: part0.Topic, Offset: r.Next}, Class: inbox.DeadCrash, Error: "why", Attempts: 1,
	}}))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.Mark()
	again := w.redrive(a)
	if again == nil {
		w.t.Fatal("no letter")
	}
	w.wantStates("buried") // as who dies of it would leave it
	if w.redrive(b) != nil {
		w.t.Error("handed out twice")
	}
	w.must(again.Close(w.ctx, inbox.Applied))
	w.wantStates("redriven applied")
}

func (w *storeTest[T]) tries() {
	s := w.open("a")
	old := w.claim(s, part0, "x")
	r := w.claim(s, part0, "x")
	want := inbox.Trial{At: r.Next, Deaths: 2, Running: true}
	w.must(s.Try(w.ctx, old.Claim, want))
	if t := w.row(s, part0).Trial; t != nil {
		w.t.Errorf("under an older claim: %+v", t)
	}
	w.must(s.Try(w.ctx, r.Claim, want))
	if t := w.row(s, part0).Trial; t == nil || *t != want {
		w.t.Errorf("trial: %+v", t)
	}
	again := w.claim(s, part0, "y")
	if t := again.Trial; t == nil || *t != want {
		w.t.Errorf("to the next claim: %+v", t)
	}
	w.must(s.Survived(w.ctx, part0, r.Next+1))
	if w.row(s, part0).Trial == nil {
		w.t.Error("another trial's end takes it back")
	}
	w.must(s.Survived(w.ctx, part0, r.Next))
	if t := w.row(s, part0).Trial; t != nil {
		w.t.Errorf("outlived: %+v", t)
	}
	w.must(s.Try(w.ctx, again.Claim, want))
	sp := span(again, 1) // the row has moved: a batch finds it
	tx := w.begin(s, sp)
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	w.must(s.Release(w.ctx, []inbox.Claim{again.Claim}))
	if t := w.row(s, part0).Trial; t != nil {
		w.t.Errorf("after a clean stop: %+v", t)
	}
}
