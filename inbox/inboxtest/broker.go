package inboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// Broker is a broker in memory: topics of partitions, and groups whose members
// share them.
type Broker struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change
	topics  map[string]*topic
	groups  map[string]*group
	serial  int
}

type topic struct {
	id   semel.TopicID
	logs []*log
}

type log struct {
	start, end int64 // the first offset still there, and the next one to write
	epoch      int32
	messages   []semel.Message // ascending offsets; holes are legal
	epochs     []inbox.Epoch
}

type group struct {
	members []*Source
	acks    map[semel.Partition]committed
	owner   map[semel.Partition]*Source
}

type committed struct {
	next int64
	note string
}

// NewBroker has no topics.
func NewBroker() *Broker {
	return &Broker{changed: make(chan struct{}), topics: map[string]*topic{}, groups: map[string]*group{}}
}

func (b *Broker) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// CreateTopic makes a topic, or makes it anew with another ID: the group's
// offsets of the old one are gone.
func (b *Broker) CreateTopic(name string, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &topic{}
	_, _ = rand.Read(t.id[:])
	for range partitions {
		t.logs = append(t.logs, &log{epochs: []inbox.Epoch{{Number: 0, First: 0}}})
	}
	b.topics[name] = t
	for _, g := range b.groups {
		for p := range g.acks {
			if p.Topic == name {
				delete(g.acks, p)
			}
		}
		for _, m := range g.members {
			for p := range m.places {
				if p.Topic == name {
					m.places[p] = -1
					m.doubted = append(m.doubted, p)
				}
			}
		}
		g.assign(b)
	}
	b.wake()
}

// AddPartition makes a topic one partition wider.
func (b *Broker) AddPartition(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[name].logs = append(b.topics[name].logs, &log{epochs: []inbox.Epoch{{}}})
	for _, g := range b.groups {
		g.assign(b)
	}
	b.wake()
}

// Send appends a message to the log that it names and gives it its offset.
func (b *Broker) Send(ms ...semel.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range ms {
		l := b.log(semel.Partition{Topic: m.Topic, Number: m.Partition})
		m.Offset = l.end
		if m.Timestamp.IsZero() {
			m.Timestamp = time.Now()
		}
		l.messages = append(l.messages, m)
		l.end++
	}
	b.wake()
}

// Hole makes an offset that never had a message for readers, like the marker of
// a Kafka transaction.
func (b *Broker) Hole(p semel.Partition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log(p).end++
	b.wake()
}

// Trim removes everything before an offset, as retention does.
func (b *Broker) Trim(p semel.Partition, before int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.log(p)
	l.start = before
	l.messages = slices.DeleteFunc(l.messages, func(m semel.Message) bool { return m.Offset < before })
	b.wake()
}

// Cut removes everything from an offset on and starts a new leader epoch, as an
// unclean election does.
func (b *Broker) Cut(p semel.Partition, from int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.log(p)
	l.messages = slices.DeleteFunc(l.messages, func(m semel.Message) bool { return m.Offset >= from })
	l.end = from
	l.epochs = slices.DeleteFunc(l.epochs, func(e inbox.Epoch) bool { return e.First >= from && e.First > 0 })
	l.epoch++
	l.epochs = append(l.epochs, inbox.Epoch{Number: l.epoch, First: from})
	for _, g := range b.groups {
		for _, m := range g.members {
			if _, ok := m.places[p]; ok {
				m.places[p] = -1
				m.doubted = append(m.doubted, p)
			}
		}
	}
	b.wake()
}

// Commit sets a group's offset as a foreign consumer or a person would.
func (b *Broker) Commit(groupName string, p semel.Partition, next int64, note string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.group(groupName).acks[p] = committed{next, note}
}

// Forget removes all offsets of a group.
func (b *Broker) Forget(groupName string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.group(groupName).acks)
}

// Committed is a group's offset and what is kept beside it; -1 none.
func (b *Broker) Committed(groupName string, p semel.Partition) (int64, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.group(groupName).acks[p]; ok {
		return c.next, c.note
	}
	return -1, ""
}

// Expire makes the group forget its members, as after their session timed out.
func (b *Broker) Expire(groupName string, keep ...*Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.group(groupName)
	for _, m := range slices.Clone(g.members) {
		if !slices.Contains(keep, m) {
			g.remove(b, m)
		}
	}
	b.wake()
}

func (b *Broker) log(p semel.Partition) *log { return b.topics[p.Topic].logs[p.Number] }

func (b *Broker) group(name string) *group {
	g := b.groups[name]
	if g == nil {
		g = &group{acks: map[semel.Partition]committed{}, owner: map[semel.Partition]*Source{}}
		b.groups[name] = g
	}
	return g
}

