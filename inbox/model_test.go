package inbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// The dumb model beside the machine: a history is a random list of what people,
// producers and misfortune do. The model only writes down what was sent where; at
// the end it says what must be in the database, however the machine got there.
//
//	go test ./inbox -run TestRandomHistories -histories 5000
//	go test ./inbox -run TestRandomHistories -seed 17 -v    one of them again
//
// Time is virtual, so that only the seed decides who is slow where; goroutines
// that wake at the same instant are all that it doesn't decide.
var (
	seedFlag  = flag.Uint64("seed", envSeed(), "run this history alone (or SEMEL_SEED)")
	histories = flag.Int("histories", 200, "how many random histories")
)

func envSeed() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("SEMEL_SEED"), 10, 64)
	return n
}

func TestRandomHistories(t *testing.T) {
	if *seedFlag != 0 {
		runHistory(t, *seedFlag)
		return
	}
	first := uint64(time.Now().UnixNano()) % 1e9
	t.Logf("seeds %d to %d", first, first+uint64(*histories)-1)
	var mu sync.Mutex
	fired := map[string]int{}
	t.Run("seed", func(t *testing.T) {
		for lane := range 4 {
			t.Run(fmt.Sprint("every 4th from ", lane), func(t *testing.T) {
				t.Parallel()
				for i := lane; i < *histories && !t.Failed(); i += 4 {
					got := runHistory(t, first+uint64(i))
					mu.Lock()
					for k, n := range got {
						fired[k] += n
					}
					mu.Unlock()
				}
			})
		}
	})
	if t.Failed() || *histories < 100 {
		return
	}
	for _, f := range allFaults {
		if fired[f] == 0 {
			t.Errorf("the fault %q never fired in %d histories", f, *histories)
		}
	}
	t.Logf("fired: %v", fired)
}

var allFaults = []string{
	"died", "zombie went on", "begun by COMMIT", "transaction of the dead stays open", "COMMIT lost", "answer to COMMIT lost",
	"broker out", "database out", "evicted", "went back", "went back to nothing", "offset to 0", "offset ahead",
	"offset deleted", "hole", "head lost", "log cut", "topic made anew", "partition added", "paused",
	"refused: fenced", "refused: went-back", "refused: answer-lost", "clean stop",
}

// kind is what a message is like.
type kind uint8

const (
	good kind = iota
	poison
	flaky   // fails a few times
	skipped // by the handler
	missing // no ID
)

// sent is a message in the model's log.
type sent struct {
	offset int64
	id     string
	name   string // unique per message
	kind   kind
}

// modelLog is one partition.
type modelLog struct {
	first      int64 // where the consumer begins
	start, end int64
	messages   []sent
	cut, anew  bool
	trimmed    bool
}

// history is one run of the model and the machine side by side.
type history struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	b     *inboxtest.Broker
	db    *inboxtest.DB
	watch *watch
	began time.Time
	steps []string

	memory    inbox.Memory
	start     inboxtest.Start
	batched   bool // the handler takes batches
	messages  int  // per batch
	patience  time.Duration
	most      int // processes
	logs      []*modelLog
	ever      []sent // all that was sent
	serial    int
	snapshots []snapshot
	processes []*member
	unwitness bool // the broker's testimony about the first claim is gone

	mu    sync.Mutex
	fails map[string]int // how often flaky messages will still fail
}

type snapshot struct {
	inboxtest.Snapshot
	rows int
}

// member is a process.
type member struct {
	*process
	g    *gate
	name int
}

func runHistory(t *testing.T, seed uint64) (fired map[string]int) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHistory(t, seed)
			h.run()
			fired = h.watch.fired
		})
	})
	return fired
}

func newHistory(t *testing.T, seed uint64) *history {
	rng := rand.New(rand.NewPCG(seed, 1))
	h := &history{t: t, seed: seed, rng: rng, b: inboxtest.NewBroker(), db: inboxtest.NewDB(), began: time.Now(), fails: map[string]int{}}
	h.watch = newWatch(h.b)
	h.memory = pick(rng, inbox.MemoryInbox, inbox.MemoryInbox, inbox.MemoryPosition)
	h.start = pick(rng, inboxtest.StartEarliest, inboxtest.StartGroup, inboxtest.StartLatest)
	h.batched = rng.IntN(2) == 0
	h.messages = pick(rng, 1, 3, 10, 100)
	h.patience = pick(rng, 10*time.Second, 4*time.Millisecond)
	h.most = 1 + rng.IntN(2)
	partitions := 1 + rng.IntN(3)
	h.b.CreateTopic("t", partitions)
	for range partitions {
		h.logs = append(h.logs, &modelLog{})
	}
	h.note("%d partitions, %s, start %d, batches of %d (handler of batches: %v, %s), %d processes",
		partitions, h.memory, h.start, h.messages, h.batched, h.patience, h.most)
	return h
}

