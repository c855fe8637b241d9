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
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// AdminConfig says which cluster an [Admin] asks.
type AdminConfig struct {
	Brokers []string
	Options []kgo.Opt // TLS, SASL ([Security])
}

// Admin is what commands ask of a cluster and do to it. It is a member of nothing.
type Admin struct {
	cl  *kgo.Client
	adm *kadm.Client
}

// NewAdmin makes one; it connects when it is first used.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("kafka: no brokers")
	}
	cl, err := kgo.NewClient(append(slices.Clone(cfg.Options),
		kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID(clientID), kgo.RetryTimeout(6*time.Second),
		kgo.MetadataMinAge(adminPause))...) // who asks wants to know how it is now
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Admin{cl: cl, adm: kadm.NewClient(cl)}, nil
}

// adminPause is between questions about the same topics.
const adminPause = 20 * time.Millisecond

// Close frees the connections.
func (a *Admin) Close() { a.cl.Close() }

// Cluster is the cluster's ID.
func (a *Admin) Cluster(ctx context.Context) (string, error) {
	md, err := a.adm.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	return md.Cluster, nil
}

// ErrTopicExists is answered when a topic to be created is there.
var ErrTopicExists error = kerr.TopicAlreadyExists

// CreateTopic makes a topic with the cluster's replication factor, and answers when
// it can be used: a broker says that it is made before it knows of it.
func (a *Admin) CreateTopic(ctx context.Context, name string, partitions int32, configs map[string]string) error {
	cs := make(map[string]*string, len(configs))
	for k, v := range configs {
		cs[k] = &v
	}
	r, err := a.adm.CreateTopic(ctx, partitions, -1, cs, name)
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	within, cancel := context.WithTimeout(ctx, usableWithin)
	defer cancel()
	for !a.led(within, name, partitions) && pause(within, adminPause) == nil {
	}
	return ctx.Err()
}

// usableWithin is how long a new topic is waited for; whoever uses it waits on.
const usableWithin = 10 * time.Second

// led says whether all partitions of a topic have a leader.
func (a *Admin) led(ctx context.Context, topic string, partitions int32) bool {
	md, err := a.adm.ListTopics(ctx, topic)
	if err != nil || len(md[topic].Partitions) != int(partitions) {
		return false
	}
	for _, p := range md[topic].Partitions {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return true
}

// DeleteTopic deletes a topic and all that is in it.
func (a *Admin) DeleteTopic(ctx context.Context, name string) error {
	r, err := a.adm.DeleteTopic(ctx, name)
	if err == nil {
		err = r.Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return &inbox.UnknownTopicError{Topic: name}
	}
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// Topic is what the cluster says of a topic.
type Topic struct {
	Name       string
	ID         semel.TopicID
	Partitions int32
	Replicas   int // of the partition that has the fewest
	// Configs are the settings in force; nil if this client may not see them.
	Configs map[string]string
}

// TopicNames are all topics but the cluster's own, sorted.
func (a *Admin) TopicNames(ctx context.Context) ([]string, error) {
	md, err := a.adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	return md.Names(), nil
}

// Topics describes topics; none named: all but the cluster's own. One that doesn't
// exist is an [inbox.UnknownTopicError].
func (a *Admin) Topics(ctx context.Context, names ...string) ([]Topic, error) {
	md, err := a.adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	var ts []Topic
	var known []string
	for _, d := range md.Sorted() {
		if errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			return nil, &inbox.UnknownTopicError{Topic: d.Topic}
		}
		if d.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", d.Topic, d.Err)
		}
		ts = append(ts, Topic{Name: d.Topic, ID: semel.TopicID(d.ID), Partitions: int32(len(d.Partitions)), Replicas: replicas(d.Partitions)})
		known = append(known, d.Topic)
	}
	if len(known) == 0 {
		return ts, nil
	}
	configs, err := a.adm.DescribeTopicConfigs(ctx, known...)
	if err != nil {
		return ts, nil // they are a bonus
	}
	for i := range ts {
		c, err := configs.On(ts[i].Name, nil)
		if err != nil || c.Err != nil {
			continue
		}
		ts[i].Configs = make(map[string]string, len(c.Configs))
		for _, k := range c.Configs {
			ts[i].Configs[k.Key] = k.MaybeValue()
		}
	}
	return ts, nil
}

func replicas(ps kadm.PartitionDetails) int {
	least := -1
	for _, p := range ps {
		if n := len(p.Replicas); least < 0 || n < least {
			least = n
		}
	}
	return max(least, 0)
}

// Offset is what a group has committed of a partition, and the note beside it.
type Offset = inbox.Ack

