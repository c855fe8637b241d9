// Command bench compares semel with raw binary COPY of the same rows into the
// same table with its primary key, in one run: variants in turn, a checkpoint
// before each, one round that isn't counted; the ratio is that of the rates in
// one round, and its median over the rounds is what counts.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/semelhq/semel"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

type options struct {
	rounds, messages, textbook int
	only, skip                 string
	json, profile, semel       string
	backlog, history           int
	latency                    time.Duration
	restarts                   int
	brokers                    string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "rounds that count")
	flag.IntVar(&o.messages, "messages", 300_000, "messages a run")
	flag.IntVar(&o.textbook, "textbook", 3000, "messages of a run with a transaction per message")
	flag.StringVar(&o.only, "only", "", "variants to run besides COPY: a regular expression")
	flag.StringVar(&o.skip, "skip", "", "variants to leave out: a regular expression")
	flag.StringVar(&o.json, "json", "", "write all figures to this file")
	flag.StringVar(&o.profile, "profile", "", "write the CPU profile of the variants to this file (COPY's part is left out)")
	flag.StringVar(&o.semel, "semel", "", "the semel program for memory and restarts; default: built from ../cmd/semel")
	flag.IntVar(&o.backlog, "backlog", 400_000, "messages of 1 KB that semel run works off while its memory is watched; 0: not")
	flag.IntVar(&o.history, "history", 20, "million IDs that the inbox remembers in the variants of a history")
	flag.DurationVar(&o.latency, "latency", 15*time.Second, "how long latency is measured; 0: not")
	flag.IntVar(&o.restarts, "restarts", 3, "how often semel run is killed and started again")
	flag.StringVar(&o.brokers, "brokers", os.Getenv("SEMEL_TEST_KAFKA"), "a real Kafka; none: what needs it is left out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, o); err != nil {
		say("bench: %v", err)
		os.Exit(1)
	}
}

// variant is a row of the table.
type variant struct {
	name  string
	goal  float64 // of the ratio; 0: none
	kafka bool
	run   func(ctx context.Context) (run, error)
}

// result is a variant's figures of one round.
type result struct {
	Variant  string
	Round    int
	Messages int
	Seconds  float64
	Ratio    float64 // of the rate to that of the round's COPY
	// CPU microseconds a message.
	Client, Server, Broker float64
}

type report struct {
	Rounds, Messages int
	Results          []result
	Latency          *latencies      `json:",omitempty"`
	PeakMemory       int64           `json:",omitempty"` // bytes
	Backlog          int             `json:",omitempty"`
	Restarts         []time.Duration `json:",omitempty"`
}

func bench(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "semel-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := start(ctx, filepath.Join(dir, "postgres"), o.brokers)
	if err != nil {
		return err
	}
	defer e.close()
	if o.brokers == "" {
		say("no Kafka (-brokers): what needs it is left out")
	}
	vs, err := e.variants(ctx, o)
	if err != nil {
		return err
	}
	rep := report{Rounds: o.rounds, Messages: o.messages}
	if len(vs) > 1 {
		if rep.Results, err = e.rounds(ctx, o, vs); err != nil {
			return err
		}
		table(os.Stdout, vs, rep.Results)
	}
	if err := e.others(ctx, o, dir, &rep); err != nil {
		return err
	}
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(b, '\n'), 0o644)
}

// rounds runs all variants in turn.
func (e *env) rounds(ctx context.Context, o options, vs []variant) (all []result, err error) {
	var profile io.Writer
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		profile = f
	}
	for round := range o.rounds + 1 {
		var base float64
		for i, v := range vs {
			if err := e.fresh(ctx); err != nil {
				return nil, err
			}
			// One profile holds one variant at its best: choose it by -only.
			if profile != nil && round == o.rounds && i == len(vs)-1 {
				if err := pprof.StartCPUProfile(profile); err != nil {
					return nil, err
				}
			}
			r, err := v.run(ctx)
			pprof.StopCPUProfile()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			rate := float64(r.messages) / r.took.Seconds()
			if i == 0 {
				base = rate
			}
			if round == 0 {
				continue // warm-up
			}
			us := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(r.messages) }
			all = append(all, result{
				Variant: v.name, Round: round, Messages: r.messages, Seconds: r.took.Seconds(), Ratio: rate / base,
				Client: us(r.used.client), Server: us(r.used.server), Broker: us(r.used.broker),
			})
		}
		say("round %d of %d", round, o.rounds)
	}
	return all, nil
}

