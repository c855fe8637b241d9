package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// onceFenced refuses the nth Begin.
type onceFenced struct {
	*inboxtest.Store
	nth, n int
	fired  atomic.Bool
}

func (s *onceFenced) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.n++; s.n == s.nth {
		s.fired.Store(true)
		return nil, &inbox.FencedError{Mismatches: []inbox.Mismatch{{Partition: spans[0].Partition, From: spans[0].From}}}
	}
	return s.Store.Begin(ctx, spans)
}

// A batch over p0 and p1 is taken apart because of a bad message in p0, and p0 is
// fenced meanwhile: what was polled of p1 must be read again though nothing new
// arrives there.
func TestFenceWhileIsolatingGivesBackTheWholeBatch(t *testing.T) {
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 5), w.send(1, 0, 5)...)
	s := &onceFenced{Store: w.db.NewStore(), nth: 2}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store = s
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if string(m.Key) == "p0-2" {
				return tx.Refuse()
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(5, 5)
	if !s.fired.Load() {
		t.Error("the fault never fired")
	}
	w.wantOnce(append(keys[:2:2], keys[3:]...)...)
}

// A partition was added after the first claim and had no row yet when the database
// went back: its siblings' signed acks say that the topic was
// introduced before it came, so it is new and not a start at the end.
func TestLaterPartitionSurvivesRestoreToBeforeTheFirstClaim(t *testing.T) {
	w := newWorld(t, 1)
	latest := func(c *inbox.Config[*inboxtest.Tx]) { c.Source = w.b.NewSource(consumer, inboxtest.StartLatest, "t") }
	empty := w.db.Snapshot()
	p := w.start(latest)
	w.settledTo(0)
	until(t, "the first ack is signed", func() bool { next, _ := w.b.Committed(consumer, p0); return next == 0 })
	p.stop(t)
	w.b.AddPartition("t")
	keys := w.send(1, 0, 5)
	w.db.Restore(empty)
	w.start(latest)
	w.settledTo(0, 5)
	w.wantOnce(keys...)
}

// Retention took the head of the log together with a leader change that nobody
// read: the epoch that was read ends below the new place, and that is a gap, not
// a cut. (Else the claim goes back and forth between the two for ever.)
func TestLostHeadPastALeaderChangeIsNotACut(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 10)
	p := w.start()
	w.settledTo(10)
	p.stop(t)
	w.b.Cut(p0, 10) // another leader, and nothing is lost
	w.send(0, 10, 30)
	w.b.Trim(p0, 15)
	w.start()
	w.settledTo(30)
	if lost := w.db.Rows(consumer)[0].Accounts.Lost; lost != 5 {
		t.Errorf("lost %d, retention took 5", lost)
	}
}

// beforeClaim does something before the first claim.
type beforeClaim struct {
	*inboxtest.Store
	do func()
}

func (s *beforeClaim) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	if s.do != nil {
		s.do()
		s.do = nil
	}
	return s.Store.Claim(ctx, p, o, f)
}

// The database goes back between the signed acks and the claims: what was heard of
// p1 before its ack was signed says that somebody else committed its offset. A halt
// is for a person, so the broker is heard again before.
func TestOlderWitnessHaltsNobody(t *testing.T) {
	w := newWorld(t, 2)
	w.send(0, 0, 3)
	keys := append([]string{"p0-0", "p0-1", "p0-2"}, w.send(1, 0, 10)[4:]...)
	w.b.Commit(consumer, semel.Partition{Topic: "t", Number: 1}, 4, "somebody's")
	empty := w.db.Snapshot()
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		s := &beforeClaim{Store: w.db.NewStore()}
		s.do = func() {
			if n := len(w.db.Rows(consumer)); n != 2 {
				t.Errorf("%d rows before the first claim", n)
			}
			w.db.Restore(empty)
		}
		c.Store = s
	})
	w.settledTo(3, 10)
	w.wantOnce(keys...)
}