func pick[V any](rng *rand.Rand, vs ...V) V { return vs[rng.IntN(len(vs))] }

func (h *history) note(format string, args ...any) {
	h.steps = append(h.steps, fmt.Sprintf("%8s  ", time.Since(h.began).Round(10*time.Microsecond))+fmt.Sprintf(format, args...))
}

func (h *history) run() {
	defer func() {
		h.letAllEnd()
		for _, b := range h.watch.broken {
			h.t.Errorf("never: %s", b)
		}
		if h.t.Failed() {
			h.t.Logf("again with: go test ./inbox -run TestRandomHistories -seed %d\n%s", h.seed, strings.Join(h.steps, "\n"))
		}
	}()
	h.begin()
	for range 10 + h.rng.IntN(30) {
		h.step()
		h.sleep(h.rng.IntN(12))
	}
	h.finish()
	h.check()
}

// begin settles where the consumer starts: from then on that is a fact, and the
// signed acks are its witness.
func (h *history) begin() {
	h.snapshot()
	for range h.rng.IntN(4) {
		h.send()
	}
	for n, l := range h.logs {
		if h.start == inboxtest.StartLatest {
			l.first = l.end
		} else if h.rng.IntN(2) == 0 && l.end > 0 {
			there := h.rng.Int64N(l.end + 1)
			h.note("somebody's offset of partition %d is %d", n, there)
			h.b.Commit(consumer, part(n), there, "somebody's")
			if h.start == inboxtest.StartGroup {
				l.first = there
			}
		}
	}
	h.startProcess()
	h.waitFor("all partitions are signed for", func() bool {
		for n := range h.logs {
			if _, note := h.b.Committed(consumer, part(n)); !strings.HasPrefix(note, "semel1 ") {
				return false
			}
		}
		return true
	})
}

func part(n int) semel.Partition { return semel.Partition{Topic: "t", Number: int32(n)} }

func (h *history) step() {
	type op struct {
		weight int
		do     func()
	}
	ops := []op{
		{30, h.send},
		{6, h.startProcess},
		{3, h.stopProcess},
		{6, h.crash},
		{5, h.zombie},
		{3, h.evict},
		{4, h.snapshot},
		{4, h.goBack},
		{5, h.loseAnswer},
		{2, h.databaseOut},
		{2, h.brokerOut},
		{3, h.offset},
		{2, h.hole},
		{2, h.trim},
		{2, h.pause},
		{1, h.addPartition},
	}
	if h.memory == inbox.MemoryInbox { // the other halts, see TestCutLogHaltsWherePositionIsIdentity
		ops = append(ops, op{2, h.cut}, op{1, h.anew})
	}
	total := 0
	for _, o := range ops {
		total += o.weight
	}
	n := h.rng.IntN(total)
	for _, o := range ops {
		if n -= o.weight; n < 0 {
			o.do()
			return
		}
	}
}

