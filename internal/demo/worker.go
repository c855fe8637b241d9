package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// Kind is one of the three consumers.
type Kind string

const (
	Semel     Kind = "semel"      // effect and memory in one transaction, then the ack
	AcksFirst Kind = "acks-first" // the ack, then the effect
	NoMemory  Kind = "no-memory"  // the effect, then the ack
)

var kinds = []Kind{Semel, AcksFirst, NoMemory}

// Title is the kind as people read it.
func (k Kind) Title() string {
	return map[Kind]string{Semel: "semel", AcksFirst: "acks first", NoMemory: "no memory"}[k]
}

// Step is a place in a consumer's loop where a kill may find it.
type Step string

const (
	Polled    Step = "polled"    // messages are here, nothing is done
	Begun     Step = "begun"     // the transaction is open, the claim is proved
	Admitted  Step = "admitted"  // their IDs are in the inbox, not committed
	Applied   Step = "applied"   // the effect is written, not committed
	Committed Step = "committed" // the effect is committed
	Acked     Step = "acked"     // the broker was told
	Anytime   Step = "any"       // wherever it is
)

// steps are those that a kind passes, and stands still at if told to; the first is
// the one between its two halves, the effect and the ack.
func (k Kind) steps() []Step {
	switch k {
	case Semel:
		return []Step{Committed, Polled, Begun, Admitted, Applied, Acked, Anytime}
	case AcksFirst:
		return []Step{Acked, Polled, Applied, Committed, Anytime}
	}
	return []Step{Committed, Polled, Applied, Acked, Anytime}
}

// batch is how many messages a turn of each consumer takes at most.
const batch = 100

// workerConfig is the first line that a worker reads.
type workerConfig struct {
	Kind     Kind     `json:"kind"`
	Brokers  []string `json:"brokers"`
	Database string   `json:"database"`
}

// order is each line that follows.
type order struct {
	Halt  *Step `json:"halt,omitempty"`  // stand still at the next step of that name
	Drain bool  `json:"drain,omitempty"` // finish and end
}

// report is each line that a worker writes.
type report struct {
	Commit      bool  `json:"commit,omitempty"`      // the first commit of this life
	At          *Step `json:"at,omitempty"`          // standing still, to be killed
	Redelivered int64 `json:"redelivered,omitempty"` // below the watermark and not acked: skipped
}

// Work is a consumer's process: it reads its configuration and its orders from in,
// writes reports to out, and ends when it is told to, or when in does, which is the
// death of its parent.
func Work(in io.Reader, out io.Writer) error {
	// Ctrl-C is for the parent, which decides what becomes of this process.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	lines := json.NewDecoder(bufio.NewReader(in))
	var cfg workerConfig
	if err := lines.Decode(&cfg); err != nil {
		return fmt.Errorf("a worker of the demo, to be started by it alone: %w", err)
	}
	w := &worker{cfg: cfg, drain: make(chan struct{}), out: json.NewEncoder(out)}
	go w.obey(lines)
	switch cfg.Kind {
	case Semel:
		return w.semel(context.Background())
	case AcksFirst, NoMemory:
		return w.rival(context.Background())
	}
	return fmt.Errorf("no consumer is called %q", cfg.Kind)
}

// worker is the process of one consumer.
type worker struct {
	cfg   workerConfig
	drain chan struct{} // closed when it is to end
	halt  atomic.Pointer[Step]
	first sync.Once // commit

	mu  sync.Mutex // guards out
	out *json.Encoder
}

func (w *worker) obey(lines *json.Decoder) {
	for drained := false; ; {
		var o order
		if err := lines.Decode(&o); err != nil {
			os.Exit(1) // nobody is left to work for
		}
		if o.Halt != nil {
			w.halt.Store(o.Halt)
		}
		if o.Drain && !drained {
			drained = true
			close(w.drain)
		}
	}
}

func (w *worker) report(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.Encode(r)
}

// pass is called at each step of a loop. Told to, it stands still there, with all
// that the process holds, until SIGKILL comes. With nothing in hand there is nothing to try.
func (w *worker) pass(s Step, inHand int) {
	if at := w.halt.Load(); inHand > 0 && at != nil && *at == s {
		w.report(report{At: &s})
		select {}
	}
}

func (w *worker) committed(inHand int) {
	if inHand > 0 {
		w.first.Do(func() { w.report(report{Commit: true}) })
	}
}

