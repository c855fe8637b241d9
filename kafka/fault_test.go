package kafka_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

// cluster is a broker of the test's own, to break.
func cluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second)}, opts...)...)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestAnotherLeaderEpochIsDoubted(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "t"))
	fill(t, c.ListenAddrs(), "t", 100, 0)
	s := source(t, c.ListenAddrs(), "g", "t")
	r := read(t, s)
	r.until("some is read", 5, func() bool { return len(r.got) >= 5 })
	must(t, c.MoveTopicPartition("t", 0, 1-c.LeaderFor("t", 0)))
	fill(t, c.ListenAddrs(), "t", 100, 0)
	r.until("the doubt is there", 0, func() bool { return len(r.doubted) == 1 })
	at := r.next[part("t", 0)]
	must(t, s.Seek(within(t), mark("t", 0, at)))
	r.runs = nil
	r.until("the rest is read", 50, func() bool { return len(r.got) == 200 })
	var epochs []int32
	for _, run := range r.runs {
		for _, e := range run.Epochs {
			epochs = append(epochs, e.Number)
			if len(epochs) == 1 && e.First != at || len(epochs) == 2 && e.First != 100 {
				t.Errorf("epoch %d begins at %d", e.Number, e.First)
			}
		}
	}
	if len(epochs) != 2 || epochs[0] >= epochs[1] {
		t.Errorf("epochs %v", epochs)
	}
	e, err := s.EpochEnd(within(t), part("t", 0), epochs[0])
	must(t, err)
	if e.Number != epochs[0] || e.End != 100 {
		t.Errorf("the older epoch: %+v", e)
	}
}

// A broker whose metadata is old leaves out a partition that was just added: there
// is no witness of it then, and it has no place -1.
func TestAPartitionThatABrokerDoesNotKnowYetIsAskedForAgain(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "t"))
	fill(t, c.ListenAddrs(), "t", 5, 0)
	s := source(t, c.ListenAddrs(), "g", "t")
	c.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		resp.Version = req.GetVersion()
		return resp, nil, true
	})
	ws, err := s.Witness(within(t), []string{"t"})
	must(t, err)
	if len(ws) != 1 || ws[0].Start != 0 || ws[0].End != 5 || ws[0].Stable != 5 {
		t.Errorf("%+v", ws)
	}
}

func TestADoubtIsNotLostToASeek(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "t"))
	fill(t, c.ListenAddrs(), "t", 100, 0)
	s := source(t, c.ListenAddrs(), "g", "t")
	r := read(t, s)
	r.until("some is read", 5, func() bool { return len(r.got) >= 5 })
	must(t, c.MoveTopicPartition("t", 0, 1-c.LeaderFor("t", 0)))
	_, err := s.Witness(within(t), []string{"t"}) // sees the new epoch
	must(t, err)
	must(t, s.Seek(within(t), mark("t", 0, r.next[part("t", 0)])))
	d, err := s.Poll(within(t), 100)
	must(t, err)
	if len(d.Doubted) != 1 || len(d.Runs) > 0 {
		t.Errorf("a seek covered the doubt: %+v", d)
	}
}

func TestARefusedReaderIsToldWhy(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "t"))
	fill(t, c.ListenAddrs(), "t", 10, 0)
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	s := source(t, c.ListenAddrs(), "g", "t")
	ctx := within(t)
	var err error
	for err == nil {
		d, e := s.Poll(ctx, 10)
		for range d.Gained {
			must(t, s.Seek(ctx, mark("t", 0, 0)))
		}
		err = e
	}
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatal(err)
	}
	f.Remove()
	for ctx.Err() == nil {
		if d, err := s.Poll(ctx, 10); err == nil && len(d.Runs) == 1 {
			break
		}
	}
	must(t, ctx.Err())
}

func TestADamagedBatchIsFetchedAgain(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "t"))
	fill(t, c.ListenAddrs(), "t", 1000, 0)
	var f flipper
	s := source(t, c.ListenAddrs(), "g", "t", func(cfg *kafka.SourceConfig) {
		cfg.Options = []kgo.Opt{kgo.Dialer(f.dial)}
	})
	ctx := within(t)
	next := int64(0)
	for next < 1000 {
		d, _ := s.Poll(ctx, 100) // says so, unless it is over already
		for range d.Gained {
			must(t, s.Seek(ctx, mark("t", 0, 0)))
		}
		for _, run := range d.Runs {
			for _, m := range run.Messages {
				if m.Offset != next || string(m.Value) != fmt.Sprintf("0/%d", next) {
					t.Fatalf("%d says %q, after %d messages", m.Offset, m.Value, next)
				}
				next++
			}
		}
		must(t, ctx.Err())
	}
	if !f.done.Load() {
		t.Error("nothing was damaged")
	}
}