func (e *env) variants(ctx context.Context, o options) ([]variant, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	skip, err := regexp.Compile(cmp.Or(o.skip, "^$"))
	if err != nil {
		return nil, err
	}
	n := o.messages
	clean, few := newStream("0%", 1, n, 0), newStream("5%", 2, n, 0.05)
	again, states := clean.again(), newStates("states", 3, n)
	small := newStream("small", 4, o.textbook, 0)
	copies := clean.copies()

	checked := func(s *stream, table string, f func(ctx context.Context) (run, error)) func(ctx context.Context) (run, error) {
		return func(ctx context.Context) (run, error) {
			r, err := f(ctx)
			if err == nil {
				err = e.check(ctx, table, s)
			}
			return r, err
		}
	}
	memory := func(r route, s *stream) func(ctx context.Context) (run, error) {
		topic := e.name("memory")
		logs := s.logs(topic)
		return checked(s, r.table.Table, func(ctx context.Context) (run, error) {
			return e.fromMemory(ctx, r, e.name("bench"), topic, logs, 0, nil)
		})
	}
	made := func(r route, s *stream) func(ctx context.Context) (run, error) {
		topic := e.name("memory")
		logs := s.logs(topic)
		return checked(s, r.table.Table, func(ctx context.Context) (run, error) {
			return e.fromMemory(ctx, r, e.name("bench"), topic, logs, 0, predecode(logs))
		})
	}
	// Everything was settled before, and comes again at other offsets.
	repeated := func(r route) func(ctx context.Context) (run, error) {
		topic := e.name("memory")
		logs := again.logs(topic)
		half := make([][]semel.Message, len(logs))
		for p := range logs {
			half[p] = logs[p][:len(logs[p])/2]
		}
		return checked(again, r.table.Table, func(ctx context.Context) (run, error) {
			consumer := e.name("bench")
			if r, err := e.fromMemory(ctx, r, consumer, topic, half, 0, nil); err != nil {
				return r, err
			}
			if err := e.exec(ctx, "CHECKPOINT"); err != nil {
				return run{}, err
			}
			return e.fromMemory(ctx, r, consumer, topic, logs, n, nil)
		})
	}
	known, partly := newStream("history", 6, n, 0).known()
	var past *history
	remembered := func(s *stream) func(ctx context.Context) (run, error) {
		logs := s.logs(historian)
		return checked(s, separate.table.Table, func(ctx context.Context) (run, error) {
			if past == nil {
				if past, err = e.remember(ctx, int64(o.history)*1_000_000, known); err != nil {
					return run{}, err
				}
				if err := e.fresh(ctx); err != nil {
					return run{}, err
				}
			}
			return past.settle(ctx, historian, logs)
		})
	}
	topics := map[*stream]string{}
	broker := func(r route, s *stream, members int) func(ctx context.Context) (run, error) {
		return checked(s, r.table.Table, func(ctx context.Context) (run, error) {
			return e.fromKafka(ctx, r, topics[s], len(s.orders), members)
		})
	}
	all := []variant{
		{name: "raw COPY", run: checked(clean, "orders", func(ctx context.Context) (run, error) { return e.copyRaw(ctx, clean, copies) })},
		{name: "pgx CopyFrom of values", run: checked(clean, "orders", func(ctx context.Context) (run, error) { return e.copyValues(ctx, clean) })},
		{name: "watermark, rows decoded", goal: 0.95, run: made(byPosition, clean)},
		{name: "watermark, from JSON", goal: 0.95, run: memory(byPosition, clean)},
		{name: "IDs in the target, 0% repeats", goal: 0.95, run: memory(fused, clean)},
		{name: "IDs in the target, 5% repeats", goal: 0.85, run: memory(fused, few)},
		{name: "IDs in the target, 100% repeats", run: repeated(fused)},
		{name: "inbox, 0% repeats", run: memory(separate, clean)},
		{name: "inbox, 5% repeats", run: memory(separate, few)},
		{name: "inbox, 100% repeats", run: repeated(separate)},
		{name: "inbox with a history, 0% known", run: remembered(clean)},
		{name: "inbox with a history, 5% known", run: remembered(partly)},
		{name: "upsert with version", run: memory(upsert, states)},
		{name: "Kafka, watermark", goal: 0.85, kafka: true, run: broker(byPosition, clean, 1)},
		{name: "Kafka, IDs in the target", goal: 0.85, kafka: true, run: broker(fused, clean, 1)},
		{name: "Kafka, IDs in the target, 5% repeats", kafka: true, run: broker(fused, few, 1)},
		{name: "Kafka, IDs in the target, 2 sessions", kafka: true, run: broker(fused, clean, 2)},
		{name: "Kafka, inbox", kafka: true, run: broker(separate, clean, 1)},
		{name: "textbook consumer (segmentio/kafka-go)", kafka: true, run: checked(small, "orders", func(ctx context.Context) (run, error) {
			return e.textbook(ctx, topics[small], small)
		})},
	}
	vs := all[:1:1]
	for _, v := range all[1:] {
		if only.MatchString(v.name) && !skip.MatchString(v.name) && (!v.kafka || e.brokers != nil) {
			vs = append(vs, v)
		}
	}
	if slices.ContainsFunc(vs, func(v variant) bool { return v.kafka }) {
		for _, s := range []*stream{clean, few, small} {
			topics[s] = e.name("orders")
			if err := e.topic(ctx, topics[s], s.logs(topics[s])); err != nil {
				return nil, err
			}
		}
	}
	return vs, nil
}

// spread is a median and how far the rounds lie apart.
type spread struct{ median, least, most float64 }

