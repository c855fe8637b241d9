package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// consumer is the parent's side of one: it starts its process, kills it, and starts
// it again.
type consumer struct {
	kind   Kind
	cfg    *Config
	setup  workerConfig
	log    string // file that takes what the processes say on standard error
	notes  chan<- Note
	rng    *rand.Rand
	deck   []Step // the steps that the next kills hit
	finish chan struct{}
	ended  chan struct{}

	mu          sync.Mutex // guards what follows
	doomed      bool       // told to stand still for a kill
	kills       int64
	steps       map[Step]int
	back        []time.Duration // from each SIGKILL to the next commit
	redelivered int64
}

// Note is something that happened to a consumer.
type Note struct {
	Kind Kind
	// Killed at a step, or, with Back above 0, committed again so long after it.
	Step Step
	Back time.Duration

	at time.Duration // since the beginning, as the view was told
}

func newConsumer(k Kind, cfg *Config, notes chan<- Note, setup workerConfig, log string) *consumer {
	return &consumer{
		kind: k, cfg: cfg, setup: setup, log: log, notes: notes,
		rng:    rand.New(rand.NewPCG(cfg.Seed, 2+uint64(slices.Index(kinds, k)))),
		deck:   k.steps()[:1], // the first kill falls between effect and ack; the next are dealt
		finish: make(chan struct{}), ended: make(chan struct{}), steps: map[Step]int{},
	}
}

// run keeps the consumer going until it has been drained or ctx ends, and kills it
// every few seconds until calm ends.
func (c *consumer) run(ctx, calm context.Context) error {
	defer close(c.ended)
	var killed time.Time
	for {
		p, err := startProcess(c.cfg.Worker, c.setup, c.log)
		if err != nil {
			return fmt.Errorf("start the process of %s: %w", c.kind.Title(), err)
		}
		again, err := c.live(ctx, calm, p, killed)
		killed = time.Now()
		p.kill()
		c.doom(false)
		if !again {
			return err
		}
	}
}

// live is one life of the process. It ends with a step to be killed at (again), or
// with the show.
func (c *consumer) live(ctx, calm context.Context, p *process, killed time.Time) (again bool, err error) {
	var kill <-chan time.Time
	var step *Step
	peace, finish := calm.Done(), (<-chan struct{})(c.finish)
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-peace:
			peace = nil
			if step == nil { // an order that was given has to be followed by the kill
				kill = nil
			}
		case <-finish:
			finish = nil
			p.tell(order{Drain: true})
		case r, ok := <-p.reports:
			switch {
			case !ok && finish == nil:
				return false, p.wait(c.kind)
			case !ok:
				return false, errors.Join(fmt.Errorf("the process of %s ended by itself", c.kind.Title()), p.wait(c.kind))
			case r.Commit:
				c.isBack(killed)
				if c.cfg.Kills && calm.Err() == nil {
					kill = time.After(time.Second + time.Duration(c.rng.Int64N(int64(2*time.Second))))
				}
			case r.At != nil:
				c.wasKilled(*r.At)
				return true, nil
			}
			c.mu.Lock()
			c.redelivered += r.Redelivered
			c.mu.Unlock()
		case <-kill:
			if step != nil || c.next() == Anytime { // or it doesn't pass there
				c.wasKilled(Anytime)
				return true, nil
			}
			step = &c.deck[0]
			c.doom(true)
			p.tell(order{Halt: step})
			kill = time.After(time.Second)
		}
	}
}

// next is the step at which the next kill is to find the process: all of them in
// random order, then again.
func (c *consumer) next() Step {
	if len(c.deck) == 0 {
		c.deck = slices.Clone(c.kind.steps())
		c.rng.Shuffle(len(c.deck), func(i, j int) { c.deck[i], c.deck[j] = c.deck[j], c.deck[i] })
	}
	return c.deck[0]
}

func (c *consumer) doom(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doomed = yes
}

// wasKilled is told before it is true: what comes after is another life.
func (c *consumer) wasKilled(at Step) {
	c.deck = c.deck[1:]
	c.mu.Lock()
	c.kills++
	c.steps[at]++
	c.mu.Unlock()
	c.note(Note{Kind: c.kind, Step: at})
}

func (c *consumer) isBack(killed time.Time) {
	if killed.IsZero() {
		return
	}
	took := time.Since(killed)
	c.mu.Lock()
	c.back = append(c.back, took)
	c.mu.Unlock()
	c.note(Note{Kind: c.kind, Back: took})
}

// note never waits: the view may be gone.
func (c *consumer) note(n Note) {
	select {
	case c.notes <- n:
	default:
	}
}

// safe says whether no kill is on its way.
func (c *consumer) safe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.doomed
}

// life is what the parent knows of it: kills, the median time to come back in
// seconds, what the watermark refused.
func (c *consumer) life() (kills int64, back float64, redelivered int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kills, median(c.back).Seconds(), c.redelivered
}

func median(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(ds))[len(ds)/2]
}

// drain lets the process finish what it has in hand, and waits for its end.
func (c *consumer) drain(ctx context.Context) error {
	close(c.finish)
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
		return fmt.Errorf("the process of %s does not end", c.kind.Title())
	}
}

// process is one life of a consumer.
type process struct {
	cmd     *exec.Cmd
	in      *json.Encoder
	log     string
	reports chan report // closed when it says no more
	done    chan struct{}
	err     error // how it ended, once done is closed
}

// startProcess starts a worker and hands it its configuration. It ends with us: by
// the signal at our death where there is one, and by the end of its standard input.
func startProcess(command []string, cfg workerConfig, log string) (*process, error) {
	stderr, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Args[0] = os.Args[0] // a program may be another under another name
	cmd.Stderr, cmd.SysProcAttr = stderr, withUs()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: json.NewEncoder(in), log: log, reports: make(chan report, 16), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // the signal at our death comes when this thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		lines := json.NewDecoder(out)
		for {
			var r report
			if err := lines.Decode(&r); err != nil {
				break
			}
			p.reports <- r
		}
		close(p.reports)
		p.err = cmd.Wait()
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	p.tell(cfg)
	return p, nil
}

// tell writes a line to the process; one that is gone shows by its reports.
func (p *process) tell(v any) { p.in.Encode(v) }

// kill is SIGKILL, and returns when the process is gone.
func (p *process) kill() {
	p.cmd.Process.Kill()
	for range p.reports {
	}
	<-p.done
}

// wait waits for the end of a process that says no more, and answers how it ended if
// it didn't end well.
func (p *process) wait(k Kind) error {
	<-p.done
	if p.err == nil {
		return nil
	}
	said, _ := os.ReadFile(p.log)
	said = said[max(0, len(said)-500):]
	return fmt.Errorf("%s: %w: %s", k.Title(), p.err, strings.TrimSpace(string(said)))
}

// actors run beside one another; the first that fails is heard.
type actors struct {
	running sync.WaitGroup
	failed  chan error
}

func (a *actors) start(act func() error) {
	a.running.Go(func() {
		if err := act(); err != nil {
			a.failed <- err
		}
	})
}
