package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// lane is the loop. All its state belongs to the goroutine of run.
type lane[T any] struct {
	cfg      Config[T]
	effect   Effect[T]
	draining <-chan struct{}
	log      *slog.Logger

	owner  Owner
	reg    Registration
	parts  map[semel.Partition]*part
	paused bool
	pace   int // messages a batch, lowered while handlers are slow
	limit  limit
	slabs  [2][]Item
	seen   map[semel.ID]*Item // for mark, to be used again
	beside func()             // starts what is done while the database writes
	next   *upcoming          // what that makes
	begun  *begun[T]          // the transaction of the next batch
	outage outage
	reread time.Time // of the last Look
	forgot time.Time // of the last Forget
	state  State
	marked bool  // dead letters wait to be handled again
	after  int64 // the last one that was looked at
	// strikes counts outages inside a batch since the last one was committed: the
	// database is reached between them, so nothing else counts them.
	strikes int
}

func newLane[T any](cfg Config[T], effect Effect[T], draining <-chan struct{}) *lane[T] {
	return &lane[T]{
		cfg: cfg, effect: effect, draining: draining,
		log:   cfg.Logger.With("consumer", cfg.Consumer),
		owner: Self(), parts: make(map[semel.Partition]*part),
		pace:  cfg.Batch.Messages,
		limit: newLimit(cfg.OnError.InARow, cfg.OnError.Share),
	}
}

func (l *lane[T]) run(ctx context.Context) error {
	err := l.work(ctx)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	state, reason := StateStopped, ""
	if halted(err) {
		state, reason = StateHalted, err.Error()
		l.recordHalt(err)
	}
	// What is settled is settled: claims are given back and the group is left also
	// after a halt, so that nobody waits for this member.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if ctx.Err() == nil {
		l.release(stop)
	}
	l.setState(state, reason)
	return err
}

