package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// limit is how long anything in these tests may take.
const limit = 2 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// foreign is another client on the cluster.
func foreign(t testing.TB, brokers []string, opts ...kgo.Opt) (*kgo.Client, *kadm.Client) {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond))...)
	must(t, err)
	t.Cleanup(cl.Close)
	return cl, kadm.NewClient(cl)
}

// fill sends n records to each of the partitions, in batches of ten.
func fill(t testing.TB, brokers []string, topic string, n int, partitions ...int32) {
	t.Helper()
	cl, _ := foreign(t, brokers)
	defer cl.Close()
	for at := 0; at < n; at += 10 {
		var rs []*kgo.Record
		for i := at; i < min(at+10, n); i++ {
			for _, p := range partitions {
				rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Value: []byte(fmt.Sprintf("%d/%d", p, i))})
			}
		}
		must(t, cl.ProduceSync(within(t), rs...).FirstErr())
	}
}

func logger(t testing.TB) *slog.Logger {
	if os.Getenv("SEMEL_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("test", t.Name())
}

type option func(*kafka.SourceConfig)

func source(t testing.TB, brokers []string, group, topic string, opts ...option) *kafka.Source {
	t.Helper()
	cfg := kafka.SourceConfig{Brokers: brokers, Topics: []string{topic}, Group: group, SessionTimeout: 6 * time.Second, Logger: logger(t)}
	for _, o := range opts {
		o(&cfg)
	}
	s, err := kafka.NewSource(cfg)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// reader drives a source as the machine does, and checks what the seam promises.
type reader struct {
	t       testing.TB
	s       *kafka.Source
	next    map[semel.Partition]int64 // of assigned partitions
	place   map[semel.Partition]int64 // where to go on, also of others; from 0
	got     []semel.Message           // copies
	runs    []inbox.Run
	doubted []semel.Partition
	lost    []semel.Partition
	sign    func(p semel.Partition, next int64)
}

func read(t testing.TB, s *kafka.Source) *reader {
	return &reader{t: t, s: s, next: map[semel.Partition]int64{}, place: map[semel.Partition]int64{}}
}

// turn polls once and takes up what comes.
func (r *reader) turn(ctx context.Context, max int) inbox.Delivery {
	r.t.Helper()
	d, err := r.s.Poll(ctx, max)
	must(r.t, err)
	n := 0
	for _, p := range d.Lost {
		delete(r.next, p)
	}
	r.lost = append(r.lost, d.Lost...)
	r.doubted = append(r.doubted, d.Doubted...)
	for _, run := range d.Runs {
		at, ok := r.next[run.Partition]
		if !ok || run.From != at || run.To <= run.From {
			r.t.Fatalf("run of %s from %d to %d, reader at %d (%v)", run.Partition, run.From, run.To, at, ok)
		}
		n += len(run.Messages)
		for _, m := range run.Messages {
			if m.Offset < at || m.Offset >= run.To || m.Topic != run.Topic || m.Partition != run.Number {
				r.t.Fatalf("%s in a run of %s from %d to %d, after %d", m.Position(), run.Partition, run.From, run.To, at)
			}
			at = m.Offset + 1
			m.Key, m.Value, m.Headers = slices.Clone(m.Key), slices.Clone(m.Value), slices.Clone(m.Headers)
			r.got = append(r.got, m)
		}
		r.next[run.Partition], r.place[run.Partition] = run.To, run.To
		r.runs = append(r.runs, run)
		if r.sign != nil {
			r.sign(run.Partition, run.To)
		}
	}
	if n > max {
		r.t.Fatalf("%d messages instead of at most %d", n, max)
	}
	if len(d.Gained) > 0 {
		ctx := within(r.t)
		if _, err := r.s.Witness(ctx, []string{d.Gained[0].Topic}); err != nil {
			r.t.Fatal(err)
		}
		var to []inbox.Mark
		for _, p := range d.Gained {
			r.next[p] = r.place[p]
			to = append(to, inbox.Mark{Partition: p, Next: r.place[p]})
		}
		must(r.t, r.s.Seek(ctx, to))
	}
	return d
}

// until polls until the fact holds.
func (r *reader) until(what string, max int, fact func() bool) {
	r.t.Helper()
	ctx := within(r.t)
	for !fact() {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		r.turn(short, max)
		cancel()
		if ctx.Err() != nil {
			r.t.Fatalf("waited in vain until %s: at %v, %d messages, doubted %v, lost %v", what, r.next, len(r.got), r.doubted, r.lost)
		}
	}
}

func (r *reader) values() []string {
	var vs []string
	for _, m := range r.got {
		vs = append(vs, string(m.Value))
	}
	return vs
}

func part(topic string, n int32) semel.Partition { return semel.Partition{Topic: topic, Number: n} }

func mark(topic string, n int32, next int64) []inbox.Mark {
	return []inbox.Mark{{Partition: part(topic, n), Next: next}}
}

func ack(topic string, n int32, next int64, note string) []inbox.Ack {
	return []inbox.Ack{{Mark: inbox.Mark{Partition: part(topic, n), Next: next}, Note: note}}
}

// committed asks as a foreign client; -1 none.
func committed(t testing.TB, adm *kadm.Client, group, topic string, n int32) (int64, string) {
	t.Helper()
	os, err := adm.FetchOffsets(within(t), group)
	must(t, err)
	if o, ok := os.Lookup(topic, n); ok {
		return o.At, o.Metadata
	}
	return -1, ""
}

func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	for ctx := within(t); !fact(); time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func wantValues(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, " "), strings.Join(want, " "))
	}
}
