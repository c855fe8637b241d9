package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// StoreWorld is a fresh database for one test of [TestStore].
type StoreWorld[T any] struct {
	// New opens a lane's connection; the suite opens several.
	New func() inbox.Store[T]
	// Effect makes one row under the key, with the handed transaction.
	Effect func(ctx context.Context, tx T, key string) error
	// Refuse is a statement that the database refuses, and RefuseLate one that it
	// refuses at COMMIT.
	Refuse, RefuseLate func(ctx context.Context, tx T) error
	// Effects are the keys of the committed rows, repeats included, in any order.
	Effects func() []string
	// Letters is how many dead letters are kept.
	Letters func() int
	// Mark marks all buried letters to be handled again.
	Mark func()
	// LetterStates are the states of the letters in their order, see [DB.LetterStates].
	LetterStates func() []string
}

// TestStore is what every [inbox.Store] must do.
func TestStore[T any](t *testing.T, world func(t *testing.T) StoreWorld[T]) {
	for _, c := range []struct {
		name string
		test func(w *storeTest[T])
	}{
		{"ConsumerIsRecorded", (*storeTest[T]).recorded},
		{"FirstClaimWritesAllPartitions", (*storeTest[T]).introduces},
		{"ClaimOfAnUnknownPartition", (*storeTest[T]).noRow},
		{"ClaimRaisesGenerationAndChangesToken", (*storeTest[T]).claims},
		{"RefusedClaimChangesNothing", (*storeTest[T]).refuses},
		{"CommitMovesEverythingTogether", (*storeTest[T]).commits},
		{"CommitBeginsTheNext", (*storeTest[T]).chains},
		{"CommitBeginsNothingThatIsFenced", (*storeTest[T]).chainsFenced},
		{"RollbackLeavesNothing", (*storeTest[T]).rollsBack},
		{"FencedBeginLeavesNoEffect", (*storeTest[T]).fences},
		{"PlaceAndTopicAreCompared", (*storeTest[T]).compares},
		{"OneMismatchOfManyRefusesAll", (*storeTest[T]).refusesAll},
		{"AdmissionIsRemembered", (*storeTest[T]).admits},
		{"AdmissionRolledBackIsForgotten", (*storeTest[T]).forgets},
		{"OtherContentIsACollision", (*storeTest[T]).collides},
		{"ConsumersDoNotShareAMemory", (*storeTest[T]).scopes},
		{"SameIDInTwoTransactions", (*storeTest[T]).races},
		{"BuryKeepsALetter", (*storeTest[T]).buries},
		{"MarkedLetterIsHandledOnce", (*storeTest[T]).redrives},
		{"MarkedLetterOfAnAppliedID", (*storeTest[T]).redrivesApplied},
		{"LettersOfOneIDAreAppliedOnce", (*storeTest[T]).redrivesOneID},
		{"RedriveRolledBackLeavesTheMark", (*storeTest[T]).redriveRollsBack},
		{"MarkedLetterThatKillsLosesItsMark", (*storeTest[T]).redrivesCrash},
		{"TrialIsKeptUntilOutlived", (*storeTest[T]).tries},
		{"CollisionLeavesTheIDApplied", (*storeTest[T]).redrivesCollision},
		{"ReburyTakesTheMarkAway", (*storeTest[T]).reburies},
		{"LettersOfOthersPartitionsAreLeft", (*storeTest[T]).redrivesOwn},
		{"ChecksumsWrap", (*storeTest[T]).wraps},
		{"ReleaseClearsOnlyOwnClaims", (*storeTest[T]).releases},
		{"ProbeThatFailsIsTakenBackAlone", (*storeTest[T]).probes},
		{"ProbeIsJudgedAsByCommit", (*storeTest[T]).judges},
		{"TakeBackLeavesWhatWasBefore", (*storeTest[T]).takesBack},
		{"ProbeThatIsTakenBackHoldsNobodyUp", (*storeTest[T]).probesUnlock},
		{"ClaimEndsAnOlderClaimsTransaction", (*storeTest[T]).endsZombie},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &storeTest[T]{t: t, StoreWorld: world(t)}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			w.ctx = ctx
			c.test(w)
		})
	}
}

type storeTest[T any] struct {
	StoreWorld[T]
	t   *testing.T
	ctx context.Context
}

var (
	suiteTopic = semel.TopicID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	part0      = semel.Partition{Topic: "suite", Number: 0}
	part1      = semel.Partition{Topic: "suite", Number: 1}
)

