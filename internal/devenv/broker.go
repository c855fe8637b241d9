package devenv

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// BrokerConfig says which broker to start, and where.
type BrokerConfig struct {
	// Dir is the folder of log, groups and lock; what was acknowledged is there again at the next start, also after
	// SIGKILL. Empty: everything is in memory.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Topics are made with so many partitions; those that exist stay as they are.
	Topics map[string]int32
	// Configs are Kafka's broker settings, as kfake knows them.
	Configs map[string]string
	// Versions are the highest of each request that it answers, as an older Kafka does. nil: all.
	Versions *kversion.Versions
	// RetentionEvery is how often retention is applied. Default: a minute.
	RetentionEvery time.Duration
}

// Broker is an embedded Kafka broker of one node, for development and tests.
type Broker struct {
	cluster *kfake.Cluster
	addr    *net.TCPAddr
	lock    *os.File // nil in memory

	close sync.Once
	stop  chan struct{}
	ended sync.WaitGroup
}

// StartBroker starts a broker that listens on the loopback alone. The errors that a caller may want to tell apart
// are [InUseError] and [PortTakenError].
func StartBroker(ctx context.Context, cfg BrokerConfig) (_ *Broker, err error) {
	b := &Broker{stop: make(chan struct{})}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	configs := map[string]string{"group.consumer.heartbeat.interval.ms": "500"}
	maps.Copy(configs, cfg.Configs)
	opts := []kfake.Opt{
		// One node: kfake answers wrongly about epochs after a leader has moved.
		kfake.Ports(cfg.Port),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
			if errors.Is(err, syscall.EADDRINUSE) {
				return nil, &PortTakenError{Service: "Kafka", Port: cfg.Port}
			}
			if err != nil {
				return nil, err
			}
			b.addr = l.Addr().(*net.TCPAddr)
			return guard{l}, nil
		}),
		kfake.ClusterID(newClusterID()), // a folder keeps its first
		kfake.GroupMinSessionTimeout(500 * time.Millisecond),
		kfake.BrokerConfigs(configs),
	}
	if cfg.Versions != nil {
		opts = append(opts, kfake.MaxVersions(cfg.Versions))
	}
	if cfg.Dir != "" {
		dir, err := makeDir(cfg.Dir)
		if err != nil {
			return nil, err
		}
		if b.lock, err = lockDir(dir); err != nil { // kfake has none of its own
			return nil, err
		}
		opts = append(opts, kfake.DataDir(filepath.Join(dir, "data")))
	}
	if b.cluster, err = kfake.NewCluster(opts...); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	for _, topic := range slices.Sorted(maps.Keys(cfg.Topics)) {
		if err := b.CreateTopic(topic, cfg.Topics[topic]); err != nil {
			return nil, err
		}
	}
	every := cfg.RetentionEvery
	if every == 0 {
		every = time.Minute
	}
	b.ended.Go(func() { b.applyRetention(every) })
	return b, nil
}

// newClusterID makes one as Kafka's tools do: two brokers with the same would be taken for one log.
func newClusterID() string {
	var id [16]byte
	rand.Read(id[:])
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// applyRetention does what kfake by itself does once an hour, and only if a topic's own settings ask for it.
func (b *Broker) applyRetention(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-t.C:
			b.cluster.ApplyRetention()
		}
	}
}

// CreateTopic makes a topic; one that exists stays as it is.
func (b *Broker) CreateTopic(topic string, partitions int32) error {
	err := b.cluster.CreateTopic(topic, partitions, nil)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return nil
}

// Addr is what a client is to be given: host and port.
func (b *Broker) Addr() string { return b.addr.String() }

// Port is where it listens, on 127.0.0.1.
func (b *Broker) Port() int { return b.addr.Port }

// Cluster is the broker itself, for tests that make it fail.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

// Close stops the broker and writes down what it holds. Closing twice is no error.
func (b *Broker) Close() {
	b.close.Do(func() {
		close(b.stop)
		b.ended.Wait()
		if b.cluster != nil {
			b.cluster.Close()
		}
		unlock(b.lock)
	})
}
