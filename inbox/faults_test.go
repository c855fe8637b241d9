package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// step is a point of the loop at which a process may stop.
type step string

const (
	afterPoll   step = "after poll"
	afterClaim  step = "after claim"
	afterBegin  step = "after begin and fence"
	afterAdmit  step = "after admit"
	afterEffect step = "after effect"
	commitSent  step = "COMMIT sent, not answered"
	committed   step = "COMMIT answered"
	afterAck    step = "after ack"
)

var steps = []step{afterPoll, afterClaim, afterBegin, afterAdmit, afterEffect, commitSent, committed, afterAck}

// trap stops a process at the nth time it comes by a step, and lets it go on
// when it is told to.
type trap struct {
	at      step
	nth     int
	reached chan struct{}
	release chan struct{}

	mu   sync.Mutex
	seen int
	dead bool // nothing of the process happens afterwards
}

func newTrap(at step, nth int) *trap {
	return &trap{at: at, nth: nth, reached: make(chan struct{}), release: make(chan struct{})}
}

func (tr *trap) pass(ctx context.Context, at step) {
	if tr == nil || at != tr.at {
		return
	}
	tr.mu.Lock()
	tr.seen++
	hit := tr.seen == tr.nth
	tr.mu.Unlock()
	if !hit {
		return
	}
	close(tr.reached)
	<-tr.release
	tr.mu.Lock()
	dead := tr.dead
	tr.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
}

type trappedSource struct {
	inbox.Source
	tr *trap
}

func (s trappedSource) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	d, err := s.Source.Poll(ctx, n)
	if len(d.Runs) > 0 {
		s.tr.pass(ctx, afterPoll)
	}
	return d, err
}

// More: every batch comes from Poll, so that the step is met in each.
func (s trappedSource) More(int) []inbox.Run { return nil }

func (s trappedSource) Ack(acks []inbox.Ack) {
	s.tr.pass(context.Background(), committed)
	s.Source.Ack(acks)
	s.tr.pass(context.Background(), afterAck)
}

type trappedStore struct {
	inbox.Store[*inboxtest.Tx]
	tr *trap
}

func (s trappedStore) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	r, err := s.Store.Claim(ctx, p, o, f)
	s.tr.pass(ctx, afterClaim)
	return r, err
}

func (s trappedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	s.tr.pass(ctx, afterBegin)
	return trappedTx{tx, s.tr}, nil
}

type trappedTx struct {
	inbox.Tx[*inboxtest.Tx]
	tr *trap
}

func (t trappedTx) Admit(ctx context.Context, as []inbox.Admission) ([]inbox.Verdict, error) {
	v, err := t.Tx.Admit(ctx, as)
	t.tr.pass(ctx, afterAdmit)
	return v, err
}

func (t trappedTx) Commit(ctx context.Context, s []inbox.Settled) error {
	t.tr.pass(ctx, afterEffect)
	err := t.Tx.Commit(ctx, s)
	if err == nil {
		t.tr.pass(ctx, commitSent)
	}
	return err
}

func trapped(tr *trap) func(*inbox.Config[*inboxtest.Tx]) {
	return func(c *inbox.Config[*inboxtest.Tx]) {
		c.Source = trappedSource{c.Source, tr}
		c.Store = trappedStore{c.Store, tr}
		c.Batch.Messages = 10
	}
}

// hold stops a process at a step and answers when it stands there.
func (w *world) hold(at step, nth int, edit ...func(*inbox.Config[*inboxtest.Tx])) (*process, *trap) {
	w.t.Helper()
	tr := newTrap(at, nth)
	p := w.start(append(edit, trapped(tr))...)
	w.t.Cleanup(func() { tr.letGo() })
	select {
	case <-tr.reached:
	case <-time.After(*patience):
		w.t.Fatalf("the fault never fired: %s", at)
	}
	return p, tr
}

// die ends the process where it stands.
func (p *process) die(tr *trap) {
	tr.mu.Lock()
	tr.dead = true
	tr.mu.Unlock()
	p.kill()
	tr.letGo()
	<-p.done
}

func (tr *trap) letGo() {
	select {
	case <-tr.release:
	default:
		close(tr.release)
	}
}

type option = func(*inbox.Config[*inboxtest.Tx])

// everyStepAndMemory runs a test with an inbox (effectively-once) and with the
// watermark alone (at-least-once), at each step that the memory has.
func everyStepAndMemory(t *testing.T, test func(t *testing.T, at step, memory option)) {
	for _, memory := range []inbox.Memory{inbox.MemoryInbox, inbox.MemoryPosition} {
		for _, at := range steps {
			if memory == inbox.MemoryPosition && at == afterAdmit {
				continue // it admits nothing
			}
			t.Run(string(memory)+"/"+string(at), func(t *testing.T) {
				t.Parallel()
				test(t, at, func(c *inbox.Config[*inboxtest.Tx]) { c.Memory = memory })
			})
		}
	}
}

