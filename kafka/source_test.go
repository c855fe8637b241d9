package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

func TestRunsFollowOneAnotherAcrossPolls(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 3)
	fill(t, brokers, topic, 500, 0, 1, 2)
	r := read(t, source(t, brokers, topic, topic))
	r.until("all is read", 7, func() bool { return len(r.got) == 1500 })
	counts := map[int32]int{}
	for _, m := range r.got {
		if want := fmt.Sprintf("%d/%d", m.Partition, counts[m.Partition]); string(m.Value) != want {
			t.Fatalf("%q instead of %q", m.Value, want)
		}
		counts[m.Partition]++
	}
	last := r.runs[len(r.runs)-1]
	if last.TopicID == (semel.TopicID{}) || last.End != 500 {
		t.Errorf("last run: topic ID %s, end %d", last.TopicID, last.End)
	}
	var firsts int
	for _, run := range r.runs {
		firsts += len(run.Epochs)
	}
	if firsts != 3 {
		t.Errorf("%d epochs begin in three logs of one epoch each", firsts)
	}
}

func TestPartitionsShareADelivery(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	fill(t, brokers, topic, 2000, 0, 1)
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("the first comes", 1, func() bool { return len(r.got) == 1 })
	eventually(t, "both have something to hand out", func() bool { return kafka.Waiting(s) == 2 })
	r.got = nil
	r.until("more has come", 20, func() bool { return len(r.got) >= 200 })
	second := 0
	for _, m := range r.got {
		if m.Partition == 1 {
			second++
		}
	}
	if second < 50 || second > 150 {
		t.Errorf("%d of 200 messages are of one of two equal partitions", second)
	}
}

// Who gave goes last: a partition that always has more comes up once in each round, by Poll and by More.
func TestAHotPartitionStarvesNoQuietOne(t *testing.T) {
	t.Parallel()
	const partitions, most = 4, 10
	for _, hot := range []int32{0, partitions - 1} {
		for _, by := range []string{"Poll", "More"} {
			t.Run(fmt.Sprintf("%d by %s", hot, by), func(t *testing.T) {
				t.Parallel()
				brokers, topic := testenv.Brokers(t), testenv.Topic(t, partitions)
				fill(t, brokers, topic, most, 0, 1, 2, 3)
				fill(t, brokers, topic, 20*most, hot)
				s := source(t, brokers, topic, topic)
				r := read(t, s)
				r.until("they are assigned", 0, func() bool { return len(r.next) == partitions })
				r.until("the first comes", 1, func() bool { return len(r.got) == 1 })
				eventually(t, "all have something to hand out", func() bool { return kafka.Waiting(s) == partitions })
				served := map[int32]bool{}
				for range partitions + 1 { // the first has given one already
					var runs []inbox.Run
					if by == "More" {
						runs = s.More(most)
					} else {
						runs = r.turn(within(t), most).Runs
					}
					for _, run := range runs {
						served[run.Number] = true
					}
				}
				if len(served) != partitions {
					t.Errorf("a round served %v alone", served)
				}
			})
		}
	}
}

func TestKeysValuesAndHeadersArriveAsSent(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		s, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers, Options: []kgo.Opt{kgo.ProducerBatchCompression(codec)}})
		must(t, err)
		must(t, errors.Join(s.Send(within(t), []semel.Message{
			{Topic: topic, Key: nil, Value: nil, Timestamp: time.UnixMilli(1234567890123)},
			{Topic: topic, Key: []byte{}, Value: []byte{}, Headers: []semel.Header{{Name: "a", Value: nil}, {Name: "a", Value: []byte{}}, {Name: "", Value: []byte("x")}}},
			{Topic: topic, Key: []byte("k"), Value: []byte("v")},
		})...))
		s.Close()
	}
	r := read(t, source(t, brokers, topic, topic))
	r.until("all is read", 100, func() bool { return len(r.got) == 15 })
	for i := 0; i < 15; i += 3 {
		a, b, c := r.got[i], r.got[i+1], r.got[i+2]
		if a.Key != nil || !a.Tombstone() || a.Headers != nil || a.Timestamp.UnixMilli() != 1234567890123 {
			t.Errorf("nothing at all became %+v", a)
		}
		if b.Key == nil || len(b.Key) != 0 || b.Value == nil || len(b.Value) != 0 || len(b.Headers) != 3 ||
			b.Headers[0].Value != nil || b.Headers[1].Value == nil || b.Headers[2].Name != "" || string(b.Headers[2].Value) != "x" {
			t.Errorf("empty became %+v", b)
		}
		if string(c.Key) != "k" || string(c.Value) != "v" || time.Since(c.Timestamp) > time.Hour {
			t.Errorf("k, v became %+v", c)
		}
	}
}