// sleep for milliseconds of virtual time.
func (h *history) sleep(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

// send appends a few messages: new ones, repeats under the same ID anywhere, and
// bad ones.
func (h *history) send() {
	n, count := h.rng.IntN(len(h.logs)), 1+h.rng.IntN(12)
	l := h.logs[n]
	for range count {
		h.serial++
		m := sent{offset: l.end, name: fmt.Sprint("m", h.serial), id: fmt.Sprint("id", h.serial)}
		switch h.rng.IntN(12) {
		case 0:
			m.kind = poison
		case 1:
			m.kind = flaky
			h.mu.Lock()
			h.fails[m.id] = 1 + h.rng.IntN(3)
			h.mu.Unlock()
		case 2:
			m.kind = skipped
		case 3:
			m.kind, m.id = missing, ""
		case 4, 5, 6:
			if len(h.ever) > 0 {
				old := h.ever[h.rng.IntN(len(h.ever))]
				m.id, m.kind = old.id, old.kind
			}
		}
		msg := semel.Message{Topic: "t", Partition: int32(n), Key: []byte(strconv.Itoa(int(m.kind))), Value: []byte(m.name)}
		if m.id != "" {
			msg.Headers = []semel.Header{{Name: "message-id", Value: []byte(m.id)}}
		}
		h.b.Send(msg)
		l.messages, l.end = append(l.messages, m), l.end+1
		h.ever = append(h.ever, m)
	}
	h.note("send %d to partition %d", count, n)
}

// effect is the name of a message's effect: its ID, or itself where only the
// position is known.
func (h *history) effect(id, name string) string {
	if h.memory == inbox.MemoryPosition {
		return name
	}
	return id
}

// handle is the handler's share of the model.
func (h *history) handle(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
	id, _ := m.Header("message-id")
	k, _ := strconv.Atoi(string(m.Key))
	switch kind(k) {
	case poison:
		return tx.Refuse()
	case skipped:
		if !h.batched {
			return semel.Skip("on purpose")
		}
		return nil
	case flaky:
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.fails[string(id)]--; h.fails[string(id)] >= 0 {
			return errors.New("not yet")
		}
	}
	return tx.Add(ctx, h.effect(string(id), string(m.Value)), 1)
}

func (h *history) startProcess() {
	if len(h.living()) >= h.most {
		return
	}
	source := h.b.NewSource(consumer, h.start, "t")
	g := &gate{source: source, watch: h.watch, rng: rand.New(rand.NewPCG(h.seed, uint64(len(h.processes)+2)))}
	cfg := inbox.Config[*inboxtest.Tx]{
		Consumer: consumer, Source: gatedSource{source, g}, Store: gatedStore{h.db.NewStore(), g},
		ID: semel.HeaderID("message-id"), Memory: h.memory, Reread: 20 * time.Millisecond,
		OnError: inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond, InARow: -1, Share: -1},
		Batch:   inbox.BatchLimits{Messages: h.messages, Time: h.patience},
	}
	handle := func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
		g.pass()
		return h.handle(ctx, tx, m)
	}
	if h.batched {
		cfg.BatchHandler = func(ctx context.Context, tx *inboxtest.Tx, ms []semel.Message) error {
			h.inOrder(ms)
			for _, m := range ms {
				if err := handle(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}
	} else {
		cfg.Handler = handle
	}
	if testing.Verbose() && *seedFlag != 0 {
		cfg.Logger = slog.New(slog.NewTextHandler(h.t.Output(), nil)).With("process", len(h.processes))
	}
	in, err := inbox.New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{in: in, kill: cancel, done: make(chan struct{})}
	m := &member{process: p, g: g, name: len(h.processes)}
	h.processes = append(h.processes, m)
	h.note("start process %d", m.name)
	go func() {
		defer close(p.done)
		p.err = errors.New("died")
		p.err = in.Run(ctx)
	}()
}

func (h *history) inOrder(ms []semel.Message) {
	last := map[int32]int64{}
	for _, m := range ms {
		if at, ok := last[m.Partition]; ok && m.Offset <= at {
			h.watch.breaks("messages of a partition out of order in a batch")
		}
		last[m.Partition] = m.Offset
	}
}

func (h *history) living() []*member {
	var out []*member
	for _, m := range h.processes {
		select {
		case <-m.done:
		default:
			out = append(out, m)
		}
	}
	return out
}

func (h *history) someone() *member {
	if alive := h.living(); len(alive) > 0 {
		return alive[h.rng.IntN(len(alive))]
	}
	return nil
}

// others of the group, who keep their membership when m loses it.
func (h *history) others(m *member) (keep []*inboxtest.Source) {
	for _, o := range h.living() {
		if o != m {
			keep = append(keep, o.g.source)
		}
	}
	return keep
}

func (h *history) stopProcess() {
	if m := h.someone(); m != nil {
		h.note("stop process %d", m.name)
		m.in.Drain()
		<-m.done
		if m.err != nil && !m.g.isDead() {
			h.t.Errorf("after a drain Run answers %v", m.err)
		}
		h.watch.fire("clean stop")
	}
}

func (h *history) crash() {
	m := h.someone()
	if m == nil {
		return
	}
	m.g.mu.Lock()
	m.g.dieIn = 1 + h.rng.IntN(30)
	m.g.hangs = h.rng.IntN(2) == 0
	h.note("process %d dies in %d steps (its transaction stays open: %v)", m.name, m.g.dieIn, m.g.hangs)
	m.g.mu.Unlock()
	<-m.done
	h.note("it is dead")
	m.kill()
	h.sleep(h.rng.IntN(10))
	h.b.Expire(consumer, h.others(m)...)
}

// zombie stops a process past its session, and lets it go on later.
func (h *history) zombie() {
	m := h.someone()
	if m == nil {
		return
	}
	m.g.mu.Lock()
	m.g.stallIn = 1 + h.rng.IntN(30)
	m.g.stalled, m.g.release = make(chan struct{}), make(chan struct{})
	h.note("process %d stops in %d steps", m.name, m.g.stallIn)
	m.g.mu.Unlock()
	select {
	case <-m.g.stalled:
	case <-m.done:
		return
	}
	h.b.Expire(consumer, h.others(m)...)
	h.most++
	h.startProcess()
	h.most--
	for range h.rng.IntN(3) {
		h.send()
		h.sleep(h.rng.IntN(150))
	}
	h.note("process %d goes on", m.name)
	close(m.g.release)
}

func (h *history) evict() {
	if m := h.someone(); m != nil {
		h.note("process %d is evicted", m.name)
		h.b.Expire(consumer, h.others(m)...)
		h.watch.fire("evicted")
	}
}

func (h *history) snapshot() {
	h.snapshots = append(h.snapshots, snapshot{h.db.Snapshot(), len(h.db.Rows(consumer))})
	h.note("copy %d of the database, with %d rows", len(h.snapshots)-1, len(h.db.Rows(consumer)))
}

func (h *history) goBack() {
	i := h.rng.IntN(len(h.snapshots))
	s := h.snapshots[i]
	if s.rows == 0 {
		// Without the broker's signed acks nobody knows where the consumer began.
		if h.unwitness && h.start != inboxtest.StartEarliest {
			return
		}
		h.watch.fire("went back to nothing")
	}
	h.note("the database goes back to copy %d", i)
	h.watch.rewind(func() { h.db.Restore(s.Snapshot) })
	h.watch.fire("went back")
}

func (h *history) loseAnswer() {
	if m := h.someone(); m != nil {
		m.g.mu.Lock()
		m.g.loseIn, m.g.loseBoth = 1+h.rng.IntN(3), h.rng.IntN(2) == 0
		h.note("process %d will have no answer to its COMMIT number %d (it never arrived: %v)", m.name, m.g.loseIn, m.g.loseBoth)
		m.g.mu.Unlock()
	}
}

func (h *history) databaseOut() {
	h.note("the database is down")
	h.db.SetDown(true)
	h.sleep(h.rng.IntN(100))
	h.db.SetDown(false)
	h.note("the database is up")
	h.watch.fire("database out")
}

func (h *history) brokerOut() {
	if m := h.someone(); m != nil {
		set := func(off bool) {
			m.g.mu.Lock()
			m.g.brokerOff = off
			m.g.mu.Unlock()
		}
		h.note("process %d finds no broker", m.name)
		set(true)
		h.sleep(h.rng.IntN(100))
		set(false)
	}
}

func (h *history) offset() {
	p := part(h.rng.IntN(len(h.logs)))
	next, note := h.b.Committed(consumer, p)
	if next < 0 {
		return
	}
	switch h.rng.IntN(3) {
	case 0:
		h.note("the group's offset of %s is set to 0", p)
		h.watch.rewind(func() { h.b.Commit(consumer, p, 0, note) })
		h.watch.fire("offset to 0")
	case 1:
		h.note("the group's offset of %s is set ahead", p)
		h.watch.rewind(func() { h.b.Commit(consumer, p, next+5, note) })
		h.watch.fire("offset ahead")
	case 2:
		if len(h.db.Rows(consumer)) == 0 {
			return // neither row nor ack: nobody knows where the consumer began
		}
		h.note("the group's offsets are deleted")
		h.watch.rewind(func() { h.b.Forget(consumer) })
		h.unwitness = true
		h.watch.fire("offset deleted")
	}
}

func (h *history) hole() {
	n := h.rng.IntN(len(h.logs))
	h.note("a hole in partition %d at %d", n, h.logs[n].end)
	h.b.Hole(part(n))
	h.logs[n].end++
	h.watch.fire("hole")
}

func (h *history) trim() {
	n := h.rng.IntN(len(h.logs))
	l := h.logs[n]
	if l.end == l.start {
		return
	}
	l.start += h.rng.Int64N(l.end - l.start)
	h.note("retention takes partition %d before %d", n, l.start)
	h.b.Trim(part(n), l.start)
	l.messages = slices.DeleteFunc(l.messages, func(m sent) bool { return m.offset < l.start })
	l.trimmed = true
	h.watch.fire("head lost")
}

func (h *history) cut() {
	n := h.rng.IntN(len(h.logs))
	l := h.logs[n]
	floor := max(l.start, l.first)
	if l.end <= floor {
		return
	}
	l.end = floor + h.rng.Int64N(l.end-floor)
	h.note("partition %d is cut at %d", n, l.end)
	h.watch.rewind(func() { h.b.Cut(part(n), l.end) })
	l.messages = slices.DeleteFunc(l.messages, func(m sent) bool { return m.offset >= l.end })
	l.cut = true
	h.watch.fire("log cut")
}

func (h *history) anew() {
	if h.start == inboxtest.StartLatest && len(h.db.Rows(consumer)) == 0 {
		return // as with deleted offsets
	}
	h.note("the topic is made anew")
	h.watch.rewind(func() { h.b.CreateTopic("t", len(h.logs)) })
	for i := range h.logs {
		h.logs[i] = &modelLog{anew: true}
	}
	h.unwitness = true
	h.watch.fire("topic made anew")
}

func (h *history) addPartition() {
	if len(h.logs) < 4 {
		h.note("a partition is added")
		h.b.AddPartition("t")
		h.logs = append(h.logs, &modelLog{})
		h.watch.fire("partition added")
	}
}

func (h *history) pause() {
	h.note("pause")
	h.db.Pause(consumer, "for a look", true)
	h.sleep(h.rng.IntN(100))
	h.note("resume")
	h.db.Pause(consumer, "", false)
	h.watch.fire("paused")
}

// finish takes all faults away and waits until everything is settled.
func (h *history) finish() {
	h.db.Pause(consumer, "", false)
	h.note("faults are over")
	if len(h.living()) == 0 {
		h.startProcess()
	}
	h.waitFor("everything is settled", h.settled)
	h.sleep(100) // nothing is done afterwards that would undo it
	if slices.ContainsFunc(h.logs, func(l *modelLog) bool { return l.cut }) {
		h.sleep(3000) // it may end where the row stood: longer than any back-off
	}
	h.waitFor("everything stays settled", h.settled)
	for _, m := range h.living() {
		m.in.Drain()
		<-m.done
		if m.err != nil {
			h.t.Errorf("after a drain Run answers %v", m.err)
		}
	}
	for _, m := range h.processes {
		var halt *inbox.HaltError
		if errors.As(m.err, &halt) {
			h.t.Errorf("process %d halted: %v", m.name, halt)
		}
	}
}

func (h *history) settled() bool {
	now, err := h.b.NewSource("a look", h.start, "t").Witness(context.Background(), []string{"t"})
	if err != nil {
		h.t.Fatal(err)
	}
	rows := h.db.Rows(consumer)
	for i, r := range rows {
		if i >= len(h.logs) || r.Next != h.logs[i].end || r.TopicID != now[i].TopicID {
			return false
		}
	}
	return len(rows) == len(h.logs)
}

func (h *history) waitFor(what string, fact func() bool) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			for _, r := range h.db.Rows(consumer) {
				h.note("row %s: start %d, next %d of %d, generation %d", r.Partition, r.Start, r.Next, h.logs[r.Number].end, r.Generation)
			}
			for _, m := range h.processes {
				select {
				case <-m.done:
					h.note("process %d ended: %v", m.name, m.err)
				default:
					h.note("process %d runs", m.name)
				}
			}
			h.t.Fatalf("never: %s", what)
		}
	}
}

