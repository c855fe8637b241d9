package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// How long a broker may wait for messages before it answers a fetch. A partition
// that is sought meanwhile waits for as long.
const fetchWait = 250 * time.Millisecond

// serve sees to it that somebody fetches from the node. mu is held.
func (s *Source) serve(node int32) {
	if node < 0 || s.nodes[node] || s.closed {
		return
	}
	s.nodes[node] = true
	s.work.Go(func() { s.fetchFrom(node) })
}

// fetchFrom fetches, one request at a time, all that is read from a node, until
// nothing is.
func (s *Source) fetchFrom(node int32) {
	about, ns := aboutNode(node), names{}
	for turn := 0; ; turn++ {
		req, asked := s.ask(node, turn)
		if req == nil {
			return
		}
		kresp, err := s.cl.Broker(int(node)).Request(s.ctx, req)
		if err == nil {
			resp := kresp.(*kmsg.FetchResponse)
			if err = kerr.ErrorForCode(resp.ErrorCode); err == nil {
				s.answered(asked, resp, ns)
			}
		}
		s.mu.Lock()
		if err == nil {
			s.well(about)
		} else {
			s.failed(about, fmt.Errorf("fetch from %s: %w", about, err), false)
			for _, a := range asked { // its leader may be another one by now
				if a.seek == a.part.seek {
					a.part.leader = -1
				}
			}
			s.find()
		}
		s.mu.Unlock()
	}
}

func aboutNode(node int32) string { return fmt.Sprintf("node %d", node) }

// asked is what a fetch asked of a partition.
type asked struct {
	part *part
	pin  pin
	seek uint64
	from int64
}

// ask waits until there is something to fetch from the node, and room for it. nil
// means that nothing is read from it any more.
func (s *Source) ask(node int32, turn int) (kmsg.Request, []asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []*part
	var leaders map[int32]bool
	for {
		mine, leaders = mine[:0], map[int32]bool{}
		for _, p := range s.order {
			if p.reading && !p.gone && p.leader >= 0 {
				leaders[p.leader] = true
				if p.leader == node {
					mine = append(mine, p)
				}
			}
		}
		if s.closed || s.ctx.Err() != nil || len(mine) == 0 {
			delete(s.nodes, node)
			return nil, nil
		}
		if s.open && s.held < s.cfg.MaxBytes/4 {
			break
		}
		s.cond.Wait()
	}
	size := s.cfg.MaxBytes / 4 / len(leaders)
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(fetchWait / time.Millisecond)
	req.MinBytes = 1
	req.MaxBytes = int32(size)
	req.IsolationLevel = 1 // read_committed
	req.SessionEpoch = -1  // no fetch session
	named := false
	what := make([]asked, 0, len(mine))
	topics := map[semel.TopicID]map[string]int{}
	for i := range mine {
		p := mine[(i+turn)%len(mine)] // the one that is first gets its batch whatever its size
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition = p.Number
		rp.CurrentLeaderEpoch = p.pin.epoch
		rp.FetchOffset = p.next
		rp.PartitionMaxBytes = int32(max(size/len(mine), 16<<10))
		byName := topics[p.pin.topic]
		if byName == nil {
			byName = map[string]int{}
			topics[p.pin.topic] = byName
		}
		at, ok := byName[p.Topic]
		if !ok {
			at = len(req.Topics)
			byName[p.Topic] = at
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = p.Topic, p.pin.topic
			req.Topics = append(req.Topics, rt)
		}
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, rp)
		named = named || p.pin.topic == semel.TopicID{}
		what = append(what, asked{part: p, pin: *p.pin, seek: p.seek, from: p.next})
	}
	if named {
		return byName{req}, what
	}
	return req, what
}

// byName is a fetch that names topics, for brokers without topic IDs.
type byName struct{ *kmsg.FetchRequest }

func (byName) MaxVersion() int16 { return 12 }

// answered sorts a fetch's answer into the partitions that still wait for it.
func (s *Source) answered(what []asked, resp *kmsg.FetchResponse, ns names) {
	type key struct {
		topic semel.TopicID
		name  string
		n     int32
	}
	ids := resp.Version >= 13
	of := make(map[key]asked, len(what))
	for _, a := range what {
		if ids {
			of[key{topic: a.pin.topic, n: a.part.Number}] = a
		} else {
			of[key{name: a.part.Topic, n: a.part.Number}] = a
		}
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			rp := &t.Partitions[j]
			k := key{name: t.Topic, n: rp.Partition}
			if ids {
				k = key{topic: t.TopicID, n: rp.Partition}
			}
			if a, ok := of[k]; ok {
				s.arrived(a, rp, ns)
			}
		}
	}
}

