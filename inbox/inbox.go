package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// Config says what a consumer does. Consumer, Source, Store and one of Handler,
// BatchHandler and Effect are required; the zero value of everything else is the
// default that its comment names. T is what handlers write with: pgx.Tx for
// package postgres.
type Config[T any] struct {
	// Consumer is the scope of the memory: the same messages under another name
	// take effect again.
	Consumer string
	Source   Source
	Store    Store[T]

	// ID says how messages are identified; the zero value by position. It is
	// ignored if Effect brings IDs of its own (OwnIDs).
	ID     semel.IDRule
	OwnIDs bool

	// Handler makes the effect of one message. It may be called many times for
	// one message; exactly one call commits. Nothing outside tx is covered.
	Handler func(ctx context.Context, tx T, m semel.Message) error
	// BatchHandler makes the effects of a batch; semel.FailedAt names the
	// message that failed, else it is searched by halving.
	BatchHandler func(ctx context.Context, tx T, ms []semel.Message) error
	// Effect is the seam under both, for sinks.
	Effect Effect[T]

	// Memory recognises what producers send twice. Default: MemoryInbox, or
	// MemoryPosition where ID is by position.
	Memory Memory
	// Window is how long the inbox remembers. Default 7 days.
	Window time.Duration

	// AtMostOnce moves the watermark, and tells the broker, before the effect: what
	// stops in between loses messages, and never repeats one. They are counted, and an
	// event [EventLost] says which. There are no further attempts, no memory of IDs.
	AtMostOnce bool

	// Target describes where effects go; it is recorded, and a change halts.
	Target string
	// AcceptChange goes on though topics, ID rule, cluster or target are not
	// what was recorded.
	AcceptChange bool

	OnMissingID MissingPolicy   // default MissingDeadLetter
	OnCollision CollisionPolicy // default CollisionDeadLetter
	OnGap       GapPolicy       // default GapGoOn
	OnError     ErrorPolicy
	Batch       BatchLimits

	// Rate bounds what is taken from the source; nil: nothing does. Who waits for it
	// keeps its place in the group and has no transaction open.
	Rate *Rate

	// Reread is how often rows of idle partitions are read again, so that a
	// database that went back is noticed. Default 3 s.
	Reread time.Duration
	// CutOff is how long the database may be out of reach before this member
	// leaves the group, so that one that reaches it can take over. Default 1 min.
	CutOff time.Duration

	Logger  *slog.Logger // default: none
	Observe Observer
}

// MissingPolicy says what becomes of a message without ID.
type MissingPolicy uint8

const (
	MissingDeadLetter MissingPolicy = iota
	MissingPosition                 // identified by its position instead
	MissingHalt
)

// CollisionPolicy says what becomes of a message whose ID another one had.
type CollisionPolicy uint8

const (
	CollisionDeadLetter CollisionPolicy = iota
	CollisionDuplicate                  // settled as a duplicate
	CollisionHalt
)

// GapPolicy says what follows messages lost to retention, and a log that was cut
// below what was settled.
type GapPolicy uint8

const (
	GapGoOn GapPolicy = iota // recorded, and on from what is there
	GapHalt
)

// ErrorPolicy says what follows errors that are about a message.
type ErrorPolicy struct {
	// Halt stops instead of burying.
	Halt bool
	// Attempts per message, the first included. Default: 10 for errors of a
	// handler, 1 for data that the database refuses and for effects. Where the
	// database's time-outs end a message alone there are at least 10.
	Attempts int
	// Backoff between attempts: doubled each time. Defaults 1 s and 5 min.
	Backoff, MaxBackoff time.Duration
	// InARow and Share of the last 1,000 messages bound how many are buried
	// before the consumer halts: a bad deploy must not bury a topic. Defaults 20
	// and 0.05; negative: no bound.
	InARow int
	Share  float64
}

// BatchLimits bound what shares one transaction. A batch takes what waits.
type BatchLimits struct {
	Messages int           // default 100 for handlers, 5,000 for effects
	Bytes    int           // of keys and values; default 16 MiB
	Time     time.Duration // of the handlers' work; default 10 s: keep it well below the group's patience
	Linger   time.Duration // wait for more; default 0
}

