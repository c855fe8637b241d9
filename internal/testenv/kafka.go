package testenv

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/devenv"
)

var sharedKafka shared[string]

// Kafka returns the addresses of the broker that the tests share, comma-separated: an embedded one, or what
// SEMEL_TEST_KAFKA names. Names of topics and groups are the test's business to keep apart: [Topic], [Unique].
func Kafka(t testing.TB) string {
	t.Helper()
	addrs, err := sharedKafka.get(func() (string, error) {
		if a := os.Getenv("SEMEL_TEST_KAFKA"); a != "" {
			return a, nil
		}
		ctx, cancel := timeout()
		defer cancel()
		b, err := devenv.StartBroker(ctx, devenv.BrokerConfig{})
		if err != nil {
			return "", err
		}
		onClose(b.Close)
		return b.Addr(), nil
	})
	if err != nil {
		t.Fatalf("no Kafka for the tests: %v", err)
	}
	return addrs
}

// RealKafka is whether [Kafka] is a real Apache Kafka.
func RealKafka() bool { return os.Getenv("SEMEL_TEST_KAFKA") != "" }

// Who may come in at [SecureKafka].
const (
	SecureUser     = "semel"
	SecurePassword = "secret"
)

// SecureKafka is where the real Apache Kafka of [Kafka] listens behind TLS and SASL, and the file of its authority.
func SecureKafka(t testing.TB) (brokers []string, ca string) {
	t.Helper()
	addrs, ca := os.Getenv("SEMEL_TEST_KAFKA_SECURE"), os.Getenv("SEMEL_TEST_KAFKA_CA")
	if addrs == "" || ca == "" {
		t.Fatal("SEMEL_TEST_KAFKA_SECURE and SEMEL_TEST_KAFKA_CA say nothing of a listener behind TLS and SASL; `make test-kafka` starts a broker that has one")
	}
	return strings.Split(addrs, ","), ca
}

// Brokers is [Kafka] as a list.
func Brokers(t testing.TB) []string {
	t.Helper()
	return strings.Split(Kafka(t), ",")
}

// Topic creates a topic on the broker of [Kafka] under a name of its own, and deletes it when the test ends.
func Topic(t testing.TB, partitions int32) string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(Brokers(t)...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	adm := kadm.NewClient(cl)
	ctx, cancel := timeout()
	defer cancel()
	name := Unique(t)
	if err := createTopic(ctx, adm, name, partitions); err != nil {
		cl.Close()
		if RealKafka() {
			t.Fatalf("no topic on SEMEL_TEST_KAFKA=%s; `make test-kafka` starts one and tests against it: %v", Kafka(t), err)
		}
		t.Fatalf("create topic %s: %v", name, err)
	}
	t.Cleanup(func() {
		defer cl.Close()
		ctx, cancel := timeout()
		defer cancel()
		adm.DeleteTopic(ctx, name) // best effort: the test may have deleted it, or killed the broker
	})
	return name
}

// createTopic returns when the topic can be used: a real broker says it is made before it knows its leaders.
func createTopic(ctx context.Context, adm *kadm.Client, name string, partitions int32) error {
	if _, err := adm.CreateTopic(ctx, partitions, -1, nil, name); err != nil {
		return err
	}
	for {
		topics, err := adm.ListTopics(ctx, name)
		if err != nil {
			return err
		}
		led := 0
		for _, p := range topics[name].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		if led == int(partitions) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Unique returns a name for a topic, group or consumer that no other test has.
func Unique(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '-'
	}, t.Name())
	return name[:min(len(name), 60)] + "-" + strings.ToLower(rand.Text()[:8])
}

// OwnBroker starts an embedded broker of the test's own, to break: on disk, so that it can be closed and started
// again with devenv.StartBroker on the folder and port of the returned configuration.
func OwnBroker(t testing.TB, topics map[string]int32) (*devenv.Broker, devenv.BrokerConfig) {
	t.Helper()
	cfg := devenv.BrokerConfig{Dir: t.TempDir(), Topics: topics}
	ctx, cancel := timeout()
	defer cancel()
	b, err := devenv.StartBroker(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	cfg.Port = b.Port()
	return b, cfg
}