// assign spreads partitions over members; a partition moves only when its owner
// has polled and so given it up.
func (g *group) assign(b *Broker) {
	for _, m := range g.members {
		m.want = map[semel.Partition]bool{}
	}
	if len(g.members) == 0 {
		return
	}
	var all []semel.Partition
	for name, t := range b.topics {
		for n := range t.logs {
			all = append(all, semel.Partition{Topic: name, Number: int32(n)})
		}
	}
	sort.Slice(all, func(i, k int) bool { return all[i].String() < all[k].String() })
	for i, p := range all {
		m := g.members[i%len(g.members)]
		if slices.Contains(m.topics, p.Topic) {
			m.want[p] = true
		}
	}
}

func (g *group) remove(b *Broker, m *Source) {
	g.members = slices.DeleteFunc(g.members, func(o *Source) bool { return o == m })
	for p, o := range g.owner {
		if o == m {
			delete(g.owner, p)
		}
	}
	m.member = ""
	g.assign(b)
}

// Source is a member of a group of a Broker.
type Source struct {
	Process string // what the group is told about the process

	b      *Broker
	name   string
	topics []string
	start  Start

	member  string // "" if the group doesn't know it
	joined  bool   // it has been a member
	want    map[semel.Partition]bool
	places  map[semel.Partition]int64 // next offset to deliver; -1 held
	doubted []semel.Partition
}

// Start says where a consumer without memory begins.
type Start int

const (
	StartGroup Start = iota
	StartEarliest
	StartLatest
)

// NewSource joins the group at its first Poll.
func (b *Broker) NewSource(groupName string, start Start, topics ...string) *Source {
	return &Source{b: b, name: groupName, topics: topics, start: start, places: map[semel.Partition]int64{}}
}

var _ inbox.Source = (*Source)(nil)

// Topics is [inbox.Source]'s.
func (s *Source) Topics() []string { return s.topics }

// Cluster is [inbox.Source]'s.
func (s *Source) Cluster(context.Context) (string, error) { return "memory", nil }

// Poll is [inbox.Source]'s.
func (s *Source) Poll(ctx context.Context, limit int) (inbox.Delivery, error) {
	for {
		s.b.mu.Lock()
		d := s.poll(limit)
		changed := s.b.changed
		s.b.mu.Unlock()
		if len(d.Gained)+len(d.Lost)+len(d.Doubted)+len(d.Runs) > 0 {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return d, nil
		case <-changed:
		}
	}
}

func (s *Source) poll(limit int) (d inbox.Delivery) {
	g := s.b.group(s.name)
	if s.member == "" {
		for p := range s.places {
			d.Lost = append(d.Lost, p)
		}
		clear(s.places)
		s.b.serial++
		s.joined = true
		s.member = fmt.Sprintf("member-%d", s.b.serial)
		g.members = append(g.members, s)
		g.assign(s.b)
		s.b.wake()
	}
	for p := range s.places {
		if !s.want[p] {
			delete(s.places, p)
			if g.owner[p] == s {
				delete(g.owner, p)
				s.b.wake()
			}
			d.Lost = append(d.Lost, p)
		}
	}
	for p := range s.want {
		if _, has := s.places[p]; !has && g.owner[p] == nil {
			g.owner[p] = s
			s.places[p] = -1
			d.Gained = append(d.Gained, p)
		}
	}
	for _, p := range s.doubted {
		if _, has := s.places[p]; has && !slices.Contains(d.Gained, p) {
			d.Doubted = append(d.Doubted, p)
		}
	}
	s.doubted = nil
	ps := make([]semel.Partition, 0, len(s.places))
	for p := range s.places {
		ps = append(ps, p)
	}
	sort.Slice(ps, func(i, k int) bool { return ps[i].String() < ps[k].String() })
	for _, p := range ps {
		at, l := s.places[p], s.b.log(p)
		if at < 0 || limit <= 0 {
			continue
		}
		if at < l.start || at > l.end {
			s.places[p] = -1
			d.Doubted = append(d.Doubted, p)
			continue
		}
		if at == l.end {
			continue
		}
		r := inbox.Run{Partition: p, TopicID: s.b.topics[p.Topic].id, From: at, To: l.end, End: l.end}
		for _, m := range l.messages {
			if m.Offset < at {
				continue
			}
			if limit == 0 {
				r.To = m.Offset
				break
			}
			r.Messages = append(r.Messages, m)
			limit--
		}
		for i, e := range l.epochs {
			if e.First < r.To && (i+1 == len(l.epochs) || l.epochs[i+1].First > r.From) {
				r.Epochs = append(r.Epochs, inbox.Epoch{Number: e.Number, First: max(e.First, r.From)})
			}
		}
		s.places[p] = r.To
		if r.To > r.From {
			d.Runs = append(d.Runs, r)
		}
	}
	return d
}

