package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// ErrClosed is answered by a source or sender that was closed.
var ErrClosed = errors.New("kafka: closed")

// ErrNotMember is wrapped by the answers of [Source.Confirm] and [Source.Sign]
// when the group doesn't know this process as a member. Polling joins again.
var ErrNotMember = errors.New("not a member of the group")

// Source is a member of a consumer group, as [inbox.Source] describes it. Make
// one with [NewSource].
type Source struct {
	cfg   SourceConfig
	log   *slog.Logger
	cl    *kgo.Client // for requests and fetches; it is in no group
	adm   *kadm.Client
	codec kgo.Decompressor

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	work    sync.WaitGroup
	wake    chan struct{} // there is something for Poll
	kick    chan struct{} // there is something to commit
	look    chan struct{} // a leader is to be found
	commits chan struct{} // whoever has put something in may commit
	ahead   atomic.Int64  // bytes decompressed or read ahead, and not handed out

	mu      sync.Mutex // guards what follows; held for no request
	cond    *sync.Cond // fetchers wait for room, for work, for the end
	closed  bool
	running bool // the goroutines beside the fetchers
	member  *member
	events  []event
	parts   map[semel.Partition]*part
	order   []*part // in the order in which Poll serves them
	nodes   map[int32]bool
	open    bool // the last Poll wanted messages
	held    int  // bytes fetched that wait
	ids     map[string]semel.TopicID
	trouble map[string]*trouble
	failure error  // for the next Poll that has nothing better to say
	failing string // what failure is about

	// Two deliveries may be in use: the last, and the one before it if the last
	// came from More.
	slot  int
	out   [2][]*part // whose buffers each of them uses
	names names
}

var _ inbox.Source = (*Source)(nil)

// part is an assigned partition.
type part struct {
	semel.Partition

	// pin is what the machine's proof is about: fetches name topic and epoch,
	// so that another log's messages can't come in. nil until it is known.
	pin    *pin
	leader int32 // -1 unknown

	reading bool   // from a Seek on, until Hold or doubt
	doubted bool   // the next Poll says so
	gone    bool   // the group has taken it away; the next Poll says so
	seek    uint64 // raised whenever what was fetched before is void
	next    int64  // of the next fetch
	from    int64  // end of the last run
	epoch   int32  // of the last batch handed out
	stable  int64
	buf     []batch

	hands  [2]hand
	epochs []inbox.Epoch

	// What is to be committed, if acking; nothing below committed is.
	ack       inbox.Ack
	acking    bool
	committed int64
	known     bool // committed is
}

// hand is what a delivery holds of a partition.
type hand struct {
	messages []semel.Message
	headers  []semel.Header
}

type pin struct {
	topic semel.TopicID
	epoch int32
}

// event is a change of the assignment.
type event struct {
	gained, lost []semel.Partition
	clean        bool          // what is lost is still ours until it is taken up
	taken        chan struct{} // closed when Poll has taken up a loss
}

// NewSource makes a source; it connects when it is first used and joins the group
// at the first Poll.
func NewSource(cfg SourceConfig) (*Source, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Source{
		cfg:     cfg,
		log:     cfg.Logger,
		codec:   kgo.DefaultDecompressor(),
		wake:    make(chan struct{}, 1),
		kick:    make(chan struct{}, 1),
		look:    make(chan struct{}, 1),
		commits: make(chan struct{}, 1),
		parts:   map[semel.Partition]*part{},
		nodes:   map[int32]bool{},
		ids:     map[string]semel.TopicID{},
		trouble: map[string]*trouble{},
		names:   names{},
	}
	s.cond = sync.NewCond(&s.mu)
	s.ctx, s.stop = context.WithCancel(context.Background())
	var err error
	s.cl, err = kgo.NewClient(append(slices.Clone(cfg.Options),
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(clientID),
		kgo.RetryTimeout(6*time.Second),
		kgo.MetadataMinAge(100*time.Millisecond),
	)...)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.adm = kadm.NewClient(s.cl)
	return s, nil
}

