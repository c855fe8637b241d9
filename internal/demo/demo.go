package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// Config says what to show.
type Config struct {
	// For is how long the stream flows, and the kills go on; Messages how many
	// messages it has. The first that is reached ends it; 0 is no bound, and one of
	// the two is needed.
	For      time.Duration
	Messages int
	// Rate is in messages a second, repeats not counted. Required.
	Rate int
	// Repeats is the share of messages that the producer sends a second time: a new
	// record with the same message ID.
	Repeats float64
	// Kills says whether consumers are killed.
	Kills bool
	// Seed of payments, repeats and kills; 0 takes one.
	Seed uint64

	// Worker is the command line that ends in [Work]: this program again.
	Worker []string

	Out io.Writer // the view
	// JSON makes the view a JSON object a line.
	JSON bool
	// Terminal says that Out is one, and may be drawn over. Size answers its width
	// and height.
	Terminal bool
	Colour   bool
	Size     func() (columns, rows int)
	// Talk hears what takes long before the view begins: fetching PostgreSQL.
	Talk io.Writer
}

func (c *Config) validate() error {
	switch {
	case c.For < 0:
		return fmt.Errorf("a time of %s", c.For)
	case c.Messages < 0 || c.Messages > mostMessages:
		return fmt.Errorf("%d messages: it takes up to %d", c.Messages, mostMessages)
	case c.For == 0 && c.Messages == 0:
		return errors.New("neither a time nor a number of messages: it would never end")
	case c.Rate < 1 || c.Rate > mostRate:
		return fmt.Errorf("a rate of %d: it takes 1 to %d messages a second", c.Rate, mostRate)
	case c.Repeats < 0 || c.Repeats > 1:
		return fmt.Errorf("a share of repeats of %g: it takes 0 to 1", c.Repeats)
	}
	return nil
}

const (
	// What the view knows of each message is kept in memory.
	mostMessages = 10_000_000
	mostRate     = 100_000

	topic      = "payments"
	partitions = 4
	accounts   = 16

	// look is how often the view learns what PostgreSQL and the broker hold.
	look = 250 * time.Millisecond
	// patience is how long consumers may stand still once nobody kills them.
	patience = 30 * time.Second
)

// UsageError is a Config that makes no sense.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Run shows it and answers what the audit found. An error means that there was no
// audit: a [UsageError], something that can't be started, or the end of ctx.
// Nothing is left behind: no process, no file.
func Run(ctx context.Context, cfg Config) (*Verdict, error) {
	if err := cfg.validate(); err != nil {
		return nil, &UsageError{err}
	}
	for cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32())
	}
	v := newView(&cfg)
	v.starting()
	dir, remove, err := makeDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	env, err := devenv.Start(ctx, devenv.Config{Dir: dir, Talk: cfg.Talk})
	if err != nil {
		return nil, err
	}
	defer env.Close()
	s, err := stage(ctx, &cfg, env, dir)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.play(ctx, v)
}

// show is everything that is on the stage.
type show struct {
	cfg       *Config
	began     time.Time
	pool      *pgxpool.Pool
	admin     *kafka.Admin
	sender    *kafka.Sender
	stream    *stream
	consumers []*consumer
	notes     chan Note
}

// stage prepares tables, topic and actors.
func stage(ctx context.Context, cfg *Config, env *devenv.Env, dir string) (_ *show, err error) {
	s := &show{cfg: cfg, notes: make(chan Note, 64)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := env.Broker().CreateTopic(topic, partitions); err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.New(ctx, env.DatabaseURL()); err != nil {
		return nil, err
	}
	err = s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := postgres.Migrate(ctx, c.Conn(), postgres.MigrateConfig{}); err != nil {
			return err
		}
		return makeBooks(ctx, c.Conn())
	})
	if err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	brokers := []string{env.Brokers()}
	if s.admin, err = kafka.NewAdmin(kafka.AdminConfig{Brokers: brokers}); err != nil {
		return nil, err
	}
	if s.sender, err = kafka.NewSender(kafka.SenderConfig{Brokers: brokers, Manual: true}); err != nil {
		return nil, err
	}
	s.stream = newStream(cfg)
	for _, k := range kinds {
		s.consumers = append(s.consumers, newConsumer(k, cfg, s.notes, workerConfig{
			Kind: k, Brokers: brokers, Database: env.DatabaseURL(),
		}, filepath.Join(dir, string(k)+".log")))
	}
	return s, nil
}

func (s *show) close() {
	if s.sender != nil {
		s.sender.Close()
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

// play runs the stream, the consumers and the kills until the end, and audits.
func (s *show) play(ctx context.Context, v *view) (_ *Verdict, err error) {
	defer func() {
		if err != nil {
			v.leave()
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	calm, noMoreKills := context.WithCancel(ctx) // ends when the stream does
	acts := actors{failed: make(chan error, 1+len(s.consumers))}
	defer func() {
		noMoreKills()
		cancel() // kills whoever is left
		acts.running.Wait()
	}()
	s.began = time.Now()
	v.started()
	for _, c := range s.consumers {
		acts.start(func() error { return c.run(ctx, calm) })
	}
	acts.start(func() error {
		defer noMoreKills()
		return s.stream.send(ctx, s.sender)
	})

	tick := time.NewTicker(look)
	defer tick.Stop()
	books := newBooks(s)
	still := time.Now()
	for last := int64(-1); ; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-acts.failed:
			return nil, err
		case n := <-s.notes:
			v.note(s.elapsed(), n)
			continue
		case <-tick.C:
		}
		// Before the look: the last records may be sent while it is taken, and a
		// consumer that has all of an older count would be stopped short of them.
		over := calm.Err() != nil
		now, err := books.look(ctx)
		if err != nil {
			return nil, err
		}
		now.Seconds = s.elapsed().Seconds()
		v.progress(now, over)
		behind := int64(0)
		for _, c := range now.Consumers {
			behind += c.Behind
		}
		if !over || behind != last {
			last, still = behind, time.Now()
		}
		if over && behind == 0 && s.safe() {
			break
		}
		if time.Since(still) > patience {
			return nil, fmt.Errorf("the consumers stand still, %d records before the end", behind)
		}
	}
	for _, c := range s.consumers {
		if err := c.drain(ctx); err != nil {
			return nil, err
		}
	}
	select {
	case err := <-acts.failed:
		return nil, err
	default:
	}
	verdict, err := s.audit(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	v.verdict(verdict)
	return verdict, nil
}

func (s *show) elapsed() time.Duration { return time.Since(s.began) }

// safe says whether no kill is on its way.
func (s *show) safe() bool {
	return !slices.ContainsFunc(s.consumers, func(c *consumer) bool { return !c.safe() })
}