func suiteRecord(name string) inbox.Record {
	return inbox.Record{
		Name: name, Cluster: "k", Topics: []string{"suite"}, IDRule: "header message-id", Target: "t",
		Memory: inbox.MemoryInbox, Window: time.Hour,
	}
}

var suiteTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func as(name string) inbox.Owner {
	return inbox.Owner{Member: name, Host: "h", PID: 7, Started: "1", Name: name, At: time.Now().UTC()}
}

// open is a store whose consumer is open and has rows for two partitions.
func (w *storeTest[T]) open(consumer string) inbox.Store[T] {
	w.t.Helper()
	s := w.New()
	w.t.Cleanup(s.Close)
	if _, err := s.Open(w.ctx, suiteRecord(consumer)); err != nil {
		w.t.Fatalf("open: %v", err)
	}
	_, err := s.Introduce(w.ctx, "suite", func(known []inbox.Row) ([]inbox.Row, []inbox.Event, error) {
		if len(known) > 0 {
			return nil, nil, nil
		}
		return []inbox.Row{row(part0, 10), row(part1, 0)}, []inbox.Event{{Partition: part0, Kind: "introduced", Detail: map[string]any{"start": 10}}}, nil
	})
	if err != nil {
		w.t.Fatalf("introduce: %v", err)
	}
	return s
}

func row(p semel.Partition, start int64) inbox.Row {
	return inbox.Row{Claim: inbox.Claim{Partition: p, TopicID: suiteTopic}, Start: start, Next: start, Adopted: -1}
}

func keep(r inbox.Row) (inbox.Row, []inbox.Event, error) { return r, nil, nil }

func (w *storeTest[T]) claim(s inbox.Store[T], p semel.Partition, who string) inbox.Row {
	w.t.Helper()
	r, err := s.Claim(w.ctx, p, as(who), keep)
	if err != nil {
		w.t.Fatalf("claim %s: %v", p, err)
	}
	return r
}

func (w *storeTest[T]) row(s inbox.Store[T], p semel.Partition) inbox.Row {
	w.t.Helper()
	look, err := s.Look(w.ctx, []semel.Partition{p})
	if err != nil || len(look.Rows) != 1 {
		w.t.Fatalf("look at %s: %d rows, %v", p, len(look.Rows), err)
	}
	return look.Rows[0]
}

func span(r inbox.Row, n int64) inbox.Span {
	return inbox.Span{Claim: r.Claim, From: r.Next, To: r.Next + n}
}

func settled(sp inbox.Span) inbox.Settled {
	var a inbox.Accounts
	for o := sp.From; o < sp.To; o++ {
		h := inbox.Hash(sp.TopicID, o)
		a.Settled.Add(h)
		a.Outcome[inbox.Applied].Add(h)
	}
	return inbox.Settled{Span: sp, Accounts: a}
}

func (w *storeTest[T]) begin(s inbox.Store[T], spans ...inbox.Span) inbox.Tx[T] {
	w.t.Helper()
	tx, err := s.Begin(w.ctx, spans)
	if err != nil {
		w.t.Fatalf("begin: %v", err)
	}
	w.t.Cleanup(func() { tx.Rollback(context.WithoutCancel(w.ctx)) })
	return tx
}

func (w *storeTest[T]) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *storeTest[T]) wantEffects(keys ...string) {
	w.t.Helper()
	got := w.Effects()
	slices.Sort(got)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		w.t.Errorf("effects %v, want %v", got, keys)
	}
}

func (w *storeTest[T]) recorded() {
	s := w.open("a")
	first, err := s.Open(w.ctx, suiteRecord("a"))
	w.must(err)
	if first.Database == "" {
		w.t.Error("the database has no identity")
	}
	other := w.New()
	defer other.Close()
	same, err := other.Open(w.ctx, suiteRecord("a"))
	w.must(err)
	if same != first {
		w.t.Errorf("registered as %+v and then as %+v", first, same)
	}
	changed := suiteRecord("a")
	changed.Target, changed.IDRule = "elsewhere", "key"
	_, err = other.Open(w.ctx, changed)
	var ce *inbox.ChangedError
	if !errors.As(err, &ce) || len(ce.Changes) != 2 {
		w.t.Fatalf("a changed consumer: %v", err)
	}
	changed.AcceptChange = true
	_, err = other.Open(w.ctx, changed)
	w.must(err)
	changed.AcceptChange = false
	_, err = other.Open(w.ctx, changed)
	w.must(err)
}