// slowSigner stands still before it signs for the first time, and watches what
// becomes of the group's offset. It takes the signature of a member whose session
// has ended, which brokers refuse: two living members can be as late.
type slowSigner struct {
	*inboxtest.Source
	b                *inboxtest.Broker
	reached, release chan struct{}
	once             sync.Once
	signed, back     atomic.Bool
}

func (s *slowSigner) Sign(_ context.Context, acks []inbox.Ack) error {
	s.once.Do(func() { close(s.reached); <-s.release })
	defer s.signed.Store(true)
	before, _ := s.b.Committed(consumer, p0)
	for _, a := range acks {
		s.b.Commit(consumer, a.Partition, a.Next, a.Note)
	}
	if after, _ := s.b.Committed(consumer, p0); after < before {
		s.back.Store(true)
	}
	return nil
}

// The first claim signs the acks of all partitions. Who is late with that
// must not put the group's offset back to the start when another member has
// settled and acked meanwhile: rows, testimony and signature are one step, under
// the lock of the introduction.
func TestLateFirstClaimDoesNotPutTheOffsetBack(t *testing.T) {
	w := newWorld(t, 1)
	w.db.LockTimeout = 20 * time.Millisecond
	keys := w.send(0, 0, 10)
	slow := &slowSigner{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), b: w.b, reached: make(chan struct{}), release: make(chan struct{})}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = slow })
	<-slow.reached
	w.b.Expire(consumer)
	w.start()
	// Time for the other one to ack; it can't while the first one is at it.
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if next, _ := w.b.Committed(consumer, p0); next == 10 {
			break
		}
	}
	close(slow.release)
	until(t, "the late one has signed", slow.signed.Load)
	w.settledTo(10)
	w.wantOnce(keys...)
	if slow.back.Load() {
		t.Error("the group's offset went back while the database stood")
	}
}

// slowSource stands still once after an answer of the broker, if it is told to.
type slowSource struct {
	*inboxtest.Source
	afterWitness, afterEpochEnd atomic.Bool // stand still after the next one
	reached, release            chan struct{}
}

func newSlowSource(w *world) *slowSource {
	return &slowSource{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), reached: make(chan struct{}), release: make(chan struct{})}
}

func (s *slowSource) Witness(ctx context.Context, topics []string) ([]inbox.Witness, error) {
	w, err := s.Source.Witness(ctx, topics)
	if s.afterWitness.CompareAndSwap(true, false) {
		close(s.reached)
		<-s.release
	}
	return w, err
}

func (s *slowSource) EpochEnd(ctx context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	e, err := s.Source.EpochEnd(ctx, p, epoch)
	if s.afterEpochEnd.CompareAndSwap(true, false) {
		close(s.reached)
		<-s.release
	}
	return e, err
}

// claimCounter counts how many claims were answered, granted or not.
type claimCounter struct {
	*inboxtest.Store
	n atomic.Int64
}

func (s *claimCounter) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	defer s.n.Add(1)
	return s.Store.Claim(ctx, p, o, f)
}

// startLate starts a process on a slow source.
func (w *world) startLate() (*slowSource, *claimCounter) {
	source, store := newSlowSource(w), &claimCounter{Store: w.db.NewStore()}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source, c.Store = source, store })
	return source, store
}

// wantBuriedOnce lets the late one go on when the other has settled everything,
// and counts the letters: what has no ID is recognised by its place alone.
func (w *world) wantBuriedOnce(late *slowSource, claims *claimCounter, n int, mark int64) {
	w.t.Helper()
	w.settledTo(mark)
	before := claims.n.Load()
	close(late.release)
	until(w.t, "the late one's claim is answered", func() bool { return claims.n.Load() > before })
	w.settledTo(mark)
	if got := len(w.db.Letters()); got != n {
		w.t.Errorf("%d letters of %d messages without ID", got, n)
	}
}

