package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// daemon is `semel run` as a process of its own.
type daemon struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

const file = `kafka:
  brokers: %s
database: %s
server: {listen: ""}
routes:
  - name: %s
    from: {topics: [%s]}
    id: {fields: [value.id]}
    to: {table: public.orders, write: insert}
`

// config writes a file for a topic.
func (e *env) config(dir, topic string) (string, error) {
	name := filepath.Join(dir, topic+".yaml")
	return name, os.WriteFile(name, fmt.Appendf(nil, file, strings.Join(e.brokers, ","), e.server.URL(), topic, topic), 0o600)
}

func runSemel(ctx context.Context, semel, config string, flags ...string) (*daemon, error) {
	d := &daemon{}
	d.cmd = exec.CommandContext(ctx, semel, append([]string{"run", config}, flags...)...)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	return d, d.cmd.Start()
}

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// memory is the most that the daemon ever had, in bytes, while it runs.
func (d *daemon) memory() int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if m := peak.FindSubmatch(b); m != nil {
		kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
		return kb << 10
	}
	return 0
}

// backlog is a topic of n messages of about size bytes each.
func (e *env) backlog(ctx context.Context, n, size int) (topic string, err error) {
	topic = e.name("backlog")
	const piece = 50_000
	for from := 0; from < n; from += piece {
		s := newStream("", uint64(from+17), min(piece, n-from), 0)
		for i := range s.orders {
			if pad := size - 319; pad > 0 {
				s.orders[i].payload = `{"note":"` + strings.Repeat("x", pad+180) + `"}`
			}
		}
		part := s.logs(topic)
		if from == 0 {
			err = e.topic(ctx, topic, part)
		} else {
			err = e.send(ctx, topic, part)
		}
		if err != nil {
			return topic, err
		}
	}
	return topic, nil
}

// peakMemory lets `semel run` work off a backlog alone, and says the most memory
// it had and how long it took.
func (e *env) peakMemory(ctx context.Context, semel, dir, topic string, n int) (most int64, took time.Duration, err error) {
	if err := e.fresh(ctx); err != nil {
		return 0, 0, err
	}
	name, err := e.config(dir, topic)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	d, err := runSemel(ctx, semel, name, "--until-caught-up", "--log-level", "warn")
	if err != nil {
		return 0, 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- d.cmd.Wait() }()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-tick.C:
			most = max(most, d.memory())
			continue
		case err = <-ended:
		}
		tick.Stop()
		break
	}
	took = time.Since(began)
	if err != nil {
		return most, took, fmt.Errorf("semel run: %w: %s", err, d.out.String())
	}
	var rows int
	if err := e.pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&rows); err != nil || rows != n {
		return most, took, fmt.Errorf("%d rows of %d: %v", rows, n, err)
	}
	return most, took, nil
}

// restart kills `semel run` in the middle of a backlog and starts it again at
// once: how long until the next commit?
func (e *env) restart(ctx context.Context, semel, dir, topic string) (time.Duration, error) {
	if err := e.fresh(ctx); err != nil {
		return 0, err
	}
	name, err := e.config(dir, topic)
	if err != nil {
		return 0, err
	}
	settled := func() (n int64, err error) {
		err = e.pool.QueryRow(ctx, "SELECT coalesce(sum(settled), 0)::bigint FROM semel.watermark WHERE consumer = $1", topic).Scan(&n)
		return n, err
	}
	wait := func(d *daemon, above int64) error {
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
			if n, err := settled(); err != nil || n > above {
				return err
			}
		}
		return fmt.Errorf("nothing was committed in a minute: %s", d.out.String())
	}
	before, err := settled()
	if err != nil {
		return 0, err
	}
	first, err := runSemel(ctx, semel, name, "--log-level", "warn")
	if err != nil {
		return 0, err
	}
	err = wait(first, before+20_000)
	first.cmd.Process.Kill()
	first.cmd.Wait()
	if err != nil {
		return 0, err
	}
	killed := time.Now()
	// What the killed one sent may still be committed.
	for busy := true; busy; {
		err := e.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE starts_with(application_name, 'semel') AND state = 'active')").Scan(&busy)
		if err != nil {
			return 0, err
		}
	}
	at, err := settled()
	if err != nil {
		return 0, err
	}
	second, err := runSemel(ctx, semel, name, "--log-level", "warn")
	if err != nil {
		return 0, err
	}
	err = wait(second, at)
	took := time.Since(killed)
	second.cmd.Process.Kill()
	second.cmd.Wait()
	return took, err
}
