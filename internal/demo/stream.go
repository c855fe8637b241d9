package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/kafka"
)

// stream is the producer, and what it knows of all that it sent.
type stream struct {
	cfg   *Config
	rng   *rand.Rand
	made  int32               // messages so far
	count int64               // records so far
	again map[int64][]payment // repeats, by the count of records at which they are due

	mu       sync.Mutex // guards what follows
	messages int64
	repeats  int64
	sums     [accounts]int64
	// logs hold the message at each offset: the topic is new, and nobody else
	// writes to it.
	logs [partitions][]int32
}

func newStream(cfg *Config) *stream {
	return &stream{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), again: map[int64][]payment{}}
}

// send sends messages at the wanted rate, and their repeats, until the stream ends.
func (s *stream) send(ctx context.Context, to *kafka.Sender) error {
	const beat, most = 50 * time.Millisecond, 5000
	tick := time.NewTicker(beat)
	defer tick.Stop()
	last := int32(mostMessages)
	if s.cfg.Messages > 0 {
		last = int32(s.cfg.Messages)
	}
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		since := time.Since(began)
		due := int32(min(since.Seconds()*float64(s.cfg.Rate), float64(last), float64(s.made+most)))
		var ps []payment
		for s.made < due {
			ps = append(ps, s.next())
		}
		over := s.made == last || s.cfg.For > 0 && since >= s.cfg.For
		if over {
			for _, at := range slices.Sorted(maps.Keys(s.again)) {
				ps = append(ps, s.again[at]...)
			}
		}
		if err := s.hand(ctx, to, ps); err != nil || over {
			return err
		}
	}
}

// next is the record to be sent now: a repeat that is due, or a new message.
func (s *stream) next() payment {
	due := s.again[s.count]
	delete(s.again, s.count)
	s.count++
	if len(due) > 0 {
		if len(due) > 1 {
			s.again[s.count] = append(due[1:], s.again[s.count]...)
		}
		return due[0]
	}
	p := payment{Number: s.made, Account: s.rng.Int32N(accounts), Amount: 1 + s.rng.Int64N(1000)}
	s.made++
	if s.rng.Float64() < s.cfg.Repeats {
		at := s.count + s.delay()
		s.again[at] = append(s.again[at], p)
	}
	return p
}

// delay of a repeat, in records: the very next, soon after, or seconds later.
func (s *stream) delay() int64 {
	switch s.rng.IntN(3) {
	case 0:
		return 0
	case 1:
		return s.rng.Int64N(batch)
	}
	return s.rng.Int64N(3 * int64(s.cfg.Rate))
}

// hand sends records and waits until they are durable. What is about to be sent is
// noted first: a consumer may be faster than the answer.
func (s *stream) hand(ctx context.Context, to *kafka.Sender, ps []payment) error {
	ms := make([]semel.Message, len(ps))
	s.mu.Lock()
	for i, p := range ps {
		value, err := json.Marshal(p)
		if err != nil {
			panic(err)
		}
		partition := p.Account % partitions
		ms[i] = semel.Message{
			Topic: topic, Partition: partition, Key: fmt.Append(nil, p.Account), Value: value,
			Headers: []semel.Header{{Name: "message-id", Value: []byte(messageID(s.cfg.Seed, p.Number))}},
		}
		s.logs[partition] = append(s.logs[partition], p.Number)
		if int64(p.Number) < s.messages {
			s.repeats++
			continue
		}
		s.messages++
		s.sums[p.Account] += p.Amount
	}
	s.mu.Unlock()
	for _, err := range to.Send(ctx, ms) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// messageID is what the producer gives a message, once.
func messageID(seed uint64, number int32) string {
	return semel.IDOf(fmt.Append(nil, seed), fmt.Append(nil, number)).String()
}

// sent counts messages and repeats, and gives the end of each partition.
func (s *stream) sent() (messages, repeats int64, ends [partitions]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, log := range s.logs {
		ends[i] = int64(len(log))
	}
	return s.messages, s.repeats, ends
}

// numbers are the messages at the offsets from <= offset < to.
func (s *stream) numbers(partition int32, from, to int64) []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from >= to {
		return nil
	}
	return s.logs[partition][from:to] // only ever appended to
}