func TestKilledAtAnyStep(t *testing.T) {
	everyStepAndMemory(t, func(t *testing.T, at step, memory option) {
		w := newWorld(t, 2)
		keys := append(w.send(0, 0, 35), w.send(1, 0, 35)...)
		p, tr := w.hold(at, 2, memory)
		p.die(tr)
		w.b.Expire(consumer)
		w.start(memory)
		w.settledTo(35, 35)
		w.wantOnce(keys...)
	})
}

// The process is not dead, only stopped past its session: another one takes over,
// then the first goes on with what it had in hand.
func TestZombieGoesOnAtAnyStep(t *testing.T) {
	everyStepAndMemory(t, func(t *testing.T, at step, memory option) {
		w := newWorld(t, 1)
		keys := w.send(0, 0, 50)
		nth := 2
		if at == afterClaim {
			nth = 1 // there is one partition
		}
		_, tr := w.hold(at, nth, memory)
		w.b.Expire(consumer)
		w.start(memory, func(c *inbox.Config[*inboxtest.Tx]) { c.Batch.Messages = 10 })
		w.settledTo(50)
		tr.letGo()
		keys = append(keys, w.send(0, 50, 60)...)
		w.settledTo(60)
		w.wantOnce(keys...)
	})
}

func TestDatabaseThatGoesBackIsHealed(t *testing.T) {
	for _, c := range []struct {
		name   string
		memory inbox.Memory
		before func(w *world) // what was settled when the copy was made
		idle   bool           // nothing is sent afterwards that would advance
	}{
		{"busy, inbox", inbox.MemoryInbox, func(w *world) { w.settledTo(20, 20) }, false},
		{"idle, inbox", inbox.MemoryInbox, func(w *world) { w.settledTo(20, 20) }, true},
		{"busy, position", inbox.MemoryPosition, func(w *world) { w.settledTo(20, 20) }, false},
		{"idle, position", inbox.MemoryPosition, func(w *world) { w.settledTo(20, 20) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			keys := append(w.send(0, 0, 20), w.send(1, 0, 20)...)
			w.start(func(cfg *inbox.Config[*inboxtest.Tx]) { cfg.Memory = c.memory })
			c.before(w)
			copy := w.db.Snapshot()
			keys = append(keys, w.send(0, 20, 40)...)
			keys = append(keys, w.send(1, 20, 40)...)
			w.settledTo(40, 40)
			w.db.Restore(copy)
			want := int64(40)
			if !c.idle {
				keys = append(keys, w.send(0, 40, 50)...)
				want = 50
			}
			w.settledTo(want, 40)
			w.wantOnce(keys...)
		})
	}
}

// Restored to before the first claim: the broker's signed ack is the only
// witness of where this consumer began.
func TestRestoreToBeforeTheFirstClaim(t *testing.T) {
	for _, memory := range []inbox.Memory{inbox.MemoryInbox, inbox.MemoryPosition} {
		t.Run(string(memory), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.send(0, 0, 5) // before this consumer's time
			latest := func(c *inbox.Config[*inboxtest.Tx]) {
				c.Source = w.b.NewSource(consumer, inboxtest.StartLatest, "t")
				c.Memory = memory
			}
			empty := w.db.Snapshot()
			p := w.start(latest)
			w.settledTo(5, 0)
			until(t, "first acks signed for all partitions", func() bool {
				n, _ := w.b.Committed(consumer, semel.Partition{Topic: "t", Number: 1})
				return n == 0
			})
			keys := append(w.send(0, 5, 15), w.send(1, 0, 3)...)
			w.settledTo(15, 3)
			p.stop(t)
			w.db.Restore(empty)
			w.start(latest)
			w.settledTo(15, 3)
			w.wantOnce(keys...)
		})
	}
}

func TestAdoptedGroupDoesNotHaltItself(t *testing.T) {
	w := newWorld(t, 2)
	w.send(0, 0, 10)
	w.b.Commit(consumer, p0, 4, "somebody's")
	keys := []string{}
	for i := 4; i < 10; i++ {
		keys = append(keys, fmt.Sprintf("p0-%d", i))
	}
	// stopped between the rows and the signature: the next claim meets its own
	// adoption
	p, tr := w.hold(afterClaim, 1)
	p.die(tr)
	w.b.Commit(consumer, p0, 4, "somebody's")
	w.b.Expire(consumer)
	w.start()
	w.settledTo(10, 0)
	w.wantOnce(keys...)
}