func TestNothingIsFetchedBeforeASeek(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 10, 0)
	s := source(t, brokers, topic, topic)
	d, err := s.Poll(within(t), 100)
	must(t, err)
	if len(d.Gained) != 1 || len(d.Runs) != 0 {
		t.Fatalf("first delivery: %+v", d)
	}
	short, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	if d, err = s.Poll(short, 100); err != nil || len(d.Runs) != 0 {
		t.Fatalf("before a seek: %+v, %v", d, err)
	}
}

func TestSeekThrowsAwayWhatWasFetched(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 400, 0)
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("something is buffered", 5, func() bool { return len(r.got) >= 5 })
	for _, next := range []int64{0, 399, 17, 200, 17} {
		must(t, s.Seek(within(t), mark(topic, 0, next)))
		r.next[part(topic, 0)] = next
		r.got = nil
		r.until("it goes on", 5, func() bool { return len(r.got) > 0 }) // turn checks From
		if r.got[0].Offset != next {
			t.Fatalf("%d after a seek to %d", r.got[0].Offset, next)
		}
	}
}

func TestHoldLastsUntilASeek(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 100, 0)
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("something is buffered", 5, func() bool { return len(r.got) >= 5 })
	s.Hold([]semel.Partition{part(topic, 0)})
	short, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	if d, err := s.Poll(short, 5); err != nil || len(d.Runs) != 0 {
		t.Fatalf("while held: %+v, %v", d, err)
	}
	must(t, s.Seek(within(t), mark(topic, 0, r.next[part(topic, 0)])))
	r.until("all is read", 50, func() bool { return len(r.got) == 100 })
}

func TestPollOfNothingKeepsMessagesBack(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 100, 0)
	r := read(t, source(t, brokers, topic, topic))
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	for range 3 {
		short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		if d := r.turn(short, 0); len(d.Runs) != 0 {
			t.Fatalf("asked for nothing, got %+v", d)
		}
		cancel()
	}
	r.until("all is read", 30, func() bool { return len(r.got) == 100 })
}

func TestPollEndsWithItsContext(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	r := read(t, source(t, brokers, topic, topic))
	r.until("it is assigned", 10, func() bool { return len(r.next) == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	if d, err := r.s.Poll(ctx, 10); err != nil || len(d.Runs) != 0 { // it would wait for good
		t.Fatalf("%+v, %v", d, err)
	}
}

func TestMarkersAndAbortedTransactionsAreAdvancedOver(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	cl, _ := foreign(t, brokers, kgo.TransactionalID(topic))
	ctx := within(t)
	for i, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		must(t, cl.BeginTransaction())
		must(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint(i))}).FirstErr())
		must(t, cl.EndTransaction(ctx, commit))
	}
	r := read(t, source(t, brokers, topic, topic))
	r.until("the last marker is passed", 10, func() bool { return r.next[part(topic, 0)] == 10 })
	wantValues(t, r.values(), "0", "3")

	// An open transaction holds the stable offset, and what comes after it.
	must(t, cl.BeginTransaction())
	must(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
	fill(t, brokers, topic, 1, 0)
	short, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
	r.turn(short, 10)
	cancel()
	ws, err := r.s.Witness(ctx, []string{topic})
	must(t, err)
	if w := ws[0]; w.Stable != 10 || w.End != 12 || r.next[part(topic, 0)] != 10 {
		t.Errorf("stable %d, end %d, read to %d", w.Stable, w.End, r.next[part(topic, 0)])
	}
	must(t, cl.EndTransaction(ctx, kgo.TryCommit))
	r.until("all is read", 10, func() bool { return r.next[part(topic, 0)] == 13 })
	wantValues(t, r.values(), "0", "3", "open", "0/0")
}