func (w *world) sendWithoutID(n int) {
	for range n {
		w.b.Send(semel.Message{Topic: "t", Value: []byte("v")})
	}
}

// Who heard the broker before the topic was made anew, and comes late, must not
// put the row back to the old topic.
func TestLateWitnessOfAnOldTopicChangesNothing(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 5)
	late, claims := w.startLate()
	w.settledTo(5)
	late.afterWitness.Store(true)
	w.b.Cut(p0, 5) // another leader: the partition is proved again
	<-late.reached
	w.b.CreateTopic("t", 1)
	w.sendWithoutID(10)
	w.b.Expire(consumer)
	w.start()
	w.wantBuriedOnce(late, claims, 10, 10)
	w.wantOnce(keys...)
}

// Who asked where an epoch ends, and comes late, must not lower a row that
// another claim has lowered already and moved on.
func TestLateCutLowersNothing(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	late, claims := w.startLate()
	w.settledTo(10)
	late.afterEpochEnd.Store(true)
	w.b.Cut(p0, 6)
	<-late.reached
	w.sendWithoutID(8)
	w.b.Expire(consumer)
	w.start()
	w.wantBuriedOnce(late, claims, 8, 14)
	w.wantOnce(keys...)
}

// stumbling polls messages of p0 together with a doubt about p1, and finds no
// broker when it asks about p1.
type stumbling struct {
	*inboxtest.Source
	arm, fail, fired atomic.Bool
	do               func()
}

func (s *stumbling) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	if s.arm.CompareAndSwap(true, false) {
		s.do()
		s.fail.Store(true)
	}
	return s.Source.Poll(ctx, n)
}

func (s *stumbling) Witness(ctx context.Context, topics []string) ([]inbox.Witness, error) {
	if s.fail.CompareAndSwap(true, false) {
		s.fired.Store(true)
		return nil, errBrokerGone
	}
	return s.Source.Witness(ctx, topics)
}

// What was polled before the broker went away is read again, though nothing new
// arrives there.
func TestBrokerOutageGivesBackWhatWasPolled(t *testing.T) {
	w := newWorld(t, 2)
	s := &stumbling{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t")}
	var keys []string
	s.do = func() {
		keys = w.send(0, 0, 5)
		w.b.Cut(semel.Partition{Topic: "t", Number: 1}, 0)
	}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = s })
	w.settledTo(0, 0)
	until(t, "both are claimed", func() bool {
		rows := w.db.Rows(consumer)
		return rows[0].Generation == 1 && rows[1].Generation == 1
	})
	s.arm.Store(true)
	w.settledTo(5, 0)
	w.wantOnce(keys...)
	if !s.fired.Load() {
		t.Error("the fault never fired")
	}
}

// blinking polls messages and then finds no database, once.
type blinking struct {
	*inboxtest.Source
	arm, blind atomic.Bool
	send       func()
}

func (s *blinking) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	if s.arm.CompareAndSwap(true, false) {
		s.send()
		s.blind.Store(true)
	}
	return s.Source.Poll(ctx, n)
}

type blinded struct {
	*inboxtest.Store
	source *blinking
	fired  atomic.Bool
}

func (s *blinded) Look(ctx context.Context, ps []semel.Partition) (inbox.Look, error) {
	if s.source.blind.CompareAndSwap(true, false) {
		s.fired.Store(true)
		return inbox.Look{}, inboxtest.ErrDown
	}
	return s.Store.Look(ctx, ps)
}

// What was polled before the database was found to be away is read again, though
// nothing new arrives there.
func TestDatabaseOutageGivesBackWhatWasPolled(t *testing.T) {
	w := newWorld(t, 1)
	source := &blinking{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t")}
	store := &blinded{Store: w.db.NewStore(), source: source}
	var keys []string
	source.send = func() { keys = w.send(0, 0, 5) }
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Source, c.Store, c.Reread = source, store, time.Nanosecond
	})
	w.settledTo(0)
	until(t, "it is claimed", func() bool { return w.db.Rows(consumer)[0].Generation == 1 })
	source.arm.Store(true)
	w.settledTo(5)
	w.wantOnce(keys...)
	if !store.fired.Load() {
		t.Error("the fault never fired")
	}
}