func (l *lane[T]) work(ctx context.Context) error {
	l.setState(StateStarting, "")
	if err := l.open(ctx); err != nil || l.drained() {
		return err
	}
	// Poll ends at a drain; transactions don't.
	polling, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.draining:
			cancel()
		case <-polling.Done():
		}
	}()
	for ctx.Err() == nil && !l.drained() {
		if err := l.once(ctx, polling); err != nil {
			if err := l.weather(ctx, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// once is one turn: poll, prove, settle.
func (l *lane[T]) once(ctx, polling context.Context) error {
	if l.outage.left {
		return l.comeBack(ctx)
	}
	d, err := l.poll(polling)
	if err != nil {
		return &brokerError{err}
	}
	l.assigned(d)
	// An error of the database puts every partition back to its row: see weather.
	if err := l.look(ctx); err != nil {
		return err
	}
	if l.paused {
		l.over("broker")
		return nil
	}
	// A partition that the broker can't prove now, because nobody leads it, doesn't
	// hold the others.
	unproved := l.prove(ctx)
	if unproved != nil && !isBroker(unproved) {
		return unproved
	}
	if unproved == nil {
		l.over("broker")
		if l.outage.since.IsZero() {
			l.setState(StateRunning, "")
		}
	}
	if l.careful() {
		err = l.settleCarefully(ctx, d.Runs)
	} else {
		err = among(func() error { return l.settle(ctx, d.Runs) })
	}
	if err != nil || unproved != nil {
		return cmp.Or(err, unproved)
	}
	if err := among(func() error { return l.redrive(ctx) }); err != nil {
		return err
	}
	return l.forget(ctx)
}

// poll waits for messages no longer than until something else is due.
func (l *lane[T]) poll(ctx context.Context) (Delivery, error) {
	wait := l.cfg.Reread
	want := 0
	for _, p := range l.parts {
		if p.proven {
			want = l.pace
		} else {
			wait = min(wait, max(time.Until(p.due.at), 0))
		}
	}
	if l.careful() {
		want = min(want, carefulPoll)
	}
	if l.paused {
		want, wait = 0, min(l.cfg.Reread, time.Second)
	}
	if want > 0 {
		var later time.Duration
		if want, later = l.cfg.Rate.ready(want); want == 0 {
			wait = min(wait, later)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	d, err := l.cfg.Source.Poll(ctx, want)
	l.cfg.Rate.took(messagesOf(d.Runs))
	return d, err
}

func messagesOf(runs []Run) (n int) {
	for _, r := range runs {
		n += len(r.Messages)
	}
	return n
}

// assigned takes the delivery's changes into the lane's picture.
func (l *lane[T]) assigned(d Delivery) {
	for _, p := range d.Lost {
		if _, ok := l.parts[p]; ok {
			delete(l.parts, p)
			l.log.Info("partition lost", "topic", p.Topic, "partition", p.Number)
			tell(l.cfg.Observe.Dropped, p)
		}
	}
	for _, p := range d.Gained {
		l.parts[p] = &part{Partition: p, end: -1}
	}
	for _, p := range d.Doubted {
		if part := l.parts[p]; part != nil {
			part.proven = false
		}
	}
}

// open makes the consumer known and clears the remains of dead predecessors.
func (l *lane[T]) open(ctx context.Context) error {
	for {
		err := l.tryOpen(ctx)
		if err == nil {
			return nil
		}
		if err := l.weather(ctx, err); err != nil {
			return err
		}
		if ctx.Err() != nil || l.drained() {
			return nil
		}
	}
}

// register makes the consumer known to the store.
func (l *lane[T]) register(ctx context.Context) error {
	cluster, err := l.cfg.Source.Cluster(ctx)
	if err != nil {
		return &brokerError{err}
	}
	l.reg, err = l.cfg.Store.Open(ctx, Record{
		Name: l.cfg.Consumer, Cluster: cluster, Topics: l.cfg.Source.Topics(),
		IDRule: l.cfg.idRule(), Target: l.cfg.Target,
		Memory: l.cfg.Memory, Window: l.cfg.Window, AcceptChange: l.cfg.AcceptChange,
	})
	return err
}

func (l *lane[T]) tryOpen(ctx context.Context) error {
	ctx, cancel := l.soon(ctx)
	defer cancel()
	if err := l.register(ctx); err != nil {
		return err
	}
	l.paused = l.reg.Paused
	look, err := l.cfg.Store.Look(ctx, nil)
	if err != nil {
		return err
	}
	var dead []string
	for _, r := range look.Rows {
		if o := r.Owner; o != nil && o.Member != "" && o.Dead() && !slices.Contains(dead, o.Member) {
			dead = append(dead, o.Member)
		}
	}
	// A process that was killed between joining and its first claim left no row.
	members, err := l.cfg.Source.Members(ctx)
	if err != nil { // a restart that takes a session's time is no reason not to start
		l.log.Info("the group's members aren't known", "error", err)
	}
	for _, m := range members {
		if DeadProcess(m.Process) && !slices.Contains(dead, m.ID) {
			dead = append(dead, m.ID)
		}
	}
	if len(dead) > 0 {
		// The killed process lives on at the broker until its session ends, and
		// the group would wait for it.
		l.log.Info("a predecessor on this host is dead: its members leave the group", "members", len(dead))
		if err := l.cfg.Source.Evict(ctx, dead); err != nil {
			return &brokerError{err}
		}
	}
	return nil
}

// look reads rows of partitions without an advance again: nothing else would
// notice a database that went back.
func (l *lane[T]) look(ctx context.Context) error {
	every := l.cfg.Reread
	if l.paused {
		every = min(every, time.Second)
	}
	if time.Since(l.reread) < every {
		return nil
	}
	var ps []semel.Partition
	for p, part := range l.parts {
		if part.proven && !part.moved {
			ps = append(ps, p)
		}
		part.moved = false
	}
	ctx, cancel := l.soon(ctx)
	defer cancel()
	look, err := l.cfg.Store.Look(ctx, ps)
	if err != nil {
		return err
	}
	l.reread = time.Now()
	l.over("database")
	rows := make(map[semel.Partition]*Row, len(look.Rows))
	for i := range look.Rows {
		rows[look.Rows[i].Partition] = &look.Rows[i]
	}
	for _, p := range ps {
		part := l.parts[p]
		if m, ok := part.compare(rows[p]); !ok {
			l.fenced(&FencedError{Mismatches: []Mismatch{m}})
		}
	}
	l.marked = l.marked || look.Marked
	l.pause(look.Paused, look.Reason)
	return nil
}

// compare holds a row against what this lane believes of it.
func (p *part) compare(r *Row) (Mismatch, bool) {
	m := Mismatch{Partition: p.Partition, From: p.next, Row: r}
	if r == nil {
		return m, false
	}
	m.Mine = r.Token == p.claim.Token && r.TopicID == p.claim.TopicID
	return m, m.Mine && r.Next == p.next
}

func (l *lane[T]) pause(paused bool, reason string) {
	if paused {
		for _, p := range l.parts {
			l.unprove(p)
		}
		l.setState(StatePaused, reason)
	}
	l.paused = paused
}

// unprove stops fetching a partition until it is proved again.
func (l *lane[T]) unprove(p *part) {
	p.proven = false
	l.cfg.Source.Hold([]semel.Partition{p.Partition})
}

// fenced is the one answer to every mismatch: prove again.
func (l *lane[T]) fenced(e *FencedError) {
	for _, m := range e.Mismatches {
		tell(l.cfg.Observe.Fenced, m)
		l.log.Warn("the row is not what this process left", "topic", m.Topic, "partition", m.Number, "kind", m.Kind(), "from", m.From)
		if p := l.parts[m.Partition]; p != nil {
			l.unprove(p)
			if m.Kind() == "fenced" {
				p.due.after(50*time.Millisecond, 2*time.Second)
			}
		}
	}
}

// forget lets the inbox drop what its window no longer covers.
func (l *lane[T]) forget(ctx context.Context) error {
	if l.cfg.Memory != MemoryInbox || time.Since(l.forgot) < min(time.Minute, l.cfg.Window/24) || len(l.parts) == 0 {
		return nil
	}
	ctx, cancel := l.soon(ctx)
	defer cancel()
	place, err := l.place(ctx)
	if err != nil {
		return err
	}
	more, err := l.cfg.Store.Forget(ctx, place)
	if err != nil {
		return err
	}
	if !more {
		l.forgot = time.Now()
	}
	return nil
}

// place is the record time that the slowest partition of the consumer, whosever it is,
// has come to: now where no message waits; zero where that can't be known.
func (l *lane[T]) place(ctx context.Context) (time.Time, error) {
	ws, err := l.cfg.Source.Witness(ctx, l.cfg.Source.Topics())
	if err != nil { // an outage shows elsewhere; here it means that nothing is known
		return time.Time{}, ctx.Err()
	}
	look, err := l.cfg.Store.Look(ctx, nil)
	if err != nil {
		return time.Time{}, err
	}
	rows := make(map[semel.Partition]Row, len(look.Rows))
	for _, r := range look.Rows {
		rows[r.Partition] = r
	}
	place := time.Now()
	for _, w := range ws {
		r, ok := rows[w.Partition]
		switch {
		case ok && r.Next >= w.Stable, !ok && w.Start >= w.Stable:
		case r.RecordTime.IsZero():
			return time.Time{}, nil
		case r.RecordTime.Before(place):
			place = r.RecordTime
		}
	}
	return place, nil
}

// release gives claims back and leaves the group, as well as can be.
func (l *lane[T]) release(ctx context.Context) {
	var claims []Claim
	for _, p := range l.parts {
		if p.claim.Token != (Token{}) {
			claims = append(claims, p.claim)
		}
	}
	if err := l.cfg.Store.Release(ctx, claims); err != nil {
		l.log.Warn("claims could not be released", "error", err)
	}
	if err := l.cfg.Source.Leave(ctx); err != nil {
		l.log.Warn("the group could not be left", "error", err)
	}
}

func (l *lane[T]) recordHalt(err error) {
	ev := Event{Kind: "halt", Detail: map[string]any{"why": err.Error()}}
	var h *HaltError
	if errors.As(err, &h) {
		ev.Partition = h.Partition
		ev.Detail["kind"], ev.Detail["hint"] = h.Kind, h.Hint
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.cfg.Store.Record(ctx, []Event{ev}); err != nil {
		l.log.Warn("the halt could not be recorded", "error", err)
	}
}

func (l *lane[T]) setState(s State, reason string) {
	if l.state == s {
		return
	}
	l.state = s
	switch s {
	case StateOutage: // what is out has been logged
	case StateHalted:
		l.log.Error("halted", "reason", reason)
	case StatePaused:
		l.log.Info("paused", "reason", reason)
	default:
		l.log.Info(string(s))
	}
	tell2(l.cfg.Observe.State, s, reason)
}

func (l *lane[T]) drained() bool {
	select {
	case <-l.draining:
		return true
	default:
		return false
	}
}

// halted says whether err is one that a person has to decide about.
func halted(err error) bool {
	var h *HaltError
	var c *ChangedError
	return errors.As(err, &h) || errors.As(err, &c)
}

// idRule is the rule's name as it is recorded.
func (c *Config[T]) idRule() string {
	if c.ID.ByPosition() && c.OwnIDs {
		return c.ID.Name
	}
	return c.ID.String()
}