// flipper damages the first large answer that it sees.
type flipper struct{ done atomic.Bool }

func (f *flipper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &flipped{c, f}, err
}

type flipped struct {
	net.Conn
	f *flipper
}

func (c *flipped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 4000 && c.f.done.CompareAndSwap(false, true) {
		p[n-100] ^= 0x55
	}
	return n, err
}

func TestAnAckSurvivesRebalanceLostAnswersAndAMovedCoordinator(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "t"))
	s := source(t, c.ListenAddrs(), "g", "t")
	_, adm := foreign(t, c.ListenAddrs())
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	for i, e := range []*kerr.Error{kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.CoordinatorNotAvailable, kerr.NotCoordinator} {
		f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: e, Count: 2})
		want := int64(i + 1)
		s.Ack(ack("t", 0, want, "n"))
		eventually(t, "it is there after "+e.Message, func() bool { at, _ := committed(t, adm, "g", "t", 0); return at == want })
		f.Remove()
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: e, Count: 2})
		must(t, s.Sign(within(t), ack("t", 0, want-1, "s")))
		if at, _ := committed(t, adm, "g", "t", 0); at != want-1 {
			t.Errorf("signed %d, there is %d", want-1, at)
		}
	}
	c.RehashCoordinators()
	s.Ack(ack("t", 0, 9, "n"))
	eventually(t, "it is there", func() bool { at, _ := committed(t, adm, "g", "t", 0); return at == 9 })
}

func TestCompactionLeavesHolesAndTheEndIsReached(t *testing.T) { // G13
	t.Parallel()
	c := cluster(t)
	must(t, c.CreateTopic("t", 1, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1", "min.compaction.lag.ms": "0", "segment.bytes": "2000"}))
	cl, _ := foreign(t, c.ListenAddrs())
	// This broker lets its log start at the first record that is left: one stays.
	must(t, cl.ProduceSync(within(t), &kgo.Record{Topic: "t", Key: []byte("stays"), Value: []byte{49}}).FirstErr())
	for i := range 499 {
		must(t, cl.ProduceSync(within(t), &kgo.Record{Topic: "t", Key: []byte{byte(i % 10)}, Value: []byte{byte((i + 1) / 10)}}).FirstErr())
	}
	c.Compact()
	r := read(t, source(t, c.ListenAddrs(), "g", "t"))
	r.until("the end is reached", 100, func() bool { return r.next[part("t", 0)] == 500 })
	if len(r.got) >= 500 {
		t.Fatalf("%d messages: nothing was compacted", len(r.got))
	}
	last := map[byte]byte{}
	for _, m := range r.got {
		last[m.Key[0]] = m.Value[0]
	}
	for k, v := range last {
		if v != 49 {
			t.Errorf("key %d ends at %d", k, v)
		}
	}
}

func TestTLSAndSASL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stranger, server := certificates(t, dir)
	// guarded is a broker, a topic on it, and the authority behind its certificate.
	guarded := func(t *testing.T, mechanism string) (brokers []string, topic, ca string) {
		if testenv.RealKafka() {
			brokers, ca = testenv.SecureKafka(t)
			return brokers, testenv.Topic(t, 1), ca
		}
		c := cluster(t, kfake.EnableSASL(), kfake.Superuser(mechanism, testenv.SecureUser, testenv.SecurePassword), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{server}}), kfake.SeedTopics(1, "t"))
		return c.ListenAddrs(), "t", stranger
	}
	for _, mechanism := range kafka.Mechanisms {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			brokers, topic, ca := guarded(t, mechanism)
			secret := filepath.Join(t.TempDir(), "secret")
			must(t, os.WriteFile(secret, []byte("wrong\n"), 0o600))
			opts, err := kafka.Security(&kafka.TLS{CA: ca}, &kafka.SASL{Mechanism: mechanism, User: testenv.SecureUser, Password: kafka.PasswordFile(secret)})
			must(t, err)
			s, err := kafka.NewSource(kafka.SourceConfig{Brokers: brokers, Topics: []string{topic}, Group: topic, Options: opts})
			must(t, err)
			defer s.Close()
			if _, err := s.Poll(within(t), 1); err == nil { // the embedded broker just hangs up
				t.Error("a wrong password is no error")
			}
			must(t, os.WriteFile(secret, []byte(testenv.SecurePassword+"\n"), 0o600)) // read again
			a, err := kafka.NewAdmin(kafka.AdminConfig{Brokers: brokers, Options: opts})
			must(t, err)
			defer a.Close()
			_, err = a.Topics(within(t), topic)
			must(t, err)
			sender, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers, Options: opts})
			must(t, err)
			defer sender.Close()
			must(t, errors.Join(sender.Send(within(t), []semel.Message{{Topic: topic, Value: []byte("v")}})...))
			r := read(t, s)
			r.until("it is read", 1, func() bool { return len(r.got) == 1 })
			s.Ack(ack(topic, 0, 1, "n"))
			must(t, s.Leave(within(t)))

			other, _ := certificates(t, t.TempDir())
			opts, err = kafka.Security(&kafka.TLS{CA: other}, &kafka.SASL{Mechanism: mechanism, User: testenv.SecureUser, Password: kafka.PasswordFile(secret)})
			must(t, err)
			b, err := kafka.NewAdmin(kafka.AdminConfig{Brokers: brokers, Options: opts})
			must(t, err)
			defer b.Close()
			var unknown x509.UnknownAuthorityError
			if _, err := b.Topics(within(t), topic); !errors.As(err, &unknown) {
				t.Errorf("another authority than the broker's: %v", err)
			}
		})
	}
	if _, err := kafka.Security(&kafka.TLS{CA: filepath.Join(dir, "none")}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := kafka.Security(nil, &kafka.SASL{Mechanism: "GSSAPI", User: "u", Password: kafka.Password("p")}); err == nil {
		t.Error("an unknown mechanism is accepted")
	}
}