// Offsets are those of the group, by partition; none of a group that isn't there.
func (a *Admin) Offsets(ctx context.Context, group string) ([]Offset, error) {
	offsets, err := coordinated(ctx, func() (kadm.OffsetResponses, error) { return offsetsOf(ctx, a.adm, group) })
	if err != nil {
		return nil, fmt.Errorf("offsets of group %s: %w", group, err)
	}
	var os []Offset
	for _, o := range offsets.Sorted() {
		if o.At >= 0 {
			os = append(os, Offset{Mark: inbox.Mark{Partition: semel.Partition{Topic: o.Topic, Number: o.Partition}, Next: o.At}, Note: o.Metadata})
		}
	}
	return os, nil
}

// ErrGroupInUse is answered when a group has members: only they may commit in it.
var ErrGroupInUse = errors.New("the group has members")

// Commit sets offsets of a group without members, with their notes.
func (a *Admin) Commit(ctx context.Context, group string, acks []inbox.Ack) error {
	os := make(kadm.Offsets)
	for _, k := range acks {
		os.Add(kadm.Offset{Topic: k.Topic, Partition: k.Partition.Number, At: k.Next, LeaderEpoch: -1, Metadata: k.Note})
	}
	_, err := coordinated(ctx, func() (kadm.OffsetResponses, error) {
		r, err := a.adm.CommitOffsets(ctx, group, os)
		if err == nil {
			err = r.Error()
		}
		return r, err
	})
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.RebalanceInProgress) {
		return ErrGroupInUse
	}
	if err != nil {
		return fmt.Errorf("commit in group %s: %w", group, err)
	}
	return nil
}

// Log is how far a partition reaches.
type Log struct {
	semel.Partition
	Start  int64 // the first offset still there
	End    int64 // the high watermark
	Stable int64 // the last stable offset
}

// Logs are those of all partitions of the topics.
func (a *Admin) Logs(ctx context.Context, topics ...string) ([]Log, error) {
	var ls []Log
	if _, err := a.Topics(ctx, topics...); err != nil || len(topics) == 0 {
		return nil, err
	}
	var of [3]kadm.ListedOffsets
	for i, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){
		a.adm.ListStartOffsets, a.adm.ListCommittedOffsets, a.adm.ListEndOffsets,
	} {
		offsets, err := list(ctx, topics...)
		if err == nil {
			err = offsets.Error()
		}
		if err != nil {
			return nil, fmt.Errorf("offsets of topics: %w", err)
		}
		of[i] = offsets
	}
	of[2].Each(func(end kadm.ListedOffset) {
		l := Log{Partition: semel.Partition{Topic: end.Topic, Number: end.Partition}, End: end.Offset}
		if o, ok := of[0].Lookup(end.Topic, end.Partition); ok {
			l.Start = o.Offset
		}
		if o, ok := of[1].Lookup(end.Topic, end.Partition); ok {
			l.Stable = o.Offset
		}
		ls = append(ls, l)
	})
	slices.SortFunc(ls, func(a, b Log) int { return a.Compare(b.Partition) })
	return ls, nil
}

// DeleteRecords deletes what lies below the marks.
func (a *Admin) DeleteRecords(ctx context.Context, below []inbox.Mark) error {
	os := make(kadm.Offsets)
	for _, m := range below {
		os.AddOffset(m.Topic, m.Number, m.Next, -1)
	}
	r, err := a.adm.DeleteRecords(ctx, os)
	if err == nil {
		err = r.Error()
	}
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	return nil
}

// Group is a consumer group: its state in the broker's words, and how many members
// it has.
type Group struct {
	State   string
	Members int
	// Foreign are the client IDs of members that aren't Semel's.
	Foreign []string
}

// Group describes a group; one that isn't there is Dead.
func (a *Admin) Group(ctx context.Context, group string) (Group, error) {
	var state string
	ms, err := coordinated(ctx, func() (ms []inbox.Member, err error) {
		state, ms, err = describe(ctx, a.adm, group)
		return ms, err
	})
	if err != nil {
		return Group{}, fmt.Errorf("group %s: %w", group, err)
	}
	var foreign []string
	for _, m := range ms {
		ours := m.Process == clientID || strings.HasPrefix(m.Process, clientID+"-") // see process
		if !ours && !slices.Contains(foreign, m.Process) {
			foreign = append(foreign, m.Process)
		}
	}
	return Group{State: state, Members: len(ms), Foreign: foreign}, nil
}

// coordinated asks again while there is no coordinator: a cluster makes the topic
// for groups when it is first asked for one.
func coordinated[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, usableWithin)
	defer cancel()
	for {
		answer, err := ask()
		if !errors.Is(err, kerr.CoordinatorNotAvailable) || pause(ctx, 10*adminPause) != nil {
			return answer, err
		}
	}
}