// bothFenced fences p0 the first time that a batch holds both partitions.
type bothFenced struct {
	*inboxtest.Store
	fired atomic.Bool
}

func (s *bothFenced) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if len(spans) == 2 && s.fired.CompareAndSwap(false, true) {
		return nil, &inbox.FencedError{Mismatches: []inbox.Mismatch{{Partition: spans[0].Partition, From: spans[0].From}}}
	}
	return s.Store.Begin(ctx, spans)
}

// A batch over p0 and p1 is rolled back because p0 is fenced. p1 is read again
// from its row, whether more arrives there or not; the next run alone would start
// higher, and since holes are legal nobody would see what is missing.
func TestFencedPartitionTakesTheWholeBatchBack(t *testing.T) {
	for _, more := range []bool{true, false} {
		t.Run(fmt.Sprintf("more arrives=%v", more), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			keys := append(w.send(0, 0, 10), w.send(1, 0, 10)...)
			s := &bothFenced{Store: w.db.NewStore()}
			w.start(func(c *inbox.Config[*inboxtest.Tx]) {
				c.Store = s
				c.Memory = inbox.MemoryPosition
				c.Observe.Fenced = func(inbox.Mismatch) {
					if more {
						keys = append(keys, w.send(1, 10, 20)...)
					}
				}
			})
			if more {
				w.settledTo(10, 20)
			} else {
				w.settledTo(10, 10)
			}
			if !s.fired.Load() {
				t.Error("the fault never fired")
			}
			w.wantOnce(keys...)
		})
	}
}

// forger answers one Poll with a run of its own making.
type forger struct {
	*inboxtest.Source
	forge func(*inbox.Run) // changes the first run that it likes
	more  bool             // of More, not of Poll
	fired atomic.Bool
}

func (s *forger) touch(runs []inbox.Run) {
	for i := range runs {
		if runs[i].From >= 10 && s.fired.CompareAndSwap(false, true) {
			s.forge(&runs[i])
		}
	}
}

func (s *forger) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	d, err := s.Source.Poll(ctx, n)
	if !s.more {
		s.touch(d.Runs)
	}
	return d, err
}

func (s *forger) More(n int) []inbox.Run {
	if !s.more {
		return nil
	}
	runs := s.Source.More(n)
	s.touch(runs)
	return runs
}

// A run that doesn't continue the watermark, of a
// source that missed a seek, is thrown away, whether it begins too early or too
// late, or in another incarnation of the topic.
func TestRunThatDoesNotContinueTheWatermarkIsThrownAway(t *testing.T) {
	for name, forge := range map[string]func(*inbox.Run){
		"too early": func(r *inbox.Run) { r.From -= 5; r.Messages = append(r.Messages[:0:0], r.Messages...) },
		"too late":  func(r *inbox.Run) { r.From += 5; r.Messages = r.Messages[5:] },
		"too early, with what was settled": func(r *inbox.Run) {
			for i := range r.Messages {
				r.Messages[i].Offset -= 10
				r.Messages[i].Key = []byte(fmt.Sprint("p0-", r.Messages[i].Offset))
			}
			r.From, r.To = r.From-10, r.To-10
		},
		"of another topic": func(r *inbox.Run) { r.TopicID[0]++ },
	} {
		t.Run(name+", read ahead", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, 40)
			s := &forger{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), forge: forge, more: true}
			w.start(func(c *inbox.Config[*inboxtest.Tx]) {
				c.Source, c.Memory, c.Batch.Messages = s, inbox.MemoryPosition, 10
			})
			until(t, "the fault fires", s.fired.Load)
			w.settledTo(40)
			w.wantOnce(keys...)
		})
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, 10)
			s := &forger{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), forge: forge}
			w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source, c.Memory = s, inbox.MemoryPosition })
			w.settledTo(10)
			// in one piece, so that it is one run
			var ms []semel.Message
			for i := 10; i < 20; i++ {
				k := fmt.Sprint("p0-", i)
				ms, keys = append(ms, message(0, k, k)), append(keys, k)
			}
			w.b.Send(ms...)
			until(t, "the fault fires", s.fired.Load)
			w.settledTo(20)
			w.wantOnce(keys...)
		})
	}
}