func (h *history) letAllEnd() {
	for _, m := range h.processes {
		m.kill()
		m.g.mu.Lock()
		if m.g.release != nil {
			select {
			case <-m.g.release:
			default:
				close(m.g.release)
			}
		}
		m.g.mu.Unlock()
		<-m.done
	}
}

// check is the model: what is in the log now took effect once, or is a dead
// letter; what was in a log once took effect at most once; nothing else did; and
// every offset is accounted for.
func (h *history) check() {
	values, letters := h.db.Values(), map[string]int{}
	for _, l := range h.db.Letters() {
		id, _ := l.Message.Header("message-id")
		letters[h.letter(string(id), string(l.Message.Value))]++
	}
	most := map[string]int{}
	for _, m := range h.ever {
		most[h.letter(m.id, m.name)] = 1
	}
	wantValues, wantLetters := map[string]int64{}, map[string]int{}
	for _, l := range h.logs {
		for _, m := range l.messages {
			if m.offset < l.first {
				continue
			}
			switch {
			case m.kind == poison, m.kind == missing && h.memory == inbox.MemoryInbox:
				wantLetters[h.letter(m.id, m.name)] = 1
			case m.kind != skipped:
				wantValues[h.effect(m.id, m.name)] = 1
			}
		}
	}
	for k, want := range wantValues {
		if values[k] != want {
			h.t.Errorf("%s took effect %d times", k, values[k])
		}
	}
	for k, want := range wantLetters {
		if letters[k] != want {
			h.t.Errorf("%s was buried %d times", k, letters[k])
		}
	}
	for k, n := range values {
		if wantValues[k] == 0 && (n > 1 || most[k] == 0 || h.before(k)) {
			h.t.Errorf("%s took effect %d times, it must not", k, n)
		}
	}
	for k, n := range letters {
		if wantLetters[k] == 0 && (n > 1 || most[k] == 0 || h.before(k)) {
			h.t.Errorf("%s was buried %d times, it must not be", k, n)
		}
	}
	h.accounts()
}