// Topics are the topics that are read, sorted; with Matching its [MatchingName].
func (s *Source) Topics() []string {
	if s.cfg.Matching != "" {
		return []string{MatchingName(s.cfg.Matching)}
	}
	return slices.Clone(s.cfg.Topics)
}

// Cluster is the cluster's ID.
func (s *Source) Cluster(ctx context.Context) (string, error) {
	md, err := s.adm.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	return md.Cluster, nil
}

// Poll joins the group at its first call. A topic that doesn't exist is answered
// as an [inbox.UnknownTopicError], what a broker refuses as a wrapped kerr.Error.
func (s *Source) Poll(ctx context.Context, max int) (inbox.Delivery, error) {
	s.giveBack(0)
	s.giveBack(1)
	if ctx.Err() != nil {
		return inbox.Delivery{}, nil
	}
	if err := s.join(ctx); err != nil {
		if ctx.Err() != nil {
			return inbox.Delivery{}, nil
		}
		return inbox.Delivery{}, err
	}
	s.want(max > 0)
	for {
		d, err := s.gather(ctx, max)
		if err != nil || !empty(d) {
			return d, err
		}
		select {
		case <-ctx.Done():
			return inbox.Delivery{}, nil
		case <-s.ctx.Done():
			return inbox.Delivery{}, ErrClosed
		case <-s.wake:
		}
	}
}

func empty(d inbox.Delivery) bool {
	return len(d.Gained)+len(d.Lost)+len(d.Doubted)+len(d.Runs) == 0
}

func (s *Source) want(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
	s.cond.Broadcast()
}

// gather takes up what is there, without waiting for more.
func (s *Source) gather(ctx context.Context, max int) (inbox.Delivery, error) {
	var d inbox.Delivery
	if err := s.rebalance(ctx, &d); err != nil {
		return inbox.Delivery{}, nil // ctx has ended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return inbox.Delivery{}, ErrClosed
	}
	for _, p := range s.order {
		if p.doubted && !p.gone {
			p.doubted = false
			d.Doubted = append(d.Doubted, p.Partition)
		}
	}
	if max > 0 {
		d.Runs = s.runs(max)
		s.cond.Broadcast() // there is room again
	}
	if err := s.failure; err != nil && empty(d) {
		s.failure = nil
		return d, err
	}
	return d, nil
}

// rebalance takes up changes of the assignment, in order. A partition that is
// given up keeps its place until its acks are at the broker.
func (s *Source) rebalance(ctx context.Context, d *inbox.Delivery) error {
	for {
		s.mu.Lock()
		if len(s.events) == 0 {
			s.mu.Unlock()
			return nil
		}
		e := s.events[0]
		again := slices.ContainsFunc(e.gained, func(p semel.Partition) bool { return slices.Contains(d.Lost, p) }) ||
			slices.ContainsFunc(e.lost, func(p semel.Partition) bool { return slices.Contains(d.Gained, p) })
		s.mu.Unlock()
		if again { // each delivery says one thing about a partition
			return nil
		}
		if e.clean {
			if err := s.flush(ctx, e.lost); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				s.log.Warn("given up without its last acks", "error", err)
			}
		}
		s.mu.Lock()
		if len(s.events) > 0 { // Close may have been here
			s.events = s.events[1:]
		}
		for _, p := range e.lost {
			if s.drop(p) {
				d.Lost = append(d.Lost, p)
			}
		}
		for _, p := range e.gained {
			if s.parts[p] == nil {
				s.add(p)
				d.Gained = append(d.Gained, p)
			}
		}
		s.mu.Unlock()
		if e.taken != nil {
			close(e.taken)
		}
	}
}

// add and drop: mu is held.
func (s *Source) add(p semel.Partition) {
	n := &part{Partition: p, leader: -1, stable: -1, epoch: -1}
	s.parts[p] = n
	s.order = append(s.order, n)
	s.find()
}