func (w *storeTest[T]) introduces() {
	s := w.open("a")
	all, err := s.Introduce(w.ctx, "suite", func(known []inbox.Row) ([]inbox.Row, []inbox.Event, error) {
		if len(known) != 2 || known[0].Start != 10 || known[0].Adopted != -1 || known[0].TopicID != suiteTopic {
			w.t.Errorf("known: %+v", known)
		}
		added := row(semel.Partition{Topic: "suite", Number: 2}, 5)
		added.Adopted = 5
		return []inbox.Row{added}, nil, nil
	})
	w.must(err)
	if len(all) != 3 {
		w.t.Errorf("%d rows", len(all))
	}
	if r := w.row(s, semel.Partition{Topic: "suite", Number: 2}); r.Next != 5 || r.Adopted != 5 || r.Generation != 0 {
		w.t.Errorf("the added row: %+v", r)
	}
	look, err := s.Look(w.ctx, nil)
	w.must(err)
	if len(look.Rows) != 3 {
		w.t.Errorf("a look at everything finds %d rows", len(look.Rows))
	}
	refuse := errors.New("no")
	if _, err := s.Introduce(w.ctx, "other", func([]inbox.Row) ([]inbox.Row, []inbox.Event, error) { return nil, nil, refuse }); !errors.Is(err, refuse) {
		w.t.Errorf("a refused introduction answers %v", err)
	}
}

func (w *storeTest[T]) noRow() {
	s := w.open("a")
	if _, err := s.Claim(w.ctx, semel.Partition{Topic: "suite", Number: 9}, as("x"), keep); !errors.Is(err, inbox.ErrNoRow) {
		w.t.Errorf("answer: %v", err)
	}
}

func (w *storeTest[T]) claims() {
	s := w.open("a")
	one := w.claim(s, part0, "x")
	two := w.claim(s, part0, "y")
	if two.Generation != one.Generation+1 || two.Token == one.Token || two.Token == (inbox.Token{}) {
		w.t.Errorf("claims %+v and %+v", one.Claim, two.Claim)
	}
	r := w.row(s, part0)
	if r.Claim != two.Claim || r.Owner == nil || r.Owner.Member != "y" || r.Owner.PID != 7 || r.Owner.Started != "1" {
		w.t.Errorf("row: %+v owner %+v", r, r.Owner)
	}
	lost := w.claimWith(s, func(r inbox.Row) (inbox.Row, []inbox.Event, error) {
		r.Next += 5
		r.Accounts.Lost += 5
		r.Epochs = []inbox.Epoch{{Number: 3, First: 12}}
		return r, []inbox.Event{{Partition: part0, Kind: "gap", Detail: map[string]any{"lost": 5}}}, nil
	})
	if r := w.row(s, part0); r.Next != 15 || r.Accounts.Lost != 5 || r.Token != lost.Token || !slices.Equal(r.Epochs, lost.Epochs) {
		w.t.Errorf("row after a claim that moved it: %+v", r)
	}
}

func (w *storeTest[T]) claimWith(s inbox.Store[T], f func(inbox.Row) (inbox.Row, []inbox.Event, error)) inbox.Row {
	w.t.Helper()
	r, err := s.Claim(w.ctx, part0, as("x"), f)
	w.must(err)
	return r
}

func (w *storeTest[T]) refuses() {
	s := w.open("a")
	before := w.claim(s, part0, "x")
	halt := &inbox.HaltError{Kind: "test", Why: "no"}
	_, err := s.Claim(w.ctx, part0, as("y"), func(r inbox.Row) (inbox.Row, []inbox.Event, error) { r.Next = 99; return r, nil, halt })
	var h *inbox.HaltError
	if !errors.As(err, &h) || h.Kind != "test" {
		w.t.Fatalf("answer: %v", err)
	}
	if r := w.row(s, part0); r.Claim != before.Claim || r.Next != before.Next {
		w.t.Errorf("row: %+v", r)
	}
}

