package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// gate stands at every seam of one process: it takes a random time at each step,
// and there the process dies, is stopped and goes on later, loses an answer, or
// finds no broker. Nothing of a dead process happens afterwards; at the broker
// its membership lives on until somebody ends it.
type gate struct {
	source *inboxtest.Source
	watch  *watch

	mu        sync.Mutex
	rng       *rand.Rand
	dieIn     int // steps until it dies; 0: it doesn't
	stallIn   int // steps until it stops
	loseIn    int // COMMITs until one isn't answered
	loseBoth  bool
	hangs     bool // the server doesn't notice its death: its transaction stays open
	brokerOff bool

	dead    bool
	stalled chan struct{} // closed when it stands still
	release chan struct{}
}

var errBrokerGone = errors.New("no broker")

// pass is one step.
func (g *gate) pass() {
	g.mu.Lock()
	nap := time.Duration(g.rng.IntN(400)) * time.Microsecond
	if g.rng.IntN(20) == 0 {
		nap *= 20
	}
	g.mu.Unlock()
	time.Sleep(nap)
	g.mu.Lock()
	if countDown(&g.dieIn) {
		g.dead = true
		g.watch.fire("died")
	}
	var release chan struct{}
	if countDown(&g.stallIn) {
		close(g.stalled)
		release = g.release
	}
	dead := g.dead
	g.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
	if release != nil {
		<-release
		g.watch.fire("zombie went on")
	}
}

func (g *gate) isDead() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead
}

// countDown steps down and says whether it has come to the end.
func countDown(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return *n == 0
}

func (g *gate) lose() (lost, before bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return countDown(&g.loseIn), g.loseBoth
}

func (g *gate) broker() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.brokerOff {
		g.watch.fire("broker out")
		return errBrokerGone
	}
	return nil
}

type gatedSource struct {
	inbox.Source
	g *gate
}

func (s gatedSource) Poll(ctx context.Context, n int) (inbox.Delivery, error) {
	s.g.pass()
	if err := s.g.broker(); err != nil {
		return inbox.Delivery{}, err
	}
	d, err := s.Source.Poll(ctx, n)
	s.g.pass()
	return d, err
}

func (s gatedSource) Witness(ctx context.Context, topics []string) ([]inbox.Witness, error) {
	s.g.pass()
	if err := s.g.broker(); err != nil {
		return nil, err
	}
	w, err := s.Source.Witness(ctx, topics)
	s.g.pass()
	return w, err
}

func (s gatedSource) Seek(ctx context.Context, to []inbox.Mark) error {
	s.g.pass()
	return s.Source.Seek(ctx, to)
}

func (s gatedSource) Confirm(ctx context.Context) error {
	s.g.pass()
	if err := s.g.broker(); err != nil {
		return err
	}
	return s.Source.Confirm(ctx)
}

func (s gatedSource) Ack(acks []inbox.Ack) {
	s.g.pass()
	s.g.watch.acks(acks, func() { s.Source.Ack(acks) })
	s.g.pass()
}

func (s gatedSource) Sign(ctx context.Context, acks []inbox.Ack) (err error) {
	s.g.pass()
	if err := s.g.broker(); err != nil {
		return err
	}
	s.g.watch.acks(acks, func() { err = s.Source.Sign(ctx, acks) })
	s.g.pass()
	return err
}

func (s gatedSource) Leave(ctx context.Context) error {
	if s.g.isDead() {
		return nil
	}
	return s.Source.Leave(ctx)
}

func (s gatedSource) Close() {
	if !s.g.isDead() {
		s.Source.Close()
	}
}

type gatedStore struct {
	inbox.Store[*inboxtest.Tx]
	g *gate
}

func (s gatedStore) Introduce(ctx context.Context, topic string, f func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) ([]inbox.Row, error) {
	s.g.pass()
	rows, err := s.Store.Introduce(ctx, topic, f)
	for _, r := range rows {
		s.g.watch.stands(r.Partition, r.TopicID, r.Next)
	}
	s.g.pass()
	return rows, err
}

func (s gatedStore) Claim(ctx context.Context, p semel.Partition, o inbox.Owner, f func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	s.g.pass()
	r, err := s.Store.Claim(ctx, p, o, f)
	if err == nil {
		s.g.watch.stands(p, r.TopicID, r.Next)
	}
	s.g.pass()
	return r, err
}

