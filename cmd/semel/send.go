package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/semelhq/semel"
	"github.com/spf13/cobra"
)

// send reads lines and sends each as a message with the idempotent producer.
type send struct {
	*app
	cluster   clusterFlags
	id        string
	newID     bool
	idHeader  string
	key       string
	partition int32
	repeat    float64
	seed      uint64
	create    int32
	settings  map[string]string
	json      bool

	topic  string
	idOf   expr
	keyOf  expr
	client *client
	batch  []outgoing
	bytes  int
	counts sendCounts
	drawn  time.Time
}

// outgoing is a message with the line that it comes from.
type outgoing struct {
	semel.Message
	file   string
	number int64
	repeat bool
}

// size is at least what the message takes in a batch.
func (o outgoing) size() int {
	n := 100 + len(o.Key) + len(o.Value)
	for _, h := range o.Headers {
		n += 10 + len(h.Name) + len(h.Value)
	}
	return n
}

// sendCounts is what is printed at the end.
type sendCounts struct {
	Topic   string  `json:"topic"`
	Lines   int64   `json:"lines"`
	Repeats int64   `json:"repeats"`
	Sent    int64   `json:"sent"`
	Empty   int64   `json:"empty_lines,omitempty"`
	Seconds float64 `json:"seconds"`
}

// What shares one call of Send: large enough that waiting for the last
// acknowledgement costs little.
const (
	sendMessages = 10_000
	sendBytes    = 8 << 20
)

func (a *app) sendCommand() *cobra.Command {
	s := &send{app: a}
	cmd := &cobra.Command{
		Use:     "send TOPIC [FILE…]",
		Aliases: []string{"produce"},
		GroupID: groupTry,
		Short:   "send lines of files as messages",
		Long: `Sends each line as a message, with the idempotent producer and acks=all: JSON
lines or any others, unpacked if gzip packed them, from standard input if no
file is named. Empty lines are left out.

EXPR selects a part of the message: value.order.id, value["two words"], key,
headers.name.`,
		Example: `  semel send orders orders.jsonl --create 6
  semel send orders orders.jsonl --id value.order_no --key value.customer
  semel send hooks hooks.jsonl.gz --new-id
  semel send orders orders.jsonl --id value.order_no --repeat 0.2 --seed 7`,
		Args: atLeast(1, "TOPIC"),
		RunE: run(s),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.id, "id", "", "message ID from the message, by an `EXPR`")
	f.BoolVar(&s.newID, "new-id", false, "a new UUID (version 7) for each line as message ID")
	f.StringVar(&s.idHeader, "id-header", "message-id", "the header that carries the ID")
	f.StringVar(&s.key, "key", "", "record key from the message, by an `EXPR`")
	f.Int32Var(&s.partition, "partition", -1, "send to this partition `N` alone")
	f.Float64Var(&s.repeat, "repeat", 0, "send this `SHARE` (0 to 1) of the lines again, as new records with the same ID, near and far")
	f.Uint64Var(&s.seed, "seed", 1, "choose the same repeats as another run with this seed `N`")
	f.Int32Var(&s.create, "create", 0, "make the topic with `N` partitions if it is missing")
	f.StringToStringVar(&s.settings, "topic-config", nil, "a `SETTING=VALUE` of the topic that --create makes, such as max.message.bytes (may be repeated)")
	f.BoolVar(&s.json, "json", false, "the counts at the end as a JSON object")
	s.cluster.add(f)
	return cmd
}

// Run sends the files named after the topic.
func (s *send) Run(ctx context.Context, args []string) error {
	s.topic, s.counts.Topic = args[0], args[0]
	if err := s.prepare(); err != nil {
		return err
	}
	client, err := s.cluster.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.ensureTopic(ctx, s.topic, s.create, s.settings, s.partition); err != nil {
		return err
	}
	s.client = client

	began := time.Now()
	err = s.sendAll(ctx, args[1:])
	s.counts.Seconds = time.Since(began).Seconds()
	s.clearProgress()
	if err != nil {
		if s.counts.Sent > 0 {
			s.talk("%s", s.counts)
		}
		return err
	}
	if s.json {
		return json.NewEncoder(s.out).Encode(s.counts)
	}
	if !s.quiet {
		fmt.Fprintln(s.out, s.counts)
	}
	return nil
}

