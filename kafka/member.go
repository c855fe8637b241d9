package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// member is this process in the group. Its client only joins, beats and is told
// what it has; it fetches nothing, and has a say in no offset.
type member struct {
	s    *Source
	cl   *kgo.Client
	quit chan struct{} // we are leaving: nobody waits for Poll any more
	once sync.Once
	done chan struct{}

	replaced atomic.Bool // another process has this one's instance name
}

// newPartitions is within how long new partitions of a topic are found.
const newPartitions = 10 * time.Second

// join makes this process a member, if it isn't one.
func (s *Source) join(ctx context.Context) error {
	s.mu.Lock()
	joined, closed := s.member != nil, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case joined:
		return nil
	}
	if s.cfg.Matching == "" {
		if _, err := s.metadata(ctx, s.cfg.Topics...); err != nil {
			return err
		}
	}
	balancer := kgo.CooperativeStickyBalancer()
	if s.cfg.ServerSide {
		if err := s.serverSide(ctx); err != nil {
			return err
		}
		balancer = kgo.StickyBalancer() // the coordinator's uniform one
	}
	m := &member{s: s, quit: make(chan struct{}), done: make(chan struct{})}
	opts := append(slices.Clone(s.cfg.Options),
		kgo.SeedBrokers(s.cfg.Brokers...),
		kgo.ClientID(process()),
		kgo.ConsumerGroup(s.cfg.Group),
		kgo.Balancers(balancer),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(s.cfg.SessionTimeout),
		kgo.RebalanceTimeout(s.cfg.RebalanceTimeout),
		kgo.HeartbeatInterval(min(s.cfg.SessionTimeout/5, time.Second)),
		kgo.MetadataMaxAge(newPartitions),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.AdjustFetchOffsetsFn(func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return nil, nil // the client reads nothing, so it begins nowhere
		}),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { m.assigned(flat(ps)) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { m.revoked(flat(ps)) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { m.lost(flat(ps)) }),
	)
	if s.cfg.Matching != "" {
		opts = append(opts, kgo.ConsumeRegex(), kgo.ConsumeTopics(whole(s.cfg.Matching)))
	} else {
		opts = append(opts, kgo.ConsumeTopics(s.cfg.Topics...))
	}
	if s.cfg.Instance != "" {
		opts = append(opts, kgo.InstanceID(s.cfg.Instance))
	}
	if s.cfg.ServerSide {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	var err error
	if m.cl, err = kgo.NewClient(opts...); err != nil {
		return fmt.Errorf("join group %s: %w", s.cfg.Group, err)
	}
	m.cl.PauseFetchTopics(s.cfg.Topics...) // should an offset find its way in after all
	go m.errors()
	s.member = m
	if !s.running {
		s.running = true
		s.work.Go(s.lookout)
		s.work.Go(s.committer)
	}
	return nil
}

func flat(m map[string][]int32) []semel.Partition {
	var ps []semel.Partition
	for t, ns := range m {
		for _, n := range ns {
			ps = append(ps, semel.Partition{Topic: t, Number: n})
		}
	}
	slices.SortFunc(ps, semel.Partition.Compare)
	return ps
}

func (m *member) assigned(ps []semel.Partition) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.well("group")
	if m.s.cfg.Matching != "" {
		for _, p := range ps {
			m.cl.PauseFetchTopics(p.Topic)
		}
	}
	m.post(event{gained: ps})
}

// revoked waits until Poll has given the partitions up: the group gives them to
// nobody before this returns.
func (m *member) revoked(ps []semel.Partition) { m.give(event{lost: ps, clean: true}) }

// lost are partitions that may belong to others already. It waits for Poll as
// well: a process that is stuck, and was put out for it, doesn't join again before
// it comes back.
func (m *member) lost(ps []semel.Partition) {
	m.s.mu.Lock()
	for _, q := range ps {
		if p := m.s.parts[q]; p != nil {
			p.gone = true
			m.s.void(p)
		}
	}
	m.s.mu.Unlock()
	m.give(event{lost: ps})
}

func (m *member) give(e event) {
	if len(e.lost) == 0 {
		return
	}
	e.taken = make(chan struct{})
	m.s.mu.Lock()
	m.post(e)
	m.s.mu.Unlock()
	select {
	case <-e.taken:
	case <-m.quit:
	}
}

