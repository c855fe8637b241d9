package devenv_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/devenv"
)

func startBroker(t *testing.T, cfg devenv.BrokerConfig) *devenv.Broker {
	t.Helper()
	b, err := devenv.StartBroker(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func client(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addr))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func createTopic(t *testing.T, addr, topic string) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, addr)).CreateTopic(t.Context(), 1, -1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, addr, topic string, n int) {
	t.Helper()
	var rs []*kgo.Record
	for i := range n {
		rs = append(rs, &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)})
	}
	if err := client(t, addr).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func wantRecords(t *testing.T, addr, topic string, n int) {
	t.Helper()
	cl := client(t, addr, kgo.ConsumeTopics(topic))
	for got := 0; got < n; {
		fs := cl.PollFetches(t.Context())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		got += fs.NumRecords()
	}
}

func TestBrokerKeepsItsLog(t *testing.T) {
	t.Parallel()
	cfg := devenv.BrokerConfig{Dir: t.TempDir() + "/with a space", Topics: map[string]int32{"a": 3}}
	b := startBroker(t, cfg)
	produce(t, b.Addr(), "a", 100)
	id := b.Cluster().TopicInfo("a").TopicID
	b.Close()
	cfg.Topics["new"] = 1
	b = startBroker(t, cfg)
	wantRecords(t, b.Addr(), "a", 100)
	if got := b.Cluster().TopicInfo("a").TopicID; got != id {
		t.Errorf("another topic ID: %x, was %x", got, id)
	}
	if b.Cluster().TopicInfo("new") == nil {
		t.Error("the new topic was not made")
	}
}

func TestBrokersFolderIsLocked(t *testing.T) {
	t.Parallel()
	cfg := devenv.BrokerConfig{Dir: t.TempDir()}
	b := startBroker(t, cfg)
	var inUse *devenv.InUseError
	if _, err := devenv.StartBroker(t.Context(), cfg); !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("%v", err)
	}
	b.Close()
	startBroker(t, cfg)
}

func TestBadFrameEndsOnlyItsConnection(t *testing.T) {
	t.Parallel()
	b := startBroker(t, devenv.BrokerConfig{Topics: map[string]int32{"a": 1}})
	for name, frame := range map[string]string{
		"unknown key": "\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",
		"huge":        "\x7f\xff\xff\xff\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff",
		"http":        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"new version": "\x00\x00\x00\x0a\x00\x03\x00\x7f\x00\x00\x00\x01\xff\xff",
	} {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, frame)
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if answer, err := io.ReadAll(c); len(answer) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: answered % x, %v", name, answer, err)
		}
		c.Close()
	}
	produce(t, b.Addr(), "a", 1)
}

func TestRetentionIsAppliedOnATicker(t *testing.T) {
	t.Parallel()
	b := startBroker(t, devenv.BrokerConfig{
		Topics:         map[string]int32{"a": 1},
		Configs:        map[string]string{"log.retention.ms": "1"},
		RetentionEvery: 5 * time.Millisecond,
	})
	produce(t, b.Addr(), "a", 10)
	for end := time.Now().Add(20 * time.Second); b.Cluster().PartitionInfo("a", 0).LogStartOffset == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was removed")
		}
	}
}

func TestBothServicesComeBack(t *testing.T) {
	t.Parallel()
	cfg := devenv.Config{Dir: t.TempDir()}
	for _, first := range []bool{true, false} {
		e, err := devenv.Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if first {
			if err := e.Broker().CreateTopic("a", 1); err != nil {
				t.Fatal(err)
			}
			produce(t, e.Brokers(), "a", 10)
			writeRows(t, e.DatabaseURL())
		}
		wantRecords(t, e.Brokers(), "a", 10)
		wantRows(t, e.DatabaseURL())
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneThatFailsStopsTheOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := startBroker(t, devenv.BrokerConfig{Dir: dir + "/kafka"})
	var inUse *devenv.InUseError
	if _, err := devenv.Start(t.Context(), devenv.Config{Dir: dir}); !errors.As(err, &inUse) {
		t.Fatalf("%v", err)
	}
	b.Close()
	startPostgres(t, devenv.PostgresConfig{Dir: dir + "/postgres"})
}