// The first claim fixes the start of all partitions: only what appears later is
// new and starts at its beginning.
func TestFirstClaimFixesTheStartOfAllPartitions(t *testing.T) {
	w := newWorld(t, 3)
	for p := range 3 {
		w.send(p, 0, 5)
	}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = w.b.NewSource(consumer, inboxtest.StartLatest, "t") })
	w.settledTo(5, 5, 5)
	keys := w.send(2, 5, 8)
	w.settledTo(5, 5, 8)
	w.wantOnce(keys...)
}

// ackWatch compares each ack with the rows of the moment.
type ackWatch struct {
	*inboxtest.Source
	w     *world
	early atomic.Int64
}

func (s *ackWatch) Ack(acks []inbox.Ack) {
	rows := s.w.db.Rows(consumer)
	for _, a := range acks {
		if a.Next > rows[a.Number].Next {
			s.early.Add(1)
		}
	}
	s.Source.Ack(acks)
}

// With signed acks an early ack loses nothing, but lag displays lie and a second
// witness is no witness.
func TestAckNeverPassesTheWatermark(t *testing.T) {
	w := newWorld(t, 2)
	keys := append(w.send(0, 0, 100), w.send(1, 0, 100)...)
	s := &ackWatch{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t"), w: w}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source, c.Batch.Messages = s, 7 })
	w.settledTo(100, 100)
	w.wantOnce(keys...)
	if n := s.early.Load(); n > 0 {
		t.Errorf("%d acks above the watermark", n)
	}
}

// A statement fails and the handler doesn't tell: the message is buried, never
// settled as applied.
func TestSwallowedFailureIsBuried(t *testing.T) {
	w := newWorld(t, 1)
	w.b.Send(message(0, "a", "a"), message(0, "b", "b"))
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.OnError.Attempts = 1
		c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
			if string(m.Key) == "a" {
				_ = tx.Refuse()
				return nil
			}
			return count(ctx, tx, m)
		}
	})
	w.settledTo(2)
	w.wantOnce("b")
	if ls := w.db.Letters(); len(ls) != 1 || ls[0].Message.Offset != 0 {
		t.Errorf("letters: %+v", ls)
	}
}

// A group that was deleted, or a consumer that moved to a group of another
// name, begins its generations again; the claim's own generation goes on.
func TestConsumerMovesToAnotherGroup(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 10)
	for range 3 {
		p := w.start()
		w.settledTo(10)
		p.stop(t)
	}
	keys = append(keys, w.send(0, 10, 20)...)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source = w.b.NewSource("another", inboxtest.StartGroup, "t") })
	w.settledTo(20)
	w.wantOnce(keys...)
}

// The log is cut, the row lowered and read anew up to where it was; then the
// database goes back to before. The row stands at the same place, but not under
// the same token, and is proved again.
func TestDatabaseThatGoesBackOverACutIsHealed(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 3)
	w.start()
	w.settledTo(3)
	before := w.db.Snapshot()
	w.b.Cut(p0, 1)
	again := w.send(0, 10, 12)
	w.settledTo(3)
	until(t, "the new messages took effect", func() bool { return len(w.db.Values()) == 5 })
	w.db.Restore(before)
	until(t, "they took effect again", func() bool { return len(w.db.Values()) == 5 })
	w.settledTo(3)
	w.wantOnce(append(keys, again...)...)
}