func (w *storeTest[T]) commits() {
	s := w.open("a")
	r0, r1 := w.claim(s, part0, "x"), w.claim(s, part1, "x")
	for i := range 3 {
		sp0, sp1 := span(r0, 4), span(r1, 2)
		if i == 1 {
			sp0.Epochs = []inbox.Epoch{{Number: 1, First: sp0.From}, {Number: 4, First: sp0.From + 2}}
		}
		tx := w.begin(s, sp0, sp1)
		w.must(w.Effect(w.ctx, tx.DB(), fmt.Sprint(i)))
		st0 := settled(sp0)
		st0.Accounts.Holes = 1
		if i < 2 { // the last one brings no message, and leaves what is known
			st0.Newest = suiteTime.Add(time.Duration(i) * time.Second)
		}
		w.must(tx.Commit(w.ctx, []inbox.Settled{st0, settled(sp1)}))
		tx.Rollback(w.ctx)
		r0.Next, r1.Next = sp0.To, sp1.To
	}
	w.wantEffects("0", "1", "2")
	r := w.row(s, part0)
	want := settled(inbox.Span{Claim: r0.Claim, From: 10, To: 22}).Accounts
	want.Holes = 3
	if r.Next != 22 || r.Accounts != want {
		w.t.Errorf("row: next %d, accounts %+v, want %+v", r.Next, r.Accounts, want)
	}
	if !slices.Equal(r.Epochs, []inbox.Epoch{{Number: 1, First: 14}, {Number: 4, First: 16}}) {
		w.t.Errorf("epochs: %+v", r.Epochs)
	}
	if !r.RecordTime.Equal(suiteTime.Add(time.Second)) {
		w.t.Errorf("record time %s", r.RecordTime)
	}
	if r := w.row(s, part1); r.Next != 6 || !r.RecordTime.IsZero() {
		w.t.Errorf("the other row: %+v", r)
	}
}

// chain commits a span and begins the next in one go; nil if the store can't.
func (w *storeTest[T]) chain(tx inbox.Tx[T], sp inbox.Span, next ...inbox.Span) (inbox.Tx[T], error) {
	c, ok := tx.(inbox.Chainer[T])
	if !ok {
		w.t.Skip("not a Chainer")
	}
	return c.CommitAndBegin(w.ctx, []inbox.Settled{settled(sp)}, next)
}

func (w *storeTest[T]) chains() {
	a, b := w.open("a"), w.open("a")
	r := w.claim(a, part0, "x")
	tx := w.begin(a, span(r, 1))
	for i := range 3 {
		sp := span(r, 1)
		r.Next = sp.To
		w.must(w.Effect(w.ctx, tx.DB(), fmt.Sprint(i)))
		then, err := w.chain(tx, sp, span(r, 1))
		w.must(err)
		if i > 0 && then == nil { // the first may not know yet where the row lies
			w.t.Fatal("not begun")
		}
		if tx = then; tx == nil {
			tx = w.begin(a, span(r, 1))
		}
		if got := w.row(b, part0); got.Next != r.Next {
			w.t.Fatalf("the row is at %d after a commit to %d", got.Next, r.Next)
		}
	}
	w.must(w.Effect(w.ctx, tx.DB(), "gone"))
	tx.Rollback(w.ctx)
	w.wantEffects("0", "1", "2")
	tx = w.begin(a, span(r, 1))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(span(r, 1))}))
}

// Where the next spans don't continue the rows nothing is begun, the commit stands,
// and Begin says why.
func (w *storeTest[T]) chainsFenced() {
	a := w.open("a")
	r := w.claim(a, part0, "x")
	for range 2 {
		tx := w.begin(a, span(r, 1))
		wrong := span(r, 1)
		r.Next = wrong.To
		then, err := w.chain(tx, wrong, wrong)
		w.must(err)
		if then != nil {
			w.t.Fatal("begun")
		}
		if got := w.row(a, part0); got.Next != r.Next {
			w.t.Fatalf("the row is at %d after a commit to %d", got.Next, r.Next)
		}
		w.wantFenced(a, true, wrong)
	}
}

func (w *storeTest[T]) rollsBack() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	tx := w.begin(s, span(r, 1))
	w.must(w.Effect(w.ctx, tx.DB(), "gone"))
	tx.Rollback(w.ctx)
	tx.Rollback(w.ctx)
	w.wantEffects()
	tx = w.begin(s, span(r, 1))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(span(r, 1))}))
}