// post: mu is held.
func (m *member) post(e event) {
	select {
	case <-m.quit:
		return
	default:
	}
	if len(e.gained)+len(e.lost) == 0 {
		return
	}
	m.s.log.Info("assignment changed", "group", m.s.cfg.Group, "gained", len(e.gained), "lost", len(e.lost))
	m.s.events = append(m.s.events, e)
	m.s.rouse()
}

// errors hands what the client has to say to Poll: it polls no messages.
func (m *member) errors() {
	defer close(m.done)
	for {
		fs := m.cl.PollFetches(context.Background())
		if fs.IsClientClosed() {
			return
		}
		for _, e := range fs.Errors() {
			if outOfStep(e.Err) { // the client joins again by itself
				m.s.log.Warn("out of step with the group; joining again", "group", m.s.cfg.Group, "error", e.Err)
				continue
			}
			err := fmt.Errorf("group %s: %w", m.s.cfg.Group, e.Err)
			if errors.Is(e.Err, kerr.FencedInstanceID) { // for good: the client would ask for ever
				m.replaced.Store(true)
				err = &inbox.HaltError{
					Kind: "instance", Why: fmt.Sprintf("another process has joined group %s as %q and taken this one's place", m.s.cfg.Group, m.s.cfg.Instance),
					Hint: "give every process an instance_id of its own",
					Err:  err,
				}
			}
			m.s.mu.Lock()
			m.s.failed("group", err, !retriable(e.Err))
			m.s.mu.Unlock()
		}
	}
}

// outOfStep are answers of a coordinator that passes by joining again, or soon.
func outOfStep(err error) bool {
	return errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.IllegalGeneration) ||
		errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.MemberIDRequired) ||
		errors.Is(err, kerr.StaleMemberEpoch) || errors.Is(err, kerr.FencedMemberEpoch)
}

// retriable is also what has no Kafka error in it: a connection's.
func retriable(err error) bool {
	var ke *kerr.Error
	return !errors.As(err, &ke) || ke.Retriable
}

func (m *member) leave(ctx context.Context) error {
	var err error
	m.once.Do(func() {
		close(m.quit)
		id, _ := m.cl.GroupMetadata()
		err = m.cl.LeaveGroupContext(ctx)
		if i := m.s.cfg.Instance; i != "" && id != "" && !m.replaced.Load() { // the client leaves a static member's place to it
			err = errors.Join(err, m.s.evict(ctx, id, &i))
		}
		m.cl.Close()
		<-m.done
	})
	if err != nil {
		return fmt.Errorf("leave group %s: %w", m.s.cfg.Group, err)
	}
	return nil
}

// as is how this process signs requests to the coordinator.
func (s *Source) as() (id string, generation int32, instance *string) {
	s.mu.Lock()
	m := s.member
	s.mu.Unlock()
	if m == nil {
		return "", -1, nil
	}
	id, generation = m.cl.GroupMetadata()
	if s.cfg.Instance != "" {
		i := s.cfg.Instance
		instance = &i
	}
	return id, generation, instance
}

// Member is the member's ID as the group gave it, and its instance name if it is a
// static one.
func (s *Source) Member() (id, instance string) {
	id, generation, _ := s.as()
	if generation < 0 {
		id = ""
	}
	return id, s.cfg.Instance
}

// process is the client ID of members: whoever starts after this process on the
// same host can tell whether it is dead, also if it was killed before it claimed
// anything.
func process() string {
	if p := inbox.Self().Process(); p != "" {
		return p
	}
	return clientID
}

// Members names the processes of members that are semel's.
func (s *Source) Members(ctx context.Context) ([]inbox.Member, error) {
	_, ms, err := describe(ctx, s.adm, s.cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("members of group %s: %w", s.cfg.Group, err)
	}
	return ms, nil
}