// letter is the name under which a message is buried at most once.
func (h *history) letter(id, name string) string {
	if id == "" || h.memory == inbox.MemoryPosition {
		return name
	}
	return id
}

// before says whether all messages of that name lay before the consumer's start.
func (h *history) before(k string) bool {
	n, early := 0, 0
	for _, m := range h.ever {
		if h.letter(m.id, m.name) == k {
			n++
		}
	}
	for _, l := range h.logs {
		for _, m := range l.messages {
			if h.letter(m.id, m.name) == k && m.offset < l.first {
				early++
			}
		}
	}
	return n > 0 && n == early
}

// accounts recomputes counts and checksums from the log.
func (h *history) accounts() {
	gaps := map[semel.Partition][][2]int64{}
	for _, e := range h.db.Events() {
		if e.Kind == "gap" {
			gaps[e.Partition] = append(gaps[e.Partition], [2]int64{e.Detail["from"].(int64), e.Detail["to"].(int64)})
		}
	}
	dead := map[semel.Partition]inbox.Tally{}
	rows := h.db.Rows(consumer)
	for _, l := range h.db.Letters() {
		p := semel.Partition{Topic: "t", Number: l.Message.Partition}
		tally := dead[p]
		tally.Add(inbox.Hash(rows[p.Number].TopicID, l.Message.Offset))
		dead[p] = tally
	}
	for i, r := range rows {
		l, a := h.logs[i], r.Accounts
		if d, ok := a.Check(); !ok {
			h.t.Errorf("%s: settled and outcomes differ by %+v", r.Partition, d)
		}
		if got := a.Settled.Count + a.Holes + a.Lost; got != r.Next-r.Start {
			h.t.Errorf("%s: %d offsets accounted for of %d: %+v", r.Partition, got, r.Next-r.Start, a)
		}
		if r.Start != l.first && (!l.trimmed || r.Start > l.start) {
			h.t.Errorf("%s starts at %d, it must at %d", r.Partition, r.Start, l.first)
		}
		if r.Owner != nil && len(h.processes) == 1 {
			h.t.Errorf("%s has an owner after a clean stop", r.Partition)
		}
		if l.cut || l.anew && l.trimmed {
			continue // other messages have the same offsets
		}
		var lost int64
		for _, g := range gaps[r.Partition] {
			lost += g[1] - g[0]
		}
		if !l.anew && a.Lost != lost {
			h.t.Errorf("%s: lost %d, the events say %d", r.Partition, a.Lost, lost)
		}
		if l.trimmed {
			continue
		}
		var want inbox.Tally
		for _, m := range l.messages {
			if m.offset >= r.Start && (l.anew || !slices.ContainsFunc(gaps[r.Partition], func(g [2]int64) bool { return m.offset >= g[0] && m.offset < g[1] })) {
				want.Add(inbox.Hash(r.TopicID, m.offset))
			}
		}
		if a.Settled != want {
			h.t.Errorf("%s: settled %+v, the log says %+v", r.Partition, a.Settled, want)
		}
		if !l.anew && a.Outcome[inbox.Dead] != dead[r.Partition] {
			h.t.Errorf("%s: dead %+v, the letters say %+v", r.Partition, a.Outcome[inbox.Dead], dead[r.Partition])
		}
	}
}