func (w *storeTest[T]) wantFenced(s inbox.Store[T], mine bool, spans ...inbox.Span) {
	w.t.Helper()
	tx, err := s.Begin(w.ctx, spans)
	if err == nil {
		tx.Rollback(w.ctx)
		w.t.Fatal("begun")
	}
	var f *inbox.FencedError
	if !errors.As(err, &f) || len(f.Mismatches) != 1 {
		w.t.Fatalf("answer: %v", err)
	}
	m := f.Mismatches[0]
	if m.Mine != mine || m.Row == nil || m.From != spans[0].From {
		w.t.Errorf("mismatch: %+v", m)
	}
}

func (w *storeTest[T]) fences() {
	a, b := w.open("a"), w.open("a")
	old := w.claim(a, part0, "x")
	w.claim(b, part0, "y")
	w.wantFenced(a, false, span(old, 1))
	w.wantEffects()
}

func (w *storeTest[T]) compares() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	for _, change := range []func(*inbox.Span){
		func(sp *inbox.Span) { sp.From++ },
		func(sp *inbox.Span) { sp.From-- },
		func(sp *inbox.Span) { sp.TopicID[0]++ },
	} {
		sp := span(r, 1)
		change(&sp)
		w.wantFenced(s, true, sp)
	}
	w.begin(s, span(r, 1)).Rollback(w.ctx)
}

func (w *storeTest[T]) refusesAll() {
	s := w.open("a")
	r0, r1 := w.claim(s, part0, "x"), w.claim(s, part1, "x")
	bad := span(r0, 1)
	bad.From++
	w.wantFenced(s, true, bad, span(r1, 1))
	if r := w.row(s, part1); r.Next != r1.Next {
		w.t.Errorf("row: %+v", r)
	}
}

// settle is one whole transaction with admissions.
func (w *storeTest[T]) settle(s inbox.Store[T], r *inbox.Row, as ...inbox.Admission) []inbox.Verdict {
	w.t.Helper()
	sp := span(*r, 1)
	tx := w.begin(s, sp)
	v, err := tx.Admit(w.ctx, as)
	w.must(err)
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	r.Next = sp.To
	return v
}

func id(n byte) semel.ID { return semel.ID{n, 0xff} }

func (w *storeTest[T]) wantVerdicts(got []inbox.Verdict, want ...inbox.Verdict) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Errorf("verdicts %v, want %v", got, want)
	}
}

func (w *storeTest[T]) admits() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(9)}, inbox.Admission{ID: id(2)}, inbox.Admission{ID: id(5), Dead: true}),
		inbox.Fresh, inbox.Fresh, inbox.Fresh)
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(1)}, inbox.Admission{ID: id(9)}, inbox.Admission{ID: id(5)}, inbox.Admission{ID: id(3)}),
		inbox.Fresh, inbox.Duplicate, inbox.Duplicate, inbox.Fresh)
}

func (w *storeTest[T]) forgets() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	tx := w.begin(s, span(r, 1))
	_, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
	w.must(err)
	tx.Rollback(w.ctx)
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(1)}), inbox.Fresh)
}

func (w *storeTest[T]) collides() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	w.settle(s, &r, inbox.Admission{ID: id(1), Digest: inbox.Digest{1}}, inbox.Admission{ID: id(2)})
	w.wantVerdicts(w.settle(s, &r,
		inbox.Admission{ID: id(1), Digest: inbox.Digest{2}},
		inbox.Admission{ID: id(2), Digest: inbox.Digest{2}}), inbox.Collision, inbox.Duplicate)
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(1), Digest: inbox.Digest{1}}), inbox.Duplicate)
	w.wantVerdicts(w.settle(s, &r, inbox.Admission{ID: id(1)}), inbox.Duplicate)
}

func (w *storeTest[T]) scopes() {
	a, b := w.open("a"), w.open("b")
	ra, rb := w.claim(a, part0, "x"), w.claim(b, part0, "x")
	w.settle(a, &ra, inbox.Admission{ID: id(1)})
	w.wantVerdicts(w.settle(b, &rb, inbox.Admission{ID: id(1)}), inbox.Fresh)
}