// describe answers a group's state in the broker's words and its members, of
// whichever kind the group is; one that isn't there is Dead.
func describe(ctx context.Context, adm *kadm.Client, group string) (state string, ms []inbox.Member, err error) {
	gs, err := adm.DescribeGroups(ctx, group)
	if err == nil {
		err = gs.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return "", nil, err
	}
	for _, m := range gs[group].Members {
		ms = append(ms, inbox.Member{ID: m.MemberID, Process: m.ClientID})
	}
	if state = gs[group].State; err == nil && state != dead {
		return state, ms, nil
	}
	// To this question a group whose coordinator assigns isn't there.
	cs, err := adm.DescribeConsumerGroups(ctx, group)
	if c, ok := cs[group]; ok && err == nil && c.Err == nil {
		for _, m := range c.Members {
			ms = append(ms, inbox.Member{ID: m.MemberID, Process: m.ClientID})
		}
		return c.State, ms, nil
	}
	return dead, nil, nil
}

// dead is the state of a group that isn't there.
const dead = "Dead"

// Evict makes members leave; those that the group doesn't know are gone already.
func (s *Source) Evict(ctx context.Context, members []string) error {
	for _, id := range members {
		if err := s.evict(ctx, id, nil); err != nil {
			return fmt.Errorf("evict %s from group %s: %w", id, s.cfg.Group, err)
		}
	}
	return nil
}

func (s *Source) evict(ctx context.Context, id string, instance *string) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = s.cfg.Group
	req.MemberID = id // before version 3
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID, member.InstanceID = id, instance
	member.Reason = kmsg.StringPtr("known to be gone")
	req.Members = append(req.Members, member)
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return err
	}
	err = kerr.ErrorForCode(resp.ErrorCode)
	for _, m := range resp.Members {
		if err == nil {
			err = kerr.ErrorForCode(m.ErrorCode)
		}
	}
	switch {
	case errors.Is(err, kerr.UnknownMemberID) && s.cfg.ServerSide:
		return s.evictServerSide(ctx, id)
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID): // gone, or replaced
		return nil
	}
	return err
}

// serverSide says whether the broker has groups whose coordinator assigns. The
// client would take the other kind without a word.
func (s *Source) serverSide(ctx context.Context) error {
	vs, err := s.adm.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("versions: %w", err)
	}
	for _, v := range vs.Sorted() {
		if v.Err != nil { // one that is down
			continue
		}
		if _, highest, ok := v.KeyVersions(kmsg.ConsumerGroupHeartbeat.Int16()); !ok || highest < 1 {
			return &inbox.HaltError{
				Kind: "group-protocol", Why: fmt.Sprintf("broker %d has no groups of protocol consumer", v.NodeID),
				Hint: "Kafka 4 has; group_protocol: classic works everywhere",
			}
		}
	}
	return nil
}

// evictServerSide says goodbye in the name of a member.
func (s *Source) evictServerSide(ctx context.Context, id string) error {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = s.cfg.Group, id, -1
	resp, err := req.RequestWith(ctx, s.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	}
	return err
}

// Confirm sends a heartbeat, or, where the coordinator assigns, asks for offsets as
// a member: a heartbeat would take an answer away from the client. While the group
// is rebalancing this process is still a member.
func (s *Source) Confirm(ctx context.Context) error {
	for try := 0; ; try++ {
		id, generation, instance := s.as()
		if id == "" || generation < 0 {
			return fmt.Errorf("group %s: %w", s.cfg.Group, ErrNotMember)
		}
		err := s.beat(ctx, id, generation, instance)
		switch {
		case err == nil, errors.Is(err, kerr.RebalanceInProgress):
			return nil
		case (errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.StaleMemberEpoch)) && try < 20:
			// A rebalance is ending at this moment: its answer is on the way.
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		case outOfStep(err), errors.Is(err, kerr.FencedInstanceID):
			return fmt.Errorf("group %s: %w: %w", s.cfg.Group, ErrNotMember, err)
		default:
			return fmt.Errorf("group %s: confirm: %w", s.cfg.Group, err)
		}
	}
}

func (s *Source) beat(ctx context.Context, id string, generation int32, instance *string) error {
	if s.cfg.ServerSide {
		req := kmsg.NewPtrOffsetFetchRequest()
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group, g.MemberID, g.MemberEpoch = s.cfg.Group, &id, generation
		req.Groups = append(req.Groups, g)
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		for _, g := range resp.Groups {
			if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
				return err
			}
		}
		return nil
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation, req.InstanceID = s.cfg.Group, id, generation, instance
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