func spreadOf(rs []result, f func(result) float64) spread {
	var vs []float64
	for _, r := range rs {
		vs = append(vs, f(r))
	}
	slices.Sort(vs)
	n := len(vs)
	return spread{(vs[(n-1)/2] + vs[n/2]) / 2, vs[0], vs[n-1]}
}

func table(to io.Writer, vs []variant, all []result) {
	w := tabwriter.NewWriter(to, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "variant\tratio to COPY\t(min - max)\tgoal\t\tmsg/s\tclient us\tserver us\tbroker us")
	for _, v := range vs {
		var rs []result
		for _, r := range all {
			if r.Variant == v.name {
				rs = append(rs, r)
			}
		}
		ratio := spreadOf(rs, func(r result) float64 { return r.Ratio })
		goal, met := "", ""
		if v.goal > 0 {
			goal, met = fmt.Sprintf("%.2f", v.goal), "met"
			if ratio.median < v.goal {
				met = "missed"
			}
		}
		digits := 2
		if ratio.median < 0.1 {
			digits = 4
		}
		fmt.Fprintf(w, "%s\t%.*f\t(%.*f - %.*f)\t%s\t%s\t%.0f\t%.2f\t%.2f\t%.2f\n", v.name, digits, ratio.median, digits, ratio.least, digits, ratio.most, goal, met,
			spreadOf(rs, func(r result) float64 { return float64(r.Messages) / r.Seconds }).median,
			spreadOf(rs, func(r result) float64 { return r.Client }).median,
			spreadOf(rs, func(r result) float64 { return r.Server }).median,
			spreadOf(rs, func(r result) float64 { return r.Broker }).median)
	}
	w.Flush()
	times(to, all, "Kafka, IDs in the target", "textbook consumer (segmentio/kafka-go)", "50")
	times(to, all, "inbox with a history, 0% known", "inbox, 0% repeats", "0.9")
	times(to, all, "inbox with a history, 5% known", "inbox, 0% repeats", "0.7")
}

// times says how many times the rate of another a variant has, round by round.
func times(to io.Writer, all []result, variant, other, goal string) {
	ratios := map[int]float64{}
	for _, r := range all {
		if r.Variant == other {
			ratios[r.Round] = r.Ratio
		}
	}
	var rs []result
	for _, r := range all {
		if ratio := ratios[r.Round]; r.Variant == variant && ratio > 0 {
			r.Ratio /= ratio
			rs = append(rs, r)
		}
	}
	if len(rs) > 0 {
		s := spreadOf(rs, func(r result) float64 { return r.Ratio })
		fmt.Fprintf(to, "%s: %.2f times the %s (%.2f - %.2f; goal %s)\n", variant, s.median, other, s.least, s.most, goal)
	}
}

// others are the goals that are no ratios.
func (e *env) others(ctx context.Context, o options, dir string, rep *report) error {
	if e.brokers == nil {
		return nil
	}
	if o.latency > 0 {
		if err := e.fresh(ctx); err != nil {
			return err
		}
		const rate = 1000
		s := newStream("latency", 5, int(o.latency.Seconds()*rate), 0)
		l, err := e.latency(ctx, s, rate)
		if err == nil {
			err = e.check(ctx, "orders", s)
		}
		if err != nil {
			return fmt.Errorf("latency: %w", err)
		}
		rep.Latency = &l
		fmt.Printf("latency at %.0f messages a second, acknowledgement to commit: p50 %v (goal 5ms), p90 %v, p99 %v (goal 25ms), most %v; %d messages in %d transactions; the acknowledgement itself took p50 %v, p99 %v\n",
			l.Rate, l.P50, l.P90, l.P99, l.Most, l.Messages, l.Batches, l.ProducedP50, l.Produced99)
	}
	if o.backlog == 0 && o.restarts == 0 {
		return nil
	}
	if o.semel == "" {
		o.semel = filepath.Join(dir, "semel")
		out, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", o.semel, "./cmd/semel").CombinedOutput()
		if err != nil {
			return fmt.Errorf("build semel: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	if o.restarts > 0 {
		topic, err := e.backlog(ctx, 200_000, 319)
		if err != nil {
			return err
		}
		for range o.restarts {
			took, err := e.restart(ctx, o.semel, dir, topic)
			if err != nil {
				return fmt.Errorf("restart: %w", err)
			}
			rep.Restarts = append(rep.Restarts, took)
		}
		fmt.Printf("first commit after SIGKILL and restart (goal 3s): %v\n", strings.Trim(fmt.Sprint(rep.Restarts), "[]"))
	}
	if o.backlog > 0 {
		topic, err := e.backlog(ctx, o.backlog, 1024)
		if err != nil {
			return err
		}
		most, took, err := e.peakMemory(ctx, o.semel, dir, topic, o.backlog)
		if err != nil {
			return fmt.Errorf("memory: %w", err)
		}
		rep.PeakMemory, rep.Backlog = most, o.backlog
		fmt.Printf("peak memory of semel run over %d messages of 1 KB (goal 256 MiB): %.0f MiB, in %v\n", o.backlog, float64(most)/(1<<20), took.Round(time.Millisecond))
	}
	return nil
}