func TestForeignOffsetHalts(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	p := w.start()
	w.settledTo(10)
	p.stop(t)
	w.b.Commit(consumer, p0, 7, "kafka-consumer-groups.sh")
	w.send(0, 10, 12)
	p = w.start()
	p.ends(t)
	wantHalt(t, p.err, "foreign-offset")
	w.wantOnce(keys...)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.AcceptChange = true })
	w.settledTo(12)
}

func TestAnotherDatabasesGroupIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 3)
	p := w.start()
	w.settledTo(3)
	p.stop(t)
	w.db = inboxtest.NewDB()
	p = w.start()
	p.ends(t)
	wantHalt(t, p.err, "other-database")
}

func wantHalt(t *testing.T, err error, kind string) {
	t.Helper()
	h, ok := err.(*inbox.HaltError)
	if !ok || h.Kind != kind {
		t.Fatalf("Run answers %v, want a halt of kind %s", err, kind)
	}
}

func TestBrokersOffsetIsOnlyAHint(t *testing.T) {
	for name, change := range map[string]func(b *inboxtest.Broker){
		"reset to 0": func(b *inboxtest.Broker) { _, note := b.Committed(consumer, p0); b.Commit(consumer, p0, 0, note) },
		"set ahead":  func(b *inboxtest.Broker) { _, note := b.Committed(consumer, p0); b.Commit(consumer, p0, 18, note) },
		"deleted":    func(b *inboxtest.Broker) { b.Forget(consumer) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, 10)
			p := w.start()
			w.settledTo(10)
			p.stop(t)
			keys = append(keys, w.send(0, 10, 20)...)
			change(w.b)
			w.start()
			w.settledTo(20)
			w.wantOnce(keys...)
		})
	}
}

func TestTopicMadeAnew(t *testing.T) {
	for _, running := range []bool{false, true} {
		for _, memory := range []inbox.Memory{inbox.MemoryInbox, inbox.MemoryPosition} {
			t.Run(fmt.Sprintf("%s running=%v", memory, running), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1)
				keys := w.send(0, 0, 50)
				edit := func(c *inbox.Config[*inboxtest.Tx]) { c.Memory = memory }
				p := w.start(edit)
				w.settledTo(50)
				if !running {
					p.stop(t)
				}
				w.b.CreateTopic("t", 1)
				keys = append(keys, w.send(0, 50, 60)...)
				if !running {
					p = w.start(edit)
				}
				if memory == inbox.MemoryPosition {
					p.ends(t)
					wantHalt(t, p.err, "topic-changed")
					return
				}
				w.settledTo(10)
				w.wantOnce(keys...)
			})
		}
	}
}

func TestLostHeadIsRecorded(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 10)
	p := w.start()
	w.settledTo(10)
	p.stop(t)
	w.send(0, 10, 40)
	w.b.Trim(p0, 25)
	halting := func(c *inbox.Config[*inboxtest.Tx]) { c.OnGap = inbox.GapHalt }
	p = w.start(halting)
	p.ends(t)
	wantHalt(t, p.err, "gap")
	var told atomic.Int64
	telling := func(c *inbox.Config[*inboxtest.Tx]) {
		c.Observe.Lost = func(p semel.Partition, n int64) { told.Add(n) }
	}
	p = w.start(telling)
	w.settledTo(40)
	if lost := w.db.Rows(consumer)[0].Accounts.Lost; lost != 15 {
		t.Errorf("lost %d, retention took 15", lost)
	}
	p.stop(t)
	p = w.start(telling)
	w.send(0, 40, 41)
	w.settledTo(41)
	p.stop(t)
	if n := told.Load(); n != 15 {
		t.Errorf("two processes told of %d lost messages, retention took 15, once", n)
	}
}

func TestCutLogIsReadAgainFromTheCut(t *testing.T) {
	for _, running := range []bool{false, true} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, 10)
			p := w.start()
			w.settledTo(10)
			if !running {
				p.stop(t)
			}
			w.b.Cut(p0, 6)
			keys = append(keys, w.send(0, 20, 30)...)
			if !running {
				w.start()
			}
			w.settledTo(16)
			w.wantOnce(keys...)
		})
	}
}

func TestCutLogHaltsWherePositionIsIdentity(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 10)
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Memory = inbox.MemoryPosition })
	w.settledTo(10)
	w.b.Cut(p0, 6)
	w.send(0, 20, 30)
	p.ends(t)
	wantHalt(t, p.err, "cut")
}

func TestCutLogHaltsWhereGapsDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.OnGap = inbox.GapHalt })
	w.settledTo(10)
	w.b.Cut(p0, 6)
	keys = append(keys, w.send(0, 20, 30)...)
	p.ends(t)
	wantHalt(t, p.err, "cut")
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.OnGap, c.AcceptChange = inbox.GapHalt, true })
	w.settledTo(16)
	w.wantOnce(keys...)
}