func (s *Source) drop(p semel.Partition) bool {
	n := s.parts[p]
	if n == nil {
		return false
	}
	s.void(n)
	n.gone = true
	delete(s.trouble, "partition "+p.String())
	delete(s.parts, p)
	s.order = slices.DeleteFunc(s.order, func(o *part) bool { return o == n })
	return true
}

// void throws away what was fetched, and what is on its way. mu is held.
func (s *Source) void(p *part) {
	p.seek++
	p.reading = false
	for i := range p.buf {
		s.unhold(&p.buf[i])
	}
	p.buf = nil
	s.cond.Broadcast()
}

func (s *Source) unhold(b *batch) {
	s.held -= b.size
	s.ahead.Add(-int64(b.ahead))
}

// doubt holds a partition and lets the next Poll say so. mu is held.
func (s *Source) doubt(p *part, why string) {
	s.log.Warn("place in the log is in doubt", "topic", p.Topic, "partition", p.Number, "why", why, "next", p.from)
	s.void(p)
	delete(s.trouble, "partition "+p.Partition.String())
	p.pin, p.leader, p.doubted = nil, -1, true
	s.find()
	s.rouse()
}

func (s *Source) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Seek ignores partitions that aren't assigned. A partition that is in doubt
// since the last Poll stays held: the next Poll says so.
func (s *Source) Seek(_ context.Context, to []inbox.Mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	for _, m := range to {
		p := s.parts[m.Partition]
		if p == nil || p.gone {
			continue
		}
		s.void(p)
		p.next, p.from, p.epoch = m.Next, m.Next, -1
		p.reading = !p.doubted
		if p.leader < 0 {
			s.find()
		}
		s.serve(p.leader)
	}
	s.cond.Broadcast()
	return nil
}

// Hold stops fetching the partitions and throws away what was fetched of them.
func (s *Source) Hold(ps []semel.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range ps {
		if p := s.parts[q]; p != nil {
			s.void(p)
		}
	}
}

// More answers nothing while Poll has something else to say.
func (s *Source) More(max int) []inbox.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := s.closed || s.member == nil || len(s.events) > 0 || s.failure != nil ||
		slices.ContainsFunc(s.order, func(p *part) bool { return p.doubted })
	if other || max <= 0 {
		return nil
	}
	runs := s.runs(max)
	s.cond.Broadcast() // there is room again
	return runs
}

// runs takes up to max messages from what was fetched. A batch costs less the
// fewer partitions it has, so each gives what it has; who gave goes last next
// time. mu is held.
func (s *Source) runs(max int) []inbox.Run {
	s.slot = 1 - s.slot
	s.giveBack(s.slot)
	var runs []inbox.Run
	var gave []*part
	room := s.cfg.MaxBytes / 4
	for _, p := range s.order {
		if max <= 0 || room <= 0 {
			break
		}
		if len(p.buf) == 0 || p.gone {
			continue
		}
		gave = append(gave, p)
		p.epochs = nil
		r := inbox.Run{Partition: p.Partition, TopicID: p.pin.topic, From: p.from, End: p.stable}
		room -= s.take(p, max, room)
		if p.from > r.From {
			r.To, r.Epochs, r.Messages = p.from, p.epochs, p.hands[s.slot].messages
			max -= len(r.Messages)
			runs = append(runs, r)
		}
	}
	s.out[s.slot] = append(s.out[s.slot], gave...)
	if len(gave) > 0 {
		s.order = append(slices.DeleteFunc(s.order, func(p *part) bool { return slices.Contains(gave, p) }), gave...)
	}
	return runs
}