// races: two open transactions must never both call one ID fresh. The second may
// wait for the first, or answer an error that is tried again.
func (w *storeTest[T]) races() {
	a, b := w.open("a"), w.open("a")
	ra, rb := w.claim(a, part0, "x"), w.claim(b, part1, "y")
	ta, tb := w.begin(a, span(ra, 1)), w.begin(b, span(rb, 1))
	v, err := ta.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
	w.must(err)
	w.wantVerdicts(v, inbox.Fresh)
	type answer struct {
		v   []inbox.Verdict
		err error
	}
	second := make(chan answer, 1)
	go func() {
		v, err := tb.Admit(w.ctx, []inbox.Admission{{ID: id(1)}})
		second <- answer{v, err}
	}()
	select {
	case got := <-second:
		if got.err == nil {
			w.t.Fatalf("decided while the first transaction was open: %v", got.v)
		}
		second <- got
	case <-time.After(50 * time.Millisecond): // it waits, as it should
	}
	w.must(ta.Commit(w.ctx, []inbox.Settled{settled(span(ra, 1))}))
	got := <-second
	switch {
	case got.err == nil:
		w.wantVerdicts(got.v, inbox.Duplicate)
	case tb.Class(got.err) != inbox.ClassConflict:
		w.t.Errorf("answer of class %s: %v", tb.Class(got.err), got.err)
	}
	tb.Rollback(w.ctx)
	w.wantVerdicts(w.settle(b, &rb, inbox.Admission{ID: id(1)}), inbox.Duplicate)
}

func (w *storeTest[T]) buries() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	sp := span(r, 1)
	tx := w.begin(s, sp)
	m := semel.Message{
		Topic: part0.Topic, Partition: part0.Number, Offset: r.Next, Timestamp: time.Now(),
		Key: []byte{0xff, 0}, Value: nil, Headers: []semel.Header{{Name: "h", Value: []byte{0xfe}}, {Name: "n", Value: nil}, {Name: "ÿ", Value: []byte{}}},
	}
	_, err := tx.Admit(w.ctx, []inbox.Admission{{ID: id(1), Dead: true}})
	w.must(err)
	w.must(tx.Bury(w.ctx, []inbox.DeadLetter{
		{Message: m, ID: id(1), SentID: "one\xff", Class: inbox.DeadValue, SQLState: "22003", Error: "bad \x00 text \xff", Attempts: 3},
		{Message: m, Class: inbox.DeadDecode, Error: string(make([]byte, 100_000)), Attempts: 1},
	}))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(sp)}))
	if n := w.Letters(); n != 2 {
		w.t.Errorf("%d letters", n)
	}
}

func (w *storeTest[T]) wraps() {
	s := w.open("a")
	r := w.claim(s, part0, "x")
	var want inbox.Accounts
	for range 3 {
		sp := span(r, 1)
		tx := w.begin(s, sp)
		a := inbox.Accounts{Settled: inbox.Tally{Count: 1, Sum: 0xf000_0000_0000_0001}}
		a.Outcome[inbox.Skipped] = a.Settled
		w.must(tx.Commit(w.ctx, []inbox.Settled{{Span: sp, Accounts: a}}))
		r.Next = sp.To
		want = want.Plus(a)
	}
	if got := w.row(s, part0).Accounts; got != want {
		w.t.Errorf("accounts %+v, want %+v", got, want)
	}
}

func (w *storeTest[T]) releases() {
	a, b := w.open("a"), w.open("a")
	old := w.claim(a, part0, "x")
	mine := w.claim(a, part1, "x")
	w.claim(b, part0, "y")
	w.must(a.Release(w.ctx, []inbox.Claim{old.Claim, mine.Claim}))
	if r := w.row(b, part0); r.Owner == nil || r.Owner.Member != "y" {
		w.t.Errorf("another's claim was released: %+v", r.Owner)
	}
	if r := w.row(b, part1); r.Owner != nil {
		w.t.Errorf("not released: %+v", r.Owner)
	}
}

func (w *storeTest[T]) endsZombie() {
	a, b := w.open("a"), w.open("a")
	old := w.claim(a, part0, "x")
	zombie := w.begin(a, span(old, 1))
	w.must(w.Effect(w.ctx, zombie.DB(), "of a zombie"))
	now := w.claim(b, part0, "y")
	err := zombie.Commit(w.ctx, []inbox.Settled{settled(span(old, 1))})
	if err == nil {
		w.t.Fatal("the zombie committed")
	}
	if c := zombie.Class(err); c != inbox.ClassOutage && c != inbox.ClassFenced && c != inbox.ClassAmbiguous {
		w.t.Errorf("its error is of class %s: %v", c, err)
	}
	w.wantEffects()
	tx := w.begin(b, span(now, 1))
	w.must(tx.Commit(w.ctx, []inbox.Settled{settled(span(now, 1))}))
}
