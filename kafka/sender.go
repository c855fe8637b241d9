package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// SenderConfig says where a [Sender] sends to.
type SenderConfig struct {
	Brokers []string
	// Manual takes Message.Partition as the partition to send to; -1 leaves it to
	// the key. Without it Partition is ignored.
	Manual bool
	// MaxBytes bounds what is handed over and not yet durable: Send waits.
	// Default 32 MiB.
	MaxBytes int
	// BatchBytes bounds a batch, and with it a message, before compression. More
	// than the topic's max.message.bytes is refused by the broker. Default 1,000,012,
	// a little less than topics take by default.
	BatchBytes int
	// Options are for the client: TLS, SASL ([Security]), compression, hooks.
	Options []kgo.Opt
	// Logger gets the client's warnings. Default: none.
	Logger *slog.Logger
}

// DefaultBatchBytes is the bound of a batch where none is given.
const DefaultBatchBytes = 1_000_012

// Sender sends messages until they are durable in the log: as an idempotent
// producer, acknowledged by all replicas in sync. Partitions are those that the
// Java client takes: murmur2 of the key, where an empty key is a key. It may be
// used by many goroutines.
type Sender struct{ cl *kgo.Client }

// NewSender makes a sender; it connects when it is first used.
func NewSender(cfg SenderConfig) (*Sender, error) {
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("kafka: no brokers")
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 32 << 20
	}
	if cfg.BatchBytes <= 0 {
		cfg.BatchBytes = DefaultBatchBytes
	}
	opts := append(slices.Clone(cfg.Options),
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(clientID),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxBufferedBytes(max(cfg.MaxBytes, cfg.BatchBytes)),
		kgo.ProducerBatchMaxBytes(int32(cfg.BatchBytes)),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.UnknownTopicRetries(3),
		// Whoever gives up waiting is told at once; whether the message is in the
		// log is unknown then, as it is after any lost answer.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.RecordPartitioner(partitioner{kgo.StickyKeyPartitioner(nil), cfg.Manual}),
	)
	if cfg.Logger != nil {
		opts = append(opts, kgo.WithLogger(clientLog{cfg.Logger}))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Sender{cl: cl}, nil
}

// Send sends messages, those of one partition in their order, and waits for all. The
// i-th error is nil where the i-th message is durable in the log; with an error it
// may be there or not, except that a refusal of the broker (a kerr.Error that isn't
// retriable) and an [inbox.UnknownTopicError] mean that it isn't. Key and value
// must not change until Send has answered. ID is not sent: put it into a header.
func (s *Sender) Send(ctx context.Context, ms []semel.Message) []error {
	errs := make([]error, len(ms))
	var sent sync.WaitGroup
	sent.Add(len(ms))
	for i := range ms {
		m := &ms[i]
		r := &kgo.Record{Topic: m.Topic, Partition: m.Partition, Key: m.Key, Value: m.Value, Timestamp: m.Timestamp}
		if len(m.Headers) > 0 {
			r.Headers = make([]kgo.RecordHeader, len(m.Headers))
			for j, h := range m.Headers {
				r.Headers[j] = kgo.RecordHeader{Key: h.Name, Value: h.Value}
			}
		}
		s.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if errors.Is(err, kerr.UnknownTopicOrPartition) {
				err = &inbox.UnknownTopicError{Topic: m.Topic}
			} else if err != nil {
				err = fmt.Errorf("send to %s: %w", m.Topic, err)
			}
			errs[i] = err
			sent.Done()
		})
	}
	sent.Wait()
	return errs
}

// Close waits for nothing: what Send hasn't answered yet fails.
func (s *Sender) Close() { s.cl.Close() }

// partitioner is the inner one, or the record's own choice.
type partitioner struct {
	kgo.Partitioner
	manual bool
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	inner := p.Partitioner.ForTopic(topic)
	if !p.manual {
		return inner
	}
	return &manual{inner}
}

type manual struct{ kgo.TopicPartitioner }

func (m *manual) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition >= 0 || m.TopicPartitioner.RequiresConsistency(r)
}

func (m *manual) Partition(r *kgo.Record, n int) int {
	if r.Partition >= 0 {
		return int(r.Partition)
	}
	return m.TopicPartitioner.Partition(r, n)
}

func (m *manual) OnNewBatch() {
	if b, ok := m.TopicPartitioner.(kgo.TopicPartitionerOnNewBatch); ok {
		b.OnNewBatch()
	}
}

// clientLog gives a client's warnings to slog.
type clientLog struct{ log *slog.Logger }

func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if level == kgo.LogLevelError || level == kgo.LogLevelWarn {
		l.log.Warn(msg, keyvals...)
	}
}