func (s *send) prepare() (err error) {
	if s.id != "" && s.newID {
		return usage(errors.New("--id and --new-id exclude one another"), "")
	}
	if s.repeat < 0 || s.repeat > 1 {
		return usage(fmt.Errorf("--repeat: %v is no share", s.repeat), "between 0 and 1")
	}
	if len(s.settings) > 0 && s.create == 0 {
		return usage(errors.New("--topic-config is for a topic that --create makes"), "")
	}
	if s.idOf, err = compile("--id", s.id); err != nil {
		return err
	}
	s.keyOf, err = compile("--key", s.key)
	return err
}

func (s *send) sendAll(ctx context.Context, files []string) error {
	again := newRepeats(s.repeat, s.seed)
	empty, err := eachLine(files, s.in, func(l line) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		o, err := s.message(l)
		if err != nil {
			return no(fmt.Errorf("%s:%d: %w", l.file, l.number, err), "nothing from this line on was sent")
		}
		if err := s.add(ctx, o); err != nil {
			return err
		}
		return s.add(ctx, again.after(o)...)
	})
	s.counts.Empty = empty
	if err != nil {
		// What was read before the bad line is sent, so that "from this line on" is true.
		if err := s.flush(ctx); err != nil {
			return err
		}
		return err
	}
	if err := s.add(ctx, again.rest()...); err != nil {
		return err
	}
	return s.flush(ctx)
}

// message makes a message of a line.
func (s *send) message(l line) (outgoing, error) {
	o := outgoing{file: l.file, number: l.number}
	o.Topic, o.Partition, o.Value = s.topic, s.partition, l.bytes
	var id []byte
	var err error
	switch {
	case s.newID:
		u, err := uuid.NewV7()
		if err != nil {
			return o, err
		}
		id = []byte(u.String())
	case s.idOf != nil:
		if id, err = s.idOf(&o.Message); err != nil {
			return o, fmt.Errorf("--id: %w", err)
		}
	}
	if id != nil {
		o.Headers = []semel.Header{{Name: s.idHeader, Value: id}}
	}
	if s.keyOf != nil {
		if o.Key, err = s.keyOf(&o.Message); err != nil {
			return o, fmt.Errorf("--key: %w", err)
		}
	}
	return o, nil
}

func (s *send) add(ctx context.Context, os ...outgoing) error {
	for _, o := range os {
		if o.size() > s.client.config.BatchBytes {
			if err := s.flush(ctx); err != nil {
				return err
			}
			if err := s.client.widen(o.size()); err != nil {
				return err
			}
		}
		s.batch = append(s.batch, o)
		s.bytes += o.size()
		if len(s.batch) >= sendMessages || s.bytes >= sendBytes {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush sends the batch and counts what was acknowledged.
func (s *send) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	ms := make([]semel.Message, len(s.batch))
	for i, o := range s.batch {
		ms[i] = o.Message
	}
	var first error
	for i, err := range s.client.Send(ctx, ms) {
		o := s.batch[i]
		switch {
		case err != nil && first == nil:
			first = fmt.Errorf("%s:%d was not acknowledged: %w", o.file, o.number, err)
		case err != nil:
		case o.repeat:
			s.counts.Repeats++
			s.counts.Sent++
		default:
			s.counts.Lines++
			s.counts.Sent++
		}
	}
	s.batch, s.bytes = s.batch[:0], 0
	s.drawProgress()
	if first != nil {
		return sendFailure(first)
	}
	return nil
}

func (s *send) drawProgress() {
	if !s.progress() || time.Since(s.drawn) < 100*time.Millisecond {
		return
	}
	s.drawn = time.Now()
	fmt.Fprintf(s.err, "\r\x1b[K%s messages sent to %s", thousands(s.counts.Sent), s.topic)
}

func (s *send) clearProgress() {
	if s.progress() && !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
	}
}

func (c sendCounts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent %s to %s in %.1f s", plural(c.Sent, "message"), c.Topic, c.Seconds)
	if c.Repeats > 0 {
		fmt.Fprintf(&b, ": %s and %s", plural(c.Lines, "line"), plural(c.Repeats, "repeat"))
	}
	if c.Empty > 0 {
		fmt.Fprintf(&b, "; %s left out", plural(c.Empty, "empty line"))
	}
	return b.String()
}