func TestOffsetsThatAreGoneAreDoubted(t *testing.T) { // G7
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 100, 0)
	_, adm := foreign(t, brokers)
	below := make(kadm.Offsets)
	below.AddOffset(topic, 0, 40, -1)
	_, err := adm.DeleteRecords(within(t), below)
	must(t, err)
	r := read(t, source(t, brokers, topic, topic))
	r.place[part(topic, 0)] = 10
	r.until("the doubt is there", 10, func() bool { return len(r.doubted) > 0 })
	if len(r.got) > 0 {
		t.Fatalf("went on at %d by itself", r.got[0].Offset)
	}
	ws, err := r.s.Witness(within(t), []string{topic})
	must(t, err)
	if ws[0].Start != 40 || ws[0].Begin != 40 {
		t.Errorf("the log starts at %d, a reader at %d", ws[0].Start, ws[0].Begin)
	}
	r.next[part(topic, 0)] = 40
	must(t, r.s.Seek(within(t), mark(topic, 0, 40)))
	r.until("the rest is read", 10, func() bool { return len(r.got) == 60 })

	must(t, r.s.Seek(within(t), mark(topic, 0, 1000)))
	r.doubted = nil
	r.until("beyond the end is doubted", 10, func() bool { return len(r.doubted) > 0 })
}

func TestATopicMadeAgainWhileRunningIsDoubted(t *testing.T) { // G6
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
	fill(t, brokers, topic, 50, 0, 1)
	_, adm := foreign(t, brokers)
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("all is read", 100, func() bool { return len(r.got) == 100 })
	before := r.runs[0].TopicID
	ctx := within(t)
	_, err := adm.DeleteTopic(ctx, topic)
	must(t, err)
	eventually(t, "it can be made again", func() bool {
		_, err := adm.CreateTopic(ctx, 2, 1, nil, topic)
		return err == nil
	})
	fill(t, brokers, topic, 10, 0, 1)
	for len(r.doubted) < 2 && ctx.Err() == nil {
		if d, err := s.Poll(ctx, 100); err == nil { // the topic may be unknown for a moment
			if len(d.Runs) > 0 {
				t.Fatalf("%+v before the doubt", d.Runs)
			}
			r.doubted = append(r.doubted, d.Doubted...)
		}
	}
	ws, err := s.Witness(ctx, []string{topic})
	must(t, err)
	if ws[0].TopicID == before || ws[0].End != 10 {
		t.Fatalf("witness of the old topic: %+v", ws[0])
	}
	for n := range int32(2) {
		r.next[part(topic, n)] = 0
		must(t, s.Seek(ctx, mark(topic, n, 0)))
	}
	r.runs = nil
	r.until("the new one is read", 100, func() bool { return len(r.got) == 120 })
	if got := r.runs[0].TopicID; got != ws[0].TopicID {
		t.Errorf("run under %s, topic is %s", got, ws[0].TopicID)
	}
	s.Ack(ack(topic, 0, 10, "note"))
	eventually(t, "the ack is there", func() bool { at, _ := committed(t, adm, topic, topic, 0); return at == 10 })
}

func TestAnUnknownTopicIsNamed(t *testing.T) {
	t.Parallel()
	brokers := testenv.Brokers(t)
	s := source(t, brokers, testenv.Unique(t), testenv.Unique(t))
	_, err := s.Poll(within(t), 10)
	var unknown *inbox.UnknownTopicError
	if !errors.As(err, &unknown) || unknown.Topic != s.Topics()[0] {
		t.Errorf("Poll: %v", err)
	}
	if _, err = s.Witness(within(t), s.Topics()); !errors.As(err, &unknown) {
		t.Errorf("Witness: %v", err)
	}
}