// certificates makes an authority's file and a server's certificate.
func certificates(t *testing.T, dir string) (caFile string, server tls.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	must(t, err)
	caFile = filepath.Join(dir, "ca.pem")
	must(t, os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return caFile, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestAnOutageIsToldAndEnds(t *testing.T) {
	t.Parallel()
	b, cfg := testenv.OwnBroker(t, map[string]int32{"t": 2})
	brokers := []string{b.Addr()}
	fill(t, brokers, "t", 50, 0, 1)
	s := source(t, brokers, "g", "t")
	r := read(t, s)
	r.until("all is read", 100, func() bool { return len(r.got) == 100 })
	b.Close()
	s.Ack(ack("t", 0, 50, "n"))
	ctx := within(t)
	for ctx.Err() == nil {
		if _, err := s.Poll(ctx, 10); err != nil {
			break
		}
	}
	must(t, ctx.Err())
	b, err := devenv.StartBroker(ctx, cfg)
	must(t, err)
	defer b.Close()
	fill(t, brokers, "t", 10, 0, 1)
	for ctx = within(t); len(r.got) < 120 && ctx.Err() == nil; {
		d, err := s.Poll(ctx, 10)
		if err != nil {
			continue
		}
		for _, p := range d.Lost {
			delete(r.next, p)
		}
		for _, p := range append(d.Gained, d.Doubted...) {
			r.next[p] = r.place[p]
			must(t, s.Seek(ctx, mark(p.Topic, p.Number, r.place[p])))
		}
		for _, run := range d.Runs {
			if run.From != r.next[run.Partition] {
				t.Fatalf("run of %s from %d, reader at %d", run.Partition, run.From, r.next[run.Partition])
			}
			r.next[run.Partition], r.place[run.Partition] = run.To, run.To
			r.got = append(r.got, run.Messages...)
		}
	}
	if len(r.got) != 120 {
		t.Errorf("%d messages", len(r.got))
	}
	_, adm := foreign(t, brokers)
	s.Ack(ack("t", 1, 60, "n"))
	eventually(t, "acks go on", func() bool { at, _ := committed(t, adm, "g", "t", 1); return at == 60 })
}