// deadConnection loses its connection in its first COMMIT, and the server doesn't
// notice: the transaction stays open and holds the row.
type deadConnection struct {
	*inboxtest.Store
	fired atomic.Bool
}

func (s *deadConnection) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err == nil && s.fired.CompareAndSwap(false, true) {
		tx = hangingTx{tx}
	}
	return tx, err
}

type hangingTx struct{ inbox.Tx[*inboxtest.Tx] }

func (hangingTx) Commit(context.Context, []inbox.Settled) error { return inboxtest.ErrDown }
func (hangingTx) Rollback(context.Context)                      {}

// Who waits for a row that its own dead session holds claims again, and the
// claim ends that session.
func TestOwnDeadSessionIsEndedByAClaim(t *testing.T) {
	w := newWorld(t, 1)
	w.db.LockTimeout = 20 * time.Millisecond
	keys := w.send(0, 0, 10)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Store = &deadConnection{Store: w.db.NewStore()} })
	w.settledTo(10)
	w.wantOnce(keys...)
}

// A COMMIT that was lost before it arrived looks like one whose answer was lost.
func TestCommitThatNeverArrivedIsMadeUpFor(t *testing.T) {
	w := newWorld(t, 1)
	keys := w.send(0, 0, 50)
	s := &losingStore{Store: w.db.NewStore()}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.Store, c.Memory, c.Batch.Messages = s, inbox.MemoryPosition, 5
	})
	w.settledTo(50)
	w.wantOnce(keys...)
	if s.n.Load() < 5 {
		t.Errorf("the fault fired %d times", s.n.Load())
	}
}

// losingStore loses every second COMMIT before it arrives.
type losingStore struct {
	*inboxtest.Store
	n atomic.Int64
}

func (s *losingStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	return losingTx{tx, s}, nil
}

type losingTx struct {
	inbox.Tx[*inboxtest.Tx]
	s *losingStore
}

func (t losingTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	if t.s.n.Add(1)%2 == 1 {
		t.Tx.Rollback(ctx)
		return inboxtest.ErrUnanswered()
	}
	return t.Tx.Commit(ctx, settled)
}

// What would have been buried in a transaction that was lost doesn't count
// towards the limit.
func TestLimitCountsOnlyWhatWasCommitted(t *testing.T) {
	w := newWorld(t, 1)
	for i := range 3 {
		w.b.Send(semel.Message{Topic: "t", Value: []byte(fmt.Sprint(i))})
	}
	s := &losingStore{Store: w.db.NewStore()}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Store, c.OnError.InARow = s, 5 })
	w.settledTo(3)
	if n := len(w.db.Letters()); n != 3 || s.n.Load() != 2 {
		t.Errorf("%d letters in %d transactions", n, s.n.Load())
	}
}

// asked counts how often more is asked for.
type asked struct {
	*inboxtest.Source
	more atomic.Int64
}

func (s *asked) More(n int) []inbox.Run {
	s.more.Add(1)
	return s.Source.More(n)
}

// While little waits the next batch is what comes during this one: read ahead, it
// would leave that for a third. A backlog is read ahead.
func TestOnlyABacklogIsReadAhead(t *testing.T) {
	w := newWorld(t, 1)
	s := &asked{Source: w.b.NewSource(consumer, inboxtest.StartGroup, "t")}
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Source, c.Batch.Messages = s, 10 })
	var keys []string
	for i := range 5 {
		keys = append(keys, w.send(0, i, i+1)...)
		w.settledTo(int64(i + 1))
	}
	if n := s.more.Load(); n > 0 {
		t.Errorf("%d batches of one message were read ahead", n)
	}
	var ms []semel.Message
	for i := 5; i < 100; i++ {
		k := fmt.Sprint("p0-", i)
		ms, keys = append(ms, message(0, k, k)), append(keys, k)
	}
	w.b.Send(ms...)
	w.settledTo(100)
	w.wantOnce(keys...)
	if s.more.Load() == 0 {
		t.Error("a backlog was not read ahead")
	}
}