func (s gatedStore) Look(ctx context.Context, ps []semel.Partition) (inbox.Look, error) {
	s.g.pass()
	return s.Store.Look(ctx, ps)
}

func (s gatedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	s.g.pass()
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		var f *inbox.FencedError
		if errors.As(err, &f) {
			for _, m := range f.Mismatches {
				s.g.watch.fire("refused: " + m.Kind())
			}
		}
		return nil, err
	}
	gated := &gatedTx{Tx: tx, g: s.g, store: s}
	s.g.pass()
	return gated, nil
}

type gatedTx struct {
	inbox.Tx[*inboxtest.Tx]
	g     *gate
	store gatedStore
}

func (t *gatedTx) Admit(ctx context.Context, as []inbox.Admission) ([]inbox.Verdict, error) {
	v, err := t.Tx.Admit(ctx, as)
	t.g.pass()
	return v, err
}

func (t *gatedTx) Bury(ctx context.Context, ls []inbox.DeadLetter) error {
	err := t.Tx.Bury(ctx, ls)
	t.g.pass()
	return err
}

func (t *gatedTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	t.g.pass()
	lost, before := t.g.lose()
	if lost && before {
		t.g.watch.fire("COMMIT lost")
		t.Tx.Rollback(ctx)
		return inboxtest.ErrUnanswered()
	}
	err := t.Tx.Commit(ctx, settled)
	if err == nil {
		for _, s := range settled {
			t.g.watch.stands(s.Partition, s.TopicID, s.To)
		}
		if lost {
			t.g.watch.fire("answer to COMMIT lost")
			err = inboxtest.ErrUnanswered()
		}
	}
	t.g.pass()
	return err
}

// CommitAndBegin goes through the gate's own Begin.
func (t *gatedTx) CommitAndBegin(ctx context.Context, settled []inbox.Settled, next []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if err := t.Commit(ctx, settled); err != nil {
		return nil, err
	}
	then, err := t.store.Begin(ctx, next)
	if err != nil {
		return nil, nil
	}
	t.g.watch.fire("begun by COMMIT")
	return then, nil
}

func (t *gatedTx) Rollback(ctx context.Context) {
	t.g.mu.Lock()
	hangs := t.g.dead && t.g.hangs
	t.g.mu.Unlock()
	if hangs {
		t.g.watch.fire("transaction of the dead stays open")
		return
	}
	t.Tx.Rollback(ctx)
}

// watch sees every ack and every watermark of all processes, and counts the
// faults that fired.
type watch struct {
	b *inboxtest.Broker

	mu     sync.Mutex
	high   map[string]int64 // highest watermark, by partition and topic ID
	told   map[string]int64 // highest ack since the database last went back
	broken []string         // what must never happen
	fired  map[string]int
}

func newWatch(b *inboxtest.Broker) *watch {
	return &watch{b: b, high: map[string]int64{}, told: map[string]int64{}, fired: map[string]int{}}
}

func (w *watch) fire(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired[what]++
}

func logName(p semel.Partition, topicID string) string { return p.String() + " " + topicID }

func (w *watch) stands(p semel.Partition, id semel.TopicID, next int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := logName(p, strings.ReplaceAll(id.String(), "-", ""))
	w.high[k] = max(w.high[k], next)
}

// rewind does what may lower the broker's offset: somebody else sets it, or the
// database goes back.
func (w *watch) rewind(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	clear(w.told)
}

func (w *watch) breaks(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, what)
}

// acks checks the broker's offsets around a commit of them: never above the
// highest watermark, never back while the database stands.
func (w *watch) acks(acks []inbox.Ack, commit func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	commit()
	for _, a := range acks {
		_, id, _ := strings.Cut(a.Note, " t=")
		id, _, _ = strings.Cut(id, " ")
		k := logName(a.Partition, id)
		if a.Next > w.high[k] && !strings.HasSuffix(a.Note, fmt.Sprint(" f=", a.Next)) {
			w.broken = append(w.broken, "an ack above the highest watermark of "+k)
		}
		now, note := w.b.Committed(consumer, a.Partition)
		if !strings.Contains(note, " t="+id) {
			continue
		}
		if now < w.told[k] {
			w.broken = append(w.broken, "the broker's offset went back: "+k)
		}
		w.told[k] = max(w.told[k], now)
	}
}
