package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// Ack keeps the newest ack of each partition for the next commit; one commit is
// under way at a time.
func (s *Source) Ack(acks []inbox.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range acks {
		p := s.parts[a.Partition]
		if p == nil || p.gone || p.acking && a.Next < p.ack.Next || p.known && a.Next < p.committed {
			continue
		}
		p.ack, p.acking = a, true
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// committer commits what is acked until the source is closed.
func (s *Source) committer() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.kick:
		}
		for wait := 50 * time.Millisecond; s.ctx.Err() == nil && s.commitAcks(s.ctx) != nil; wait = min(2*wait, 2*time.Second) {
			if pause(s.ctx, wait) != nil {
				return
			}
		}
	}
}

// commitAcks commits all that is acked now. On an error the acks are kept: what
// the group takes away meanwhile is dropped with the partition.
func (s *Source) commitAcks(ctx context.Context) error {
	if err := s.turn(ctx); err != nil {
		return err
	}
	defer s.endTurn()
	if err := s.learn(ctx); err != nil {
		return s.unacked(err)
	}
	s.mu.Lock()
	var acks []inbox.Ack
	for _, p := range s.order {
		if p.acking && !p.gone {
			if p.ack.Next < p.committed {
				p.acking = false // never back
				continue
			}
			acks = append(acks, p.ack)
		}
	}
	s.mu.Unlock()
	if len(acks) == 0 {
		return nil
	}
	refused, err := s.commit(ctx, acks)
	if err != nil {
		return s.unacked(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range acks {
		p := s.parts[a.Partition]
		if p == nil {
			continue
		}
		e := refused[a.Partition]
		if e == nil {
			p.committed, p.known = a.Next, true
		} else if kept(e) {
			err = fmt.Errorf("%s: %w", a.Partition, e)
			continue
		} else {
			s.log.Warn("ack refused and dropped", "topic", p.Topic, "partition", p.Number, "next", a.Next, "error", e)
		}
		if p.ack == a {
			p.acking = false
		}
	}
	if err != nil {
		s.failed("acks", fmt.Errorf("ack: %w", err), !outOfStep(err) && !retriable(err))
		return err
	}
	s.well("acks")
	return nil
}

// kept are refusals that may pass.
func kept(err error) bool {
	return outOfStep(err) || errors.Is(err, kerr.FencedInstanceID) || kerr.IsRetriable(err) ||
		errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

func (s *Source) unacked(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed("acks", fmt.Errorf("ack: %w", err), false)
	return err
}

// turn waits until no commit is under way, and begins one.
func (s *Source) turn(ctx context.Context) error {
	select {
	case s.commits <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Source) endTurn() { <-s.commits }

// learn asks for the committed offsets that must not be gone below.
func (s *Source) learn(ctx context.Context) error {
	ask := false
	s.mu.Lock()
	for _, p := range s.order {
		ask = ask || p.acking && !p.known
	}
	s.mu.Unlock()
	if !ask {
		return nil
	}
	offsets, err := offsetsOf(ctx, s.adm, s.cfg.Group)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.order {
		if p.known {
			continue
		}
		if o, ok := offsets.Lookup(p.Topic, p.Number); ok {
			p.committed = o.At
		}
		p.known = true
	}
	return nil
}

// flush commits what is acked of the partitions, for as long as it takes within
// the time that the group grants; then they are given up all the same.
func (s *Source) flush(ctx context.Context, ps []semel.Partition) error {
	ctx, cancel := context.WithTimeout(ctx, min(s.cfg.RebalanceTimeout/3, 5*time.Second))
	defer cancel()
	for {
		if !s.unsettled(ps) {
			return nil
		}
		err := s.commitAcks(ctx)
		if err == nil {
			continue
		}
		if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.FencedInstanceID) || pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("last acks: %w", err)
		}
	}
}

func (s *Source) unsettled(ps []semel.Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range ps {
		if p := s.parts[q]; p != nil && p.acking && !p.gone {
			return true
		}
	}
	return false
}

// Sign waits for the coordinator through rebalances, as long as ctx lasts and this
// process is a member. What was acked of these partitions before, and isn't at the
// broker yet, is dropped.
func (s *Source) Sign(ctx context.Context, acks []inbox.Ack) error {
	if len(acks) == 0 {
		return nil
	}
	if err := s.turn(ctx); err != nil {
		return err
	}
	defer s.endTurn()
	s.mu.Lock()
	for _, a := range acks {
		if p := s.parts[a.Partition]; p != nil {
			p.acking = false
		}
	}
	s.mu.Unlock()
	for {
		refused, err := s.commit(ctx, acks)
		for _, a := range acks {
			if e := refused[a.Partition]; e != nil && err == nil {
				err = fmt.Errorf("%s: %w", a.Partition, e)
			}
		}
		switch {
		case err == nil:
			s.signed(acks)
			return nil
		case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID):
			return fmt.Errorf("sign: %w: %w", ErrNotMember, err)
		case !outOfStep(err) && !retriable(err):
			return fmt.Errorf("sign: %w", err)
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("sign: %w", err)
		}
	}
}

func (s *Source) signed(acks []inbox.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range acks {
		if p := s.parts[a.Partition]; p != nil {
			p.committed, p.known = a.Next, true
		}
	}
}

// commit sends one commit, signed with member and generation, so that a
// coordinator that has moved on refuses it. It answers what was refused of it.
func (s *Source) commit(ctx context.Context, acks []inbox.Ack) (map[semel.Partition]error, error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = s.cfg.Group
	req.MemberID, req.Generation, req.InstanceID = s.as()
	ids, err := s.topicIDs(ctx, acks)
	if err != nil {
		return nil, err
	}
	// The topic's ID goes along: an ack of a topic that was made again meanwhile
	// is refused by brokers that know of IDs here.
	type topic struct {
		id   semel.TopicID
		name string
	}
	at := map[topic]int{}
	names := map[semel.TopicID]string{}
	for i, a := range acks {
		t := topic{ids[i], a.Topic}
		n, ok := at[t]
		if !ok {
			n = len(req.Topics)
			at[t] = n
			rt := kmsg.NewOffsetCommitRequestTopic()
			rt.Topic, rt.TopicID = t.name, t.id
			req.Topics = append(req.Topics, rt)
			names[t.id] = t.name
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset = a.Partition.Number, a.Next
		rp.Metadata = kmsg.StringPtr(a.Note)
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return nil, err
	}
	answered := map[semel.Partition]error{}
	said := 0
	for _, t := range resp.Topics {
		name := t.Topic
		if name == "" {
			name = names[t.TopicID]
		}
		for _, p := range t.Partitions {
			said++
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				answered[semel.Partition{Topic: name, Number: p.Partition}] = err
			}
		}
	}
	if said < len(acks) {
		return nil, fmt.Errorf("a commit of %d partitions was answered for %d", len(acks), said)
	}
	return answered, nil
}

// topicIDs are those that the acks are about: of the log that was read, if it was.
func (s *Source) topicIDs(ctx context.Context, acks []inbox.Ack) ([]semel.TopicID, error) {
	for try := 0; ; try++ {
		ids := make([]semel.TopicID, len(acks))
		missing := ""
		s.mu.Lock()
		for i, a := range acks {
			id, ok := s.ids[a.Topic]
			if p := s.parts[a.Partition]; p != nil && p.pin != nil {
				id, ok = p.pin.topic, true
			}
			if ids[i] = id; !ok {
				missing = a.Topic
			}
		}
		s.mu.Unlock()
		if missing == "" || try > 0 {
			return ids, nil
		}
		if _, err := s.metadata(ctx, missing); err != nil {
			return nil, err
		}
	}
}