// New checks the configuration; it connects to nothing.
func New[T any](cfg Config[T]) (*Inbox[T], error) {
	effect, err := cfg.effect()
	if err != nil {
		return nil, err
	}
	switch {
	case cfg.Consumer == "":
		return nil, errors.New("inbox: Consumer is empty")
	case cfg.Source == nil:
		return nil, errors.New("inbox: Source is nil")
	case cfg.Store == nil:
		return nil, errors.New("inbox: Store is nil")
	}
	if cfg.AtMostOnce && cfg.Memory == "" && !cfg.OwnIDs {
		cfg.Memory = MemoryPosition
	}
	cfg.defaults()
	if cfg.AtMostOnce && cfg.Memory != MemoryPosition {
		return nil, fmt.Errorf("inbox: AtMostOnce keeps no IDs, and Memory is %q", cfg.Memory)
	}
	if cfg.Memory != MemoryPosition && cfg.ID.ByPosition() && !cfg.OwnIDs {
		return nil, fmt.Errorf("inbox: Memory %q needs an ID rule", cfg.Memory)
	}
	return &Inbox[T]{cfg: cfg, effect: effect, draining: make(chan struct{})}, nil
}

// Inbox is one consumer's loop: one member of the group, one connection to the
// database, one goroutine that owns all state.
type Inbox[T any] struct {
	cfg    Config[T]
	effect Effect[T]

	drainOnce sync.Once
	draining  chan struct{}
}

// Drain makes Run finish the batch in flight, ack it, release its claims, leave
// the group and return nil. It doesn't wait for that. Nothing is delivered again
// after a clean stop.
func (in *Inbox[T]) Drain() { in.drainOnce.Do(func() { close(in.draining) }) }

// Run consumes until Drain (nil), until ctx ends (its error: what was in flight
// is rolled back), or until it halts ([HaltError], [ChangedError]). Outages are
// waited out. Run may be called once.
func (in *Inbox[T]) Run(ctx context.Context) error {
	l := newLane(in.cfg, in.effect, in.draining)
	defer in.cfg.Store.Close()
	defer in.cfg.Source.Close()
	return l.run(ctx)
}

// Redrive handles the dead letters that are marked, whosever their partitions are,
// without joining the group: for a consumer that doesn't run. It waits for nothing:
// an outage is an error, and what is locked or in conflict stays marked. Run or
// Redrive may be called, once.
func (in *Inbox[T]) Redrive(ctx context.Context) error {
	l := newLane(in.cfg, in.effect, in.draining)
	defer in.cfg.Store.Close()
	defer in.cfg.Source.Close()
	if err := l.register(ctx); err != nil {
		return err
	}
	for {
		more, err := l.redriveNext(ctx, nil)
		if err != nil || !more {
			return err
		}
	}
}

func (c *Config[T]) effect() (Effect[T], error) {
	n := 0
	var e Effect[T]
	if c.Handler != nil {
		e, n = perMessage[T]{handle: c.Handler, patience: c.patience}, n+1
	}
	if c.BatchHandler != nil {
		e, n = perBatch[T]{handle: c.BatchHandler}, n+1
	}
	if c.Effect != nil {
		e, n = c.Effect, n+1
	}
	if n != 1 {
		return nil, fmt.Errorf("inbox: one of Handler, BatchHandler and Effect is needed, there are %d", n)
	}
	return e, nil
}

func (c *Config[T]) patience() time.Duration { return c.Batch.Time }

func (c *Config[T]) defaults() {
	if c.Memory == "" {
		c.Memory = MemoryInbox
		if c.ID.ByPosition() && !c.OwnIDs {
			c.Memory = MemoryPosition
		}
	}
	or(&c.Window, 7*24*time.Hour)
	or(&c.Reread, 3*time.Second)
	or(&c.CutOff, time.Minute)
	or(&c.OnError.Backoff, time.Second)
	or(&c.OnError.MaxBackoff, 5*time.Minute)
	or(&c.OnError.InARow, 20)
	or(&c.OnError.Share, 0.05)
	messages := 100
	if c.Effect != nil {
		messages = 5000
	}
	or(&c.Batch.Messages, messages)
	or(&c.Batch.Bytes, 16<<20)
	or(&c.Batch.Time, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// or sets a default.
func or[V comparable](v *V, otherwise V) {
	var zero V
	if *v == zero {
		*v = otherwise
	}
}

// attempts is how many tries an error of that class is given.
func (c *Config[T]) attempts(class Class) int {
	switch {
	case c.AtMostOnce: // what waits for another is lost with the process
		return 1
	case class == ClassSlow: // that is the server's load as often as the message
		return max(10, c.OnError.Attempts)
	case c.OnError.Attempts > 0:
		return c.OnError.Attempts
	case class == ClassHandler && c.Effect == nil:
		return 10
	}
	return 1
}
