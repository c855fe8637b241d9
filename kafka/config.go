package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Start says where a consumer without any memory begins. The zero value is
// [StartGroup].
type Start struct {
	rule startRule
	at   time.Time
}

type startRule uint8

const (
	startGroup startRule = iota
	startEarliest
	startLatest
	startAt
)

// StartGroup begins at the group's committed offset if there is one, else at the
// first message there is.
func StartGroup() Start { return Start{} }

// StartEarliest begins at the first message there is, whatever the group has
// committed.
func StartEarliest() Start { return Start{rule: startEarliest} }

// StartLatest begins with what comes after now: at the last stable offset.
func StartLatest() Start { return Start{rule: startLatest} }

// StartAt begins at the first message whose timestamp is t or later; where there
// is none, at the last stable offset.
func StartAt(t time.Time) Start { return Start{rule: startAt, at: t} }

// SourceConfig says what a [Source] reads, and as whom.
type SourceConfig struct {
	Brokers []string // host:port of some brokers; the others are found
	Topics  []string
	// Matching, instead of Topics, reads every topic whose whole name it matches:
	// those that are there, and those that appear later, within 10 s. The
	// cluster's own are left out. One that is deleted is given up.
	Matching string
	Group    string
	Start    Start

	// Instance makes the member a static one: a process that comes back under
	// the same name takes its place without a rebalance. Of two living processes
	// under one name the first is put out, and Poll answers an [inbox.HaltError]
	// there; with ServerSide the second waits until the first is gone.
	Instance string
	// ServerSide makes the group one whose coordinator assigns (KIP-848,
	// group.protocol=consumer to Kafka's own client). It wants Kafka 4; Poll says so
	// of a broker that has no such groups. A group of the other kind is taken over,
	// with its offsets, once it has no members. The session is as long as the broker
	// says then (group.consumer.session.timeout.ms, 45 s), not SessionTimeout.
	ServerSide bool
	// SessionTimeout is how long the group waits for a sign of life. Default
	// 10 s. Longer: the partitions of a killed process stand still for longer.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the group waits for this member to come back
	// to Poll when a partition is to move. Default 60 s. What lies between two
	// calls of Poll must be shorter, or the member is put out.
	RebalanceTimeout time.Duration

	// MaxBytes bounds what is fetched and held, decompressed data included, for
	// this source. A quarter each for: what is on its way from the brokers; what
	// has arrived and waits; what of it is decompressed and read ahead; what the last
	// Poll handed out. Beyond it: one record batch per partition, since a batch
	// comes whole and is decompressed whole (producers make them 1 MB at most,
	// unless they were told otherwise), and some 200 bytes for each message of a
	// delivery. Default 32 MiB.
	MaxBytes int

	// Options are for the client: TLS, SASL ([Security]), a dialer, hooks. What
	// the source itself sets wins.
	Options []kgo.Opt
	// Logger gets one line per change of state. Default: none.
	Logger *slog.Logger
}

func (c *SourceConfig) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("kafka: no brokers")
	case len(c.Topics) == 0 && c.Matching == "":
		return errors.New("kafka: no topics")
	case len(c.Topics) > 0 && c.Matching != "":
		return errors.New("kafka: both Topics and Matching")
	case slices.Contains(c.Topics, ""):
		return errors.New("kafka: a topic without a name")
	case c.Group == "":
		return errors.New("kafka: no group")
	case c.SessionTimeout < 0, c.RebalanceTimeout < 0:
		return errors.New("kafka: a negative time-out")
	case c.MaxBytes < 0:
		return fmt.Errorf("kafka: MaxBytes is %d", c.MaxBytes)
	case c.MaxBytes > 0 && c.MaxBytes < 64<<10:
		return fmt.Errorf("kafka: MaxBytes is %d, and less than 65536 can't hold a fetch", c.MaxBytes)
	}
	if c.Matching != "" {
		if _, err := regexp.Compile(whole(c.Matching)); err != nil {
			return fmt.Errorf("kafka: Matching: %w", err)
		}
	}
	c.Topics = slices.Clone(c.Topics)
	slices.Sort(c.Topics)
	c.Topics = slices.Compact(c.Topics)
	if c.SessionTimeout == 0 {
		c.SessionTimeout = 10 * time.Second
	}
	if c.RebalanceTimeout == 0 {
		c.RebalanceTimeout = time.Minute
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 32 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// whole anchors an expression.
func whole(expression string) string { return "^(?:" + expression + ")$" }

// MatchingName is how a source with Matching names its topics, where one list of
// names is kept: /expression/.
func MatchingName(expression string) string { return "/" + expression + "/" }

// ids of the client towards the broker, in its logs and quotas.
const clientID = "semel"