func TestStartRules(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	cl, adm := foreign(t, brokers)
	ctx := within(t)
	first := time.Now().Add(-time.Hour) // not so old that the topic's retention removes it
	for i := range 10 {
		must(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Timestamp: first.Add(time.Duration(i) * time.Second), Value: []byte("x")}).FirstErr())
	}
	os := make(kadm.Offsets)
	os.Add(kadm.Offset{Topic: topic, At: 3, LeaderEpoch: -1, Metadata: "theirs"})
	must(t, adm.CommitAllOffsets(ctx, topic, os))
	for _, c := range []struct {
		name   string
		start  kafka.Start
		begin  int64
		follow bool
	}{
		{"group", kafka.StartGroup(), 0, true},
		{"earliest", kafka.StartEarliest(), 0, false},
		{"latest", kafka.StartLatest(), 10, false},
		{"at", kafka.StartAt(first.Add(4500 * time.Millisecond)), 5, false},
		{"after all", kafka.StartAt(time.Now()), 10, false},
	} {
		s := source(t, brokers, topic, topic, func(cfg *kafka.SourceConfig) { cfg.Start = c.start })
		ws, err := s.Witness(ctx, []string{topic})
		must(t, err)
		w := ws[0]
		if w.Begin != c.begin || w.FollowGroup != c.follow || w.Acked != 3 || w.Note != "theirs" ||
			w.Start != 0 || w.End != 10 || w.Stable != 10 || w.TopicID == (semel.TopicID{}) || w.Epoch < 0 {
			t.Errorf("%s: %+v", c.name, w)
		}
	}
}

func TestEpochEndOfTheLivingEpochIsTheLogsEnd(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	fill(t, brokers, topic, 10, 0)
	s := source(t, brokers, topic, topic)
	ws, err := s.Witness(within(t), []string{topic})
	must(t, err)
	e, err := s.EpochEnd(within(t), part(topic, 0), ws[0].Epoch)
	must(t, err)
	if e.Number != ws[0].Epoch || e.End != 10 {
		t.Errorf("%+v", e)
	}
}

func TestNewPartitionsAreFound(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	r := read(t, source(t, brokers, topic, topic))
	r.until("one is assigned", 10, func() bool { return len(r.next) == 1 })
	_, adm := foreign(t, brokers)
	_, err := adm.UpdatePartitions(within(t), 3, topic)
	must(t, err)
	r.until("three are assigned", 10, func() bool { return len(r.next) == 3 })
}

func TestMemoryStaysWithinItsBound(t *testing.T) { // G51
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 4)
	cl, _ := foreign(t, brokers, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	value := make([]byte, 10<<10) // compresses to nothing
	var rs []*kgo.Record
	for i := range 4000 {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: int32(i % 4), Value: value})
	}
	must(t, cl.ProduceSync(within(t), rs...).FirstErr())
	const bound = 16 << 20
	s := source(t, brokers, topic, topic, func(cfg *kafka.SourceConfig) { cfg.MaxBytes = bound })
	r := read(t, s)
	for ctx := within(t); r.sum() < 4000; {
		d := r.turn(ctx, 5000)
		var size int
		for _, run := range d.Runs {
			for _, m := range run.Messages {
				size += len(m.Value)
			}
		}
		if size > bound/4+20<<10 {
			t.Fatalf("a delivery of %d bytes", size)
		}
		// What is ahead may be beyond by one batch a partition.
		if ahead := kafka.Ahead(s); ahead > bound/4+4<<20 {
			t.Fatalf("%d bytes are decompressed ahead", ahead)
		}
	}
}

// One fetch may bring far more than there is room for once it is decompressed: that much is read ahead, and no more.
func TestReadingAheadStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	cl, _ := foreign(t, brokers, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	const n, size = 1500, 10 << 10
	var rs []*kgo.Record
	for range n {
		rs = append(rs, &kgo.Record{Topic: topic, Value: make([]byte, size)}) // compresses to nothing
	}
	must(t, cl.ProduceSync(within(t), rs...).FirstErr())
	const bound, batch = 8 << 20, 2 << 20 // the client's batches have a megabyte; what parsing adds is less than another
	s := source(t, brokers, topic, topic, func(cfg *kafka.SourceConfig) { cfg.MaxBytes = bound })
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	r.until("the first comes", 1, func() bool { return len(r.got) == 1 })
	eventually(t, "what there is room for is read ahead", func() bool { return kafka.Ahead(s) >= bound/4 })
	for ctx := within(t); r.sum() < n; {
		if ahead := kafka.Ahead(s); ahead > bound/4+batch {
			t.Fatalf("%d bytes are read ahead", ahead)
		}
		r.turn(ctx, 20)
	}
	if ahead := kafka.Ahead(s); ahead != 0 {
		t.Errorf("all is handed out, and %d bytes count as read ahead", ahead)
	}
}

func (r *reader) sum() int64 {
	var n int64
	for _, next := range r.next {
		n += next
	}
	return n
}