// More is [inbox.Source]'s.
func (s *Source) More(limit int) []inbox.Run {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.changes() {
		return nil
	}
	return s.poll(limit).Runs
}

// changes says whether a Poll would answer more than messages.
func (s *Source) changes() bool {
	if s.member == "" || len(s.doubted) > 0 {
		return true
	}
	for p, at := range s.places {
		if l := s.b.log(p); !s.want[p] || at >= 0 && (at < l.start || at > l.end) {
			return true
		}
	}
	for p := range s.want {
		if _, has := s.places[p]; !has && s.b.group(s.name).owner[p] == nil {
			return true
		}
	}
	return false
}

// Seek is [inbox.Source]'s.
func (s *Source) Seek(_ context.Context, to []inbox.Mark) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, m := range to {
		if _, ok := s.places[m.Partition]; ok {
			s.places[m.Partition] = m.Next
		}
	}
	return nil
}

// Hold is [inbox.Source]'s.
func (s *Source) Hold(ps []semel.Partition) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, p := range ps {
		if _, ok := s.places[p]; ok {
			s.places[p] = -1
		}
	}
}

// Ack is [inbox.Source]'s.
func (s *Source) Ack(acks []inbox.Ack) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	g := s.b.group(s.name)
	for _, a := range acks {
		if g.owner[a.Partition] == s && a.Next > g.acks[a.Partition].next {
			g.acks[a.Partition] = committed{a.Next, a.Note}
		}
	}
}

// Sign is [inbox.Source]'s. A member whose session has ended is refused, as a
// broker refuses it.
func (s *Source) Sign(_ context.Context, acks []inbox.Ack) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.joined && s.member == "" {
		return errNotMember
	}
	for _, a := range acks {
		s.b.group(s.name).acks[a.Partition] = committed{a.Next, a.Note}
	}
	return nil
}

// Witness is [inbox.Source]'s.
func (s *Source) Witness(_ context.Context, topics []string) ([]inbox.Witness, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	var out []inbox.Witness
	for _, name := range topics {
		t := s.b.topics[name]
		if t == nil {
			return nil, &inbox.UnknownTopicError{Topic: name}
		}
		for n, l := range t.logs {
			p := semel.Partition{Topic: name, Number: int32(n)}
			w := inbox.Witness{
				Partition: p, TopicID: t.id, Start: l.start, End: l.end, Stable: l.end,
				Begin: l.start, Acked: -1, FollowGroup: s.start == StartGroup, Epoch: l.epoch, Retention: time.Hour,
			}
			if s.start == StartLatest {
				w.Begin = l.end
			}
			if c, ok := s.b.group(s.name).acks[p]; ok {
				w.Acked, w.Note = c.next, c.note
			}
			out = append(out, w)
		}
	}
	return out, nil
}

// EpochEnd is [inbox.Source]'s.
func (s *Source) EpochEnd(_ context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	l := s.b.log(p)
	e := inbox.EpochEnd{Number: -1, End: -1}
	for i, have := range l.epochs {
		if have.Number > epoch {
			break
		}
		e = inbox.EpochEnd{Number: have.Number, End: l.end}
		if i+1 < len(l.epochs) {
			e.End = l.epochs[i+1].First
		}
	}
	return e, nil
}

var errNotMember = errors.New("not a member of the group")

// Confirm is [inbox.Source]'s.
func (s *Source) Confirm(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.member == "" {
		return errNotMember
	}
	return nil
}

// Members is [inbox.Source]'s.
func (s *Source) Members(context.Context) ([]inbox.Member, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	var out []inbox.Member
	for _, m := range s.b.group(s.name).members {
		out = append(out, inbox.Member{ID: m.member, Process: m.Process})
	}
	return out, nil
}

// Member is [inbox.Source]'s.
func (s *Source) Member() (string, string) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.member, ""
}

// Evict is [inbox.Source]'s.
func (s *Source) Evict(_ context.Context, members []string) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	g := s.b.group(s.name)
	for _, m := range slices.Clone(g.members) {
		if slices.Contains(members, m.member) {
			g.remove(s.b, m)
		}
	}
	s.b.wake()
	return nil
}

// Leave is [inbox.Source]'s.
func (s *Source) Leave(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.group(s.name).remove(s.b, s)
	clear(s.places)
	s.b.wake()
	return nil
}

// Close is [inbox.Source]'s.
func (s *Source) Close() { _ = s.Leave(context.Background()) }