func TestLaterPartitionIsReadFromItsBeginning(t *testing.T) {
	w := newWorld(t, 1)
	latest := func(c *inbox.Config[*inboxtest.Tx]) { c.Source = w.b.NewSource(consumer, inboxtest.StartLatest, "t") }
	p := w.start(latest)
	w.settledTo(0)
	p.stop(t)
	w.b.AddPartition("t")
	keys := w.send(1, 0, 5)
	w.start(latest)
	w.settledTo(0, 5)
	w.wantOnce(keys...)
}

func TestOutageIsWaitedOut(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	var errors atomic.Int64
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Observe.Error = func(inbox.Class, error) { errors.Add(1) }
	})
	w.settledTo(10)
	w.db.SetDown(true)
	keys = append(keys, w.send(0, 10, 60)...)
	until(t, "the outage is met", func() bool { return errors.Load() > 2 })
	if next, _ := w.b.Committed(consumer, p0); next > 10 {
		t.Errorf("acked %d while the database was down", next)
	}
	w.db.SetDown(false)
	w.settledTo(60)
	w.wantOnce(keys...)
	if n := len(w.db.Letters()); n != 0 {
		t.Errorf("%d letters after an outage", n)
	}
}

func TestMemberWithoutDatabaseLeavesTheGroup(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	s := &cutOffStore{Store: w.db.NewStore()}
	cutOff := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.CutOff = 30 * time.Millisecond
		c.Store = s
	})
	until(t, "it is the first member", func() bool { return s.looks.Load() > 1 })
	w.start()
	w.settledTo(10)
	w.wantOnce(keys...)
	cutOff.kill()
}

// cutOffStore opens, and then has no database any more.
type cutOffStore struct {
	*inboxtest.Store
	looks atomic.Int64
}

func (s *cutOffStore) Look(ctx context.Context, ps []semel.Partition) (inbox.Look, error) {
	if s.looks.Add(1) > 1 {
		return inbox.Look{}, inboxtest.ErrDown
	}
	return s.Store.Look(ctx, ps)
}

func (s *cutOffStore) Introduce(context.Context, string, func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) ([]inbox.Row, error) {
	return nil, inboxtest.ErrDown
}

func TestLostAnswerToCommit(t *testing.T) {
	for _, memory := range []inbox.Memory{inbox.MemoryInbox, inbox.MemoryPosition} {
		t.Run(string(memory), func(t *testing.T) {
			w := newWorld(t, 1)
			keys := w.send(0, 0, 100)
			lost := &lossyStore{Store: w.db.NewStore()}
			w.start(func(c *inbox.Config[*inboxtest.Tx]) {
				c.Store, c.Memory = lost, memory
				c.Batch.Messages = 5
			})
			w.settledTo(100)
			w.wantOnce(keys...)
			if lost.fired < 5 {
				t.Errorf("the fault fired %d times", lost.fired)
			}
		})
	}
}

// lossyStore swallows the answer to every second COMMIT.
type lossyStore struct {
	*inboxtest.Store
	n, fired int
}

func (s *lossyStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	return lossyTx{tx, s}, nil
}

type lossyTx struct {
	inbox.Tx[*inboxtest.Tx]
	s *lossyStore
}

func (t lossyTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	t.s.n++
	if err := t.Tx.Commit(ctx, settled); err != nil {
		return err
	}
	if t.s.n%2 == 0 {
		t.s.fired++
		return inboxtest.ErrUnanswered()
	}
	return nil
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 5)
	var state atomic.Value
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Observe.State = func(s inbox.State, _ string) { state.Store(s) }
	})
	w.settledTo(5)
	w.db.Pause(consumer, "for a look", true)
	until(t, "the lane says that it is paused", func() bool { return state.Load() == inbox.StatePaused })
	w.send(0, 5, 10)
	w.settledTo(5)
	w.db.Pause(consumer, "", false)
	w.settledTo(10)
}

func TestTwoConsumersDoNotShareAMemory(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	w.start()
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Consumer = "other"
		c.Source = w.b.NewSource("other", inboxtest.StartGroup, "t")
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			return tx.Add(ctx, "other-"+string(m.Key), 1)
		}
	})
	for _, k := range keys[:10] {
		keys = append(keys, "other-"+k)
	}
	until(t, "both settled", func() bool { return len(w.db.Values()) == 20 })
	w.wantOnce(keys...)
}

func TestTwoMembersShareAndHandOver(t *testing.T) {
	w := newWorld(t, 3)
	var keys []string
	for p := range 3 {
		keys = append(keys, w.send(p, 0, 40)...)
	}
	a := w.start()
	b := w.start()
	w.settledTo(40, 40, 40)
	for p := range 3 {
		keys = append(keys, w.send(p, 40, 60)...)
	}
	a.stop(t)
	w.settledTo(60, 60, 60)
	w.wantOnce(keys...)
	b.stop(t)
}
