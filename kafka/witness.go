package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// Witness asks metadata first, then logs, group and configuration at once.
func (s *Source) Witness(ctx context.Context, topics []string) ([]inbox.Witness, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var ws []inbox.Witness
	var err error
	for try := range 10 { // leaders move
		if try > 0 {
			if pause(ctx, 200*time.Millisecond) != nil {
				break
			}
		}
		if ws, err = s.witness(ctx, topics); err == nil || !kerr.IsRetriable(err) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			break
		}
	}
	var unknown *inbox.UnknownTopicError
	if err != nil && !errors.As(err, &unknown) {
		err = fmt.Errorf("witness: %w", err)
	}
	return ws, err
}

func (s *Source) witness(ctx context.Context, topics []string) ([]inbox.Witness, error) {
	md, err := s.metadata(ctx, topics...)
	if err != nil {
		return nil, err
	}
	var (
		start, end, stable, after kadm.ListedOffsets
		acked                     kadm.OffsetResponses
		retention                 map[string]time.Duration
	)
	g, ctx := errgroup.WithContext(ctx)
	list := func(to *kadm.ListedOffsets, f func(context.Context, ...string) (kadm.ListedOffsets, error)) {
		g.Go(func() error {
			offsets, err := f(ctx, topics...)
			if err == nil {
				err = offsets.Error()
			}
			*to = offsets
			return err
		})
	}
	list(&start, s.adm.ListStartOffsets)
	list(&end, s.adm.ListEndOffsets)
	list(&stable, s.adm.ListCommittedOffsets)
	if s.cfg.Start.rule == startAt {
		list(&after, func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
			return s.adm.ListOffsetsAfterMilli(ctx, s.cfg.Start.at.UnixMilli(), topics...)
		})
	}
	g.Go(func() (err error) {
		acked, err = offsetsOf(ctx, s.adm, s.cfg.Group)
		return err
	})
	g.Go(func() error {
		retention = retentions(ctx, s.adm, topics)
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var ws []inbox.Witness
	for _, t := range md.Topics.Sorted() {
		for _, p := range t.Partitions.Sorted() {
			for _, o := range []kadm.ListedOffsets{start, end, stable} {
				if at(o, p) < 0 { // added a moment ago, and not every broker knows
					return nil, fmt.Errorf("offsets of %s/%d: %w", t.Topic, p.Partition, kerr.LeaderNotAvailable)
				}
			}
			w := inbox.Witness{
				Partition:   semel.Partition{Topic: t.Topic, Number: p.Partition},
				TopicID:     semel.TopicID(t.ID),
				Start:       at(start, p),
				End:         at(end, p),
				Stable:      at(stable, p),
				Acked:       -1,
				FollowGroup: s.cfg.Start.rule == startGroup,
				Epoch:       p.LeaderEpoch,
				Retention:   retention[t.Topic],
			}
			// They were asked one beside the other; a log only grows, and its
			// start with it.
			w.Stable = max(w.Stable, w.Start)
			w.End = max(w.End, w.Stable)
			switch s.cfg.Start.rule {
			case startGroup, startEarliest:
				w.Begin = w.Start
			case startLatest:
				w.Begin = w.Stable
			case startAt:
				// Without a message that late the answer is the end, which may
				// lie behind what isn't stable yet.
				if w.Begin = at(after, p); w.Begin < 0 || w.Begin > w.Stable {
					w.Begin = w.Stable
				}
			}
			if o, ok := acked.Lookup(t.Topic, p.Partition); ok && o.At >= 0 {
				w.Acked, w.Note = o.At, o.Metadata
			}
			ws = append(ws, w)
		}
	}
	return ws, nil
}

// offsetsOf a group; none if it isn't there.
func offsetsOf(ctx context.Context, adm *kadm.Client, group string) (kadm.OffsetResponses, error) {
	offsets, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err == nil {
		err = offsets.Error()
	}
	return offsets, err
}

func at(offsets kadm.ListedOffsets, p kadm.PartitionDetail) int64 {
	if o, ok := offsets.Lookup(p.Topic, p.Partition); ok {
		return o.Offset
	}
	return -1
}

// retentions are left out where the broker doesn't say; compaction alone keeps
// without end.
func retentions(ctx context.Context, adm *kadm.Client, topics []string) map[string]time.Duration {
	configs, err := adm.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil
	}
	m := map[string]time.Duration{}
	for _, c := range configs {
		if c.Err != nil {
			continue
		}
		deletes := true
		for _, k := range c.Configs {
			switch k.Key {
			case "retention.ms":
				if ms, err := strconv.ParseInt(k.MaybeValue(), 10, 64); err == nil {
					m[c.Name] = millis(ms)
				}
			case "cleanup.policy":
				deletes = k.MaybeValue() == "" || strings.Contains(k.MaybeValue(), "delete")
			}
		}
		if !deletes {
			m[c.Name] = -1
		}
	}
	return m
}

func millis(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	if ms < 0 || ms > most {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// EpochEnd looks up the leader, and asks it under the epoch that it has: one that
// isn't the leader any more refuses.
func (s *Source) EpochEnd(ctx context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	for try := 0; ; try++ {
		e, err := s.epochEnd(ctx, p, epoch)
		var ke *kerr.Error
		passes := errors.As(err, &ke) && (ke.Retriable || moved(ke))
		if err == nil || !passes || try == 20 || pause(ctx, 100*time.Millisecond) != nil {
			if err != nil {
				err = fmt.Errorf("end of epoch %d of %s: %w", epoch, p, err)
			}
			return e, err
		}
	}
}

func (s *Source) epochEnd(ctx context.Context, p semel.Partition, epoch int32) (inbox.EpochEnd, error) {
	none := inbox.EpochEnd{Number: -1, End: -1}
	md, err := s.metadata(ctx, p.Topic)
	if err != nil {
		return none, err
	}
	d, ok := md.Topics[p.Topic].Partitions[p.Number]
	switch {
	case !ok:
		return none, kerr.UnknownTopicOrPartition
	case d.Leader < 0:
		return none, kerr.LeaderNotAvailable
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1 // a consumer
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic = p.Topic
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = p.Number, d.LeaderEpoch, epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := s.cl.Broker(int(d.Leader)).Request(ctx, req)
	if err != nil {
		return none, err
	}
	for _, t := range kresp.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		if len(t.Partitions) == 0 {
			continue
		}
		a := t.Partitions[0] // one was asked for
		if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
			return none, err
		}
		return inbox.EpochEnd{Number: a.LeaderEpoch, End: a.EndOffset}, nil
	}
	return none, errors.New("the leader gave no answer")
}