// semel is the program that a user of the library writes: a source, a store, a
// handler. What wraps source and store only says where the loop is.
func (w *worker) semel(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, w.cfg.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	source, err := kafka.NewSource(kafka.SourceConfig{
		Brokers: w.cfg.Brokers, Topics: []string{topic}, Group: string(Semel),
	})
	if err != nil {
		return err
	}
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: string(Semel),
		Source:   &watchedSource{source, w},
		Store:    &watchedStore{postgres.NewInboxStore(pool, postgres.InboxConfig{}), w},
		ID:       semel.HeaderID("message-id"),
		BatchHandler: func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
			ps := make([]payment, len(ms))
			for i, m := range ms {
				if err := ps[i].read(m.Value, m.Partition, m.Offset); err != nil {
					return semel.FailedAt(i, semel.Permanent(err))
				}
			}
			return book(ctx, tx, Semel, ps)
		},
		Batch: inbox.BatchLimits{Messages: batch},
		Observe: inbox.Observer{
			Redelivered: func(_ semel.Partition, n int64) { w.report(report{Redelivered: n}) },
		},
	})
	if err != nil {
		return err
	}
	go func() {
		<-w.drain
		in.Drain()
	}()
	return in.Run(ctx)
}

// watchedSource and watchedStore say which step the loop has reached.
type watchedSource struct {
	inbox.Source
	w *worker
}

func (s *watchedSource) Poll(ctx context.Context, most int) (inbox.Delivery, error) {
	d, err := s.Source.Poll(ctx, most)
	n := 0
	for _, r := range d.Runs {
		n += len(r.Messages)
	}
	s.w.pass(Polled, n)
	return d, err
}

func (s *watchedSource) Ack(acks []inbox.Ack) {
	s.Source.Ack(acks)
	s.w.pass(Acked, len(acks))
}

type watchedStore struct {
	inbox.Store[pgx.Tx]
	w *worker
}

func (s *watchedStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[pgx.Tx], error) {
	tx, err := s.Store.Begin(ctx, spans)
	if err != nil {
		return nil, err
	}
	s.w.pass(Begun, len(spans))
	return &watchedTx{tx, s.w}, nil
}

type watchedTx struct {
	inbox.Tx[pgx.Tx]
	w *worker
}

func (t *watchedTx) Admit(ctx context.Context, ids []inbox.Admission) ([]inbox.Verdict, error) {
	vs, err := t.Tx.Admit(ctx, ids)
	t.w.pass(Admitted, len(ids))
	return vs, err
}

func (t *watchedTx) Commit(ctx context.Context, settled []inbox.Settled) error {
	t.w.pass(Applied, len(settled))
	if err := t.Tx.Commit(ctx, settled); err != nil {
		return err
	}
	t.w.committed(len(settled))
	t.w.pass(Committed, len(settled))
	return nil
}

// rival is the loop of the textbooks, in either order of its two halves. Both halves
// are done with care: offsets are committed by hand, each waits for its answer, an
// effect is one transaction. No order of the two survives a crash between them:
//
//   - acks first: the broker counts the batch as done, the effect never comes. The next
//     process starts behind it. Lost.
//   - no memory: the effect is there, the broker doesn't know. The next process is
//     handed the batch again and does it again. Twice.
//
// And a repeat by the producer is a record like any other to both.
//
// As a member that left without a word it would have to wait for the end of its own
// session, 45 s by default, before it is handed a partition again. Static membership
// spares it that: the process that comes back takes its own place.
func (w *worker) rival(ctx context.Context) error {
	db, err := pgx.Connect(ctx, w.cfg.Database)
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(w.cfg.Brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(string(w.cfg.Kind)),
		kgo.InstanceID(string(w.cfg.Kind)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	polling, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-w.drain
		cancel()
	}()

	for {
		fetches := cl.PollRecords(polling, batch)
		if polling.Err() != nil {
			return nil
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return errs[0].Err
		}
		records := fetches.Records()
		w.pass(Polled, len(records))

		ack := func() error {
			if err := cl.CommitRecords(ctx, records...); err != nil {
				return err
			}
			w.pass(Acked, len(records))
			return nil
		}
		effect := func() error {
			err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				if err := w.bookRecords(ctx, tx, records); err != nil {
					return err
				}
				w.pass(Applied, len(records))
				return nil
			})
			if err != nil {
				return err
			}
			w.committed(len(records))
			w.pass(Committed, len(records))
			return nil
		}

		first, second := effect, ack
		if w.cfg.Kind == AcksFirst {
			first, second = ack, effect
		}
		if err := errors.Join(first(), second()); err != nil {
			return err
		}
	}
}

func (w *worker) bookRecords(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error {
	ps := make([]payment, len(records))
	for i, r := range records {
		if err := ps[i].read(r.Value, r.Partition, r.Offset); err != nil {
			return err
		}
	}
	return book(ctx, tx, w.cfg.Kind, ps)
}