// take moves up to max messages of a partition into its delivery, and says how
// many bytes they have. mu is held.
func (s *Source) take(p *part, max, room int) (took int) {
	h := &p.hands[s.slot]
	for len(p.buf) > 0 && max > 0 && (took == 0 || took < room) {
		b := &p.buf[0]
		if b.epoch >= 0 && b.epoch != p.epoch {
			p.epochs = append(p.epochs, inbox.Epoch{Number: b.epoch, First: max64(b.first, p.from)})
			p.epoch = b.epoch
		}
		if b.skip {
			p.from = b.last + 1
			p.buf = p.buf[1:]
			continue
		}
		n, err := b.open(s.codec)
		b.ahead += n
		s.ahead.Add(int64(n))
		if err == nil {
			var bytes int
			var end bool
			before := len(h.messages)
			h.messages, h.headers, p.from, bytes, end, err = b.take(h.messages, h.headers, p.Partition, p.from, max, room-took, s.names)
			took += bytes
			max -= len(h.messages) - before
			if end {
				s.unhold(b)
				p.buf = p.buf[1:]
			}
		}
		if err != nil {
			// What came before it stands; it is fetched again from here.
			s.failed("partition "+p.Partition.String(), fmt.Errorf("%s: %w", p.Partition, err), true)
			s.refetch(p)
			return took
		}
	}
	return took
}

func max64(a, b int64) int64 { return max(a, b) }

// refetch goes on fetching where the last run ended, after a pause. mu is held.
func (s *Source) refetch(p *part) {
	reading := p.reading
	s.void(p)
	p.reading, p.next, p.leader = reading, p.from, -1
	s.find()
}

// giveBack ends the use of a delivery's buffers.
func (s *Source) giveBack(slot int) {
	for _, p := range s.out[slot] {
		h := &p.hands[slot]
		clear(h.messages)
		clear(h.headers)
		h.messages, h.headers = h.messages[:0], h.headers[:0]
	}
	clear(s.out[slot])
	s.out[slot] = s.out[slot][:0]
}

// trouble is something that fails again and again.
type trouble struct {
	since time.Time
	said  string
	told  time.Time
}

// patience is for how long what may pass by itself isn't told to Poll.
const patience = 3 * time.Second

// failed notes that something can't be done, for the log once and for Poll: at
// once if now, else when it has lasted. mu is held.
func (s *Source) failed(what string, err error, now bool) {
	if errors.Is(err, context.Canceled) || s.closed {
		return
	}
	t := s.trouble[what]
	if t == nil {
		t = &trouble{since: time.Now()}
		s.trouble[what] = t
	}
	if text := err.Error(); t.said != text {
		t.said = text
		s.log.Warn("broker trouble", "about", what, "error", err)
	}
	if (now || time.Since(t.since) > patience) && time.Since(t.told) > time.Second {
		t.told = time.Now()
		s.failure, s.failing = err, what
		s.rouse()
	}
}

// well ends a trouble. mu is held.
func (s *Source) well(what string) {
	if t := s.trouble[what]; t != nil {
		delete(s.trouble, what)
		if s.failing == what {
			s.failure = nil
		}
		s.log.Info("broker trouble is over", "about", what, "lasted", time.Since(t.since).Round(time.Millisecond))
	}
}

// Leave commits outstanding acks and leaves the group, also as a static member.
// All partitions are given up; Poll doesn't say so.
func (s *Source) Leave(ctx context.Context) error {
	s.mu.Lock()
	m := s.member
	all := make([]semel.Partition, 0, len(s.parts))
	for p := range s.parts {
		all = append(all, p)
	}
	s.mu.Unlock()
	if m == nil {
		return nil
	}
	err := s.flush(ctx, all)
	err = errors.Join(err, m.leave(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		s.drop(p)
	}
	s.events = nil
	s.member = nil
	return err
}

// Close leaves, for at most five seconds, and frees everything. A Poll that waits
// answers [ErrClosed].
func (s *Source) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.cond.Broadcast()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Leave(ctx); err != nil {
		s.log.Warn("left the group without a farewell", "error", err)
	}
	s.stop()
	s.work.Wait()
	s.cl.Close()
}
