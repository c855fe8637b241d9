package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const specVariable = "SEMEL_LAB_SPEC"

// What a child says, a line each; a step by its name.
const (
	sayStopped     = "stopped"
	sayFirst       = "first commit"
	sayRedelivered = "redelivered "
	sayFenced      = "fenced"
	sayHeld        = "its effect is held"
	sayWaits       = "another lane waits"
)

// beChild runs a consumer until it is told to stop, drains at SIGTERM, and ends when nobody listens any more.
func beChild(text string) int {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var mu sync.Mutex
	say := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		if _, err := fmt.Println(what); err != nil {
			os.Exit(3)
		}
	}
	goOn := make(chan struct{})
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			goOn <- struct{}{}
		}
		os.Exit(3) // the parent is gone
	}()
	var seen atomic.Int64 // by all lanes
	pass := func(at step) {
		if s.Loud {
			say(string(at))
		}
		if at != s.StopAt {
			return
		}
		if seen.Add(1) == int64(max(s.Nth, 1)) {
			say(sayStopped)
			<-goOn
		}
	}
	c, err := s.build(pass, logger(fmt.Sprintf("child %d", os.Getpid())))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ended := make(chan struct{})
	go func() {
		told, fenced, redelivered := false, int64(0), int64(0)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			if !told && c.settled.Load() > 0 {
				told = true
				say(sayFirst)
			}
			if n := c.fenced.Load(); n > fenced {
				fenced = n
				say(sayFenced)
			}
			if n := c.redelivered.Load(); n > redelivered {
				redelivered = n
				say(fmt.Sprint(sayRedelivered, n))
			}
		}
	}()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { <-term; c.Drain() }()
	var others sync.WaitGroup
	for range s.Lanes - 1 {
		o, err := s.build(pass, logger(fmt.Sprintf("child %d", os.Getpid())))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		go func() { <-term; o.Drain() }()
		others.Go(func() { defer o.pool.Close(); _ = o.Run(context.Background()) })
	}
	work := c.Run
	if s.Here {
		work = c.Redrive
	}
	err = work(context.Background())
	others.Wait()
	close(ended)
	c.pool.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		return 1
	}
	return 0
}

// child is a consumer in a process of its own.
type child struct {
	t       testing.TB
	cmd     *exec.Cmd
	started time.Time
	gone    chan struct{} // the process has ended, and err says how
	err     error
	tell    func() error // go on

	mu     sync.Mutex
	said   []string
	first  time.Duration // from its start to its first commit
	change chan struct{}
}

// spawn starts one. It is killed when the test ends, if it hasn't ended before.
func (w *world) spawn(edit ...func(*spec)) *child {
	w.t.Helper()
	text, err := json.Marshal(w.spec(edit))
	must(w.t, err)
	c := &child{t: w.t, gone: make(chan struct{}), change: make(chan struct{})}
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), specVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	must(w.t, err)
	out, err := c.cmd.StdoutPipe()
	must(w.t, err)
	c.tell = func() error { _, err := in.Write([]byte("on\n")); return err }
	c.started = time.Now()
	must(w.t, c.cmd.Start())
	go func() {
		defer close(c.gone)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			c.heard(lines.Text())
		}
		c.err = c.cmd.Wait()
	}()
	w.t.Cleanup(func() { c.kill() })
	return c
}

func (c *child) heard(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line == sayFirst {
		c.first = time.Since(c.started)
	}
	c.said = append(c.said, line)
	close(c.change)
	c.change = make(chan struct{})
}

// hears waits until a fact about what it said holds.
func (c *child) hears(what string, fact func(said []string) bool) {
	c.t.Helper()
	late := time.After(limit)
	for {
		c.mu.Lock()
		ok, change := fact(c.said), c.change
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-change:
		case <-c.gone:
			c.mu.Lock()
			ok = fact(c.said)
			c.mu.Unlock()
			if !ok {
				c.t.Fatalf("the process ended (%v) before %s", c.err, what)
			}
		case <-late:
			c.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (c *child) says(line string) {
	c.t.Helper()
	c.hears(line, func(said []string) bool {
		for _, s := range said {
			if strings.HasPrefix(s, line) {
				return true
			}
		}
		return false
	})
}

func (c *child) hasSaid(line string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.said {
		if strings.HasPrefix(s, line) {
			return true
		}
	}
	return false
}

// firstCommit is how long it took from the process's start.
func (c *child) firstCommit() time.Duration {
	c.t.Helper()
	c.says(sayFirst)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

func (c *child) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatalf("%s: %v", sig, err)
	}
}

// kill is SIGKILL; it returns when the process is gone.
func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.gone
}

// freeze is SIGSTOP, and returns when the process stands still.
func (c *child) freeze() {
	c.t.Helper()
	c.signal(syscall.SIGSTOP)
	until(c.t, "the process stands still", func() bool { return state(c.cmd.Process.Pid) == "T" })
}

func (c *child) thaw() { c.t.Helper(); c.signal(syscall.SIGCONT) }

// state is a process's, as the system's tools show it.
func state(pid int) string {
	out, _ := exec.Command("ps", "-o", "state=", "-p", fmt.Sprint(pid)).Output()
	return strings.TrimSpace(string(out))[:min(1, len(strings.TrimSpace(string(out))))]
}

// drain is SIGTERM: it must end well, and in time.
func (c *child) drain() {
	c.t.Helper()
	c.signal(syscall.SIGTERM)
	select {
	case <-c.gone:
	case <-time.After(limit):
		c.t.Fatal("the process didn't end at SIGTERM")
	}
	var exit *exec.ExitError
	if errors.As(c.err, &exit) {
		c.t.Fatalf("the process ended badly at SIGTERM: %v", c.err)
	}
}
