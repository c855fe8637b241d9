package main

import (
	"context"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// memSource gives messages from memory: what is measured behind it is the
// machine and PostgreSQL alone.
type memSource struct {
	topic  string
	id     semel.TopicID
	logs   [][]semel.Message
	begun  func() // called before the first messages are handed out
	gained bool

	mu   sync.Mutex // guards what follows
	next []int64
	turn int // which log is served first
}

func newMemSource(topic string, logs [][]semel.Message, begun func()) *memSource {
	s := &memSource{topic: topic, id: semel.TopicID(semel.IDOf([]byte(topic))), logs: logs, begun: begun, next: make([]int64, len(logs))}
	for i := range s.next {
		s.next[i] = -1 // held
	}
	return s
}

func (s *memSource) Topics() []string                                { return []string{s.topic} }
func (s *memSource) Cluster(context.Context) (string, error)         { return "memory", nil }
func (s *memSource) Ack([]inbox.Ack)                                 {}
func (s *memSource) Sign(context.Context, []inbox.Ack) error         { return nil }
func (s *memSource) Confirm(context.Context) error                   { return nil }
func (s *memSource) Member() (member, instance string)               { return "memory", "" }
func (s *memSource) Evict(context.Context, []string) error           { return nil }
func (s *memSource) Leave(context.Context) error                     { return nil }
func (s *memSource) Close()                                          {}
func (s *memSource) Members(context.Context) ([]inbox.Member, error) { return nil, nil }
func (s *memSource) partition(i int) semel.Partition {
	return semel.Partition{Topic: s.topic, Number: int32(i)}
}

func (s *memSource) Poll(ctx context.Context, max int) (inbox.Delivery, error) {
	var d inbox.Delivery
	if !s.gained {
		s.gained = true
		for i := range s.logs {
			d.Gained = append(d.Gained, s.partition(i))
		}
		return d, nil
	}
	if d.Runs = s.More(max); len(d.Runs) == 0 {
		<-ctx.Done()
	} else if s.begun != nil {
		s.begun()
		s.begun = nil
	}
	return d, nil
}

func (s *memSource) More(max int) (runs []inbox.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.logs {
		i := s.turn
		log, from := s.logs[i], s.next[i]
		if max == 0 {
			break
		}
		s.turn = (i + 1) % len(s.logs)
		if from < 0 || from == int64(len(log)) {
			continue
		}
		to := min(from+int64(max), int64(len(log)))
		runs = append(runs, inbox.Run{Partition: s.partition(i), TopicID: s.id, From: from, To: to, End: int64(len(log)), Messages: log[from:to]})
		s.next[i] = to
		max -= int(to - from)
	}
	return runs
}

func (s *memSource) Seek(_ context.Context, to []inbox.Mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range to {
		s.next[m.Number] = m.Next
	}
	return nil
}

func (s *memSource) Hold(ps []semel.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		s.next[p.Number] = -1
	}
}

func (s *memSource) Witness(context.Context, []string) ([]inbox.Witness, error) {
	ws := make([]inbox.Witness, len(s.logs))
	for i, log := range s.logs {
		n := int64(len(log))
		ws[i] = inbox.Witness{Partition: s.partition(i), TopicID: s.id, End: n, Stable: n, Acked: -1, Epoch: -1, Retention: -time.Second}
	}
	return ws, nil
}

func (s *memSource) EpochEnd(_ context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	return inbox.EpochEnd{Number: epoch, End: int64(len(s.logs[p.Number]))}, nil
}