// arrived takes in what came for one partition.
func (s *Source) arrived(a asked, rp *kmsg.FetchResponseTopicPartition, ns names) {
	var batches []batch
	var next int64
	err := kerr.ErrorForCode(rp.ErrorCode)
	if err == nil {
		batches, next, err = scan(rp, a.from)
		s.readAhead(batches, a.part.Partition, a.from, ns)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := a.part
	if p.gone || p.seek != a.seek { // sought, held or lost meanwhile
		for i := range batches {
			batches[i].size = 0 // was never held
			s.unhold(&batches[i])
		}
		return
	}
	about := "partition " + p.Partition.String()
	for i := range batches {
		s.held += batches[i].size
	}
	if len(batches) > 0 {
		p.buf = append(p.buf, batches...)
		p.next = next
		s.rouse()
	}
	if rp.ErrorCode == 0 {
		p.stable = rp.LastStableOffset
		if p.stable < 0 {
			p.stable = rp.HighWatermark
		}
	}
	var ke *kerr.Error
	switch {
	case err == nil:
		s.well(about)
	case errors.Is(err, kerr.OffsetOutOfRange):
		s.doubt(p, "there is no such offset")
	case errors.As(err, &ke):
		// Another leader, epoch or topic, or none at all: the cluster's metadata
		// says which. What no metadata cures is for Poll.
		s.failed(about, fmt.Errorf("fetch %s: %w", p.Partition, err), !ke.Retriable && !moved(ke))
		p.leader = -1
		s.find()
	default:
		s.failed(about, fmt.Errorf("fetch %s: %w", p.Partition, err), true)
		p.leader = -1
		s.find()
	}
}

// moved are answers of a broker that knows the partition otherwise than we do.
func moved(err *kerr.Error) bool {
	switch err {
	case kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.NotLeaderForPartition, kerr.UnknownTopicID,
		kerr.InconsistentTopicID, kerr.UnknownTopicOrPartition:
		return true
	}
	return false
}

// readAhead decompresses and reads ahead of Poll as far as the bound allows: what
// it does is done while batches are written.
func (s *Source) readAhead(batches []batch, p semel.Partition, from int64, ns names) {
	for i := range batches {
		b := &batches[i]
		if b.skip {
			continue
		}
		if s.ahead.Load() >= int64(s.cfg.MaxBytes/4) {
			return
		}
		n, err := b.open(s.codec)
		if err != nil {
			return // Poll meets it again, when it is its turn
		}
		b.ahead = n
		b.parse(p, from, ns)
		s.ahead.Add(int64(b.ahead))
	}
}

// find asks for a look at the metadata soon.
func (s *Source) find() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// How often the metadata are looked at though nothing is wrong.
const lookEvery = 5 * time.Second

// lookout looks at the cluster's metadata when a leader is to be found, ever less
// often while it can't be, and every few seconds.
func (s *Source) lookout() {
	for wait := time.Duration(0); ; {
		select {
		case <-s.ctx.Done():
			return
		case <-s.look:
		case <-time.After(lookEvery):
		}
		if wait > 0 {
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		select { // asked for while we waited: this look answers it
		case <-s.look:
		default:
		}
		var md kadm.Metadata
		var err error
		if topics := s.read(); len(topics) > 0 { // none would ask for all
			md, err = s.adm.Metadata(s.ctx, topics...)
		}
		s.mu.Lock()
		if err != nil {
			s.failed("metadata", fmt.Errorf("metadata: %w", err), false)
			s.find()
		} else {
			s.well("metadata")
			s.observe(md)
		}
		missing := err != nil
		for _, p := range s.order {
			missing = missing || p.reading && p.leader < 0
		}
		// A leader that was found and lost at once is no reason to hurry.
		switch {
		case missing:
			wait = min(max(2*wait, 50*time.Millisecond), 2*time.Second)
			s.find()
		case len(s.trouble) > 0:
			wait = min(max(2*wait, 50*time.Millisecond), 2*time.Second)
		default:
			wait = 0
		}
		s.mu.Unlock()
	}
}

// read are the topics whose metadata counts.
func (s *Source) read() []string {
	if s.cfg.Matching == "" {
		return s.cfg.Topics
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var topics []string
	for p := range s.parts {
		topics = append(topics, p.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// observe compares metadata with what the partitions are pinned to. mu is held.
func (s *Source) observe(md kadm.Metadata) {
	for _, t := range md.Topics {
		about := "topic " + t.Topic
		switch {
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition) && s.cfg.Matching != "":
			s.well(about) // deleted: the group takes its partitions away
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
			s.failed(about, &inbox.UnknownTopicError{Topic: t.Topic}, true)
		case t.Err != nil:
			s.failed(about, fmt.Errorf("%s: %w", about, t.Err), !kerr.IsRetriable(t.Err))
		default:
			s.well(about)
			s.ids[t.Topic] = semel.TopicID(t.ID)
		}
	}
	for _, p := range s.order {
		t, ok := md.Topics[p.Topic]
		if !ok || t.Err != nil {
			continue
		}
		d, ok := t.Partitions[p.Number]
		if !ok || d.Leader < 0 || d.Err != nil {
			continue
		}
		is := pin{semel.TopicID(t.ID), d.LeaderEpoch}
		switch {
		case p.pin == nil:
			p.pin = &is
		case p.pin.topic != is.topic:
			s.doubt(p, "the topic is another one: "+is.topic.String())
			p.pin = &is
		case p.pin.epoch > is.epoch: // an old answer
			continue
		case p.pin.epoch < is.epoch:
			s.doubt(p, fmt.Sprintf("leader epoch %d", is.epoch))
			p.pin = &is
		}
		p.leader = d.Leader
		if p.reading {
			s.serve(p.leader)
		}
	}
	leading := map[string]bool{}
	for _, p := range s.order {
		leading[aboutNode(p.leader)] = true
	}
	for about := range s.trouble {
		if strings.HasPrefix(about, "node ") && !leading[about] {
			delete(s.trouble, about) // nothing is read from it any more
		}
	}
	s.cond.Broadcast()
}

// metadata of topics, observed.
func (s *Source) metadata(ctx context.Context, topics ...string) (kadm.Metadata, error) {
	md, err := s.adm.Metadata(ctx, topics...)
	if err != nil {
		return md, fmt.Errorf("metadata: %w", err)
	}
	s.mu.Lock()
	s.observe(md)
	s.mu.Unlock()
	for _, t := range topics {
		switch d, ok := md.Topics[t]; {
		case !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			return md, &inbox.UnknownTopicError{Topic: t}
		case d.Err != nil:
			return md, fmt.Errorf("metadata of topic %s: %w", t, d.Err)
		}
	}
	return md, nil
}
