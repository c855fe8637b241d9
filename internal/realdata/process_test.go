package realdata_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/semelhq/semel/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.Close()
	os.RemoveAll(built.dir)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines left over after the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// limit bounds one process.
const limit = 5 * time.Minute

// input is a file of the whole set if SEMEL_REAL_DATA names its folder, else of
// the small cut.
func input(name string) string {
	dir := os.Getenv("SEMEL_REAL_DATA")
	if dir == "" {
		dir = "testdata"
	}
	return filepath.Join(dir, name)
}

// whole is whether the input is more than a cut.
func whole() bool { return os.Getenv("SEMEL_REAL_DATA") != "" }

// expected asks digest.py for number and digest of the rows of a file.
func expected(t *testing.T, of, file string) (rows int64, digest string) {
	t.Helper()
	out, err := exec.CommandContext(within(t), "python3", "digest.py", of, file).Output()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		t.Fatalf("digest.py: %v\n%s", err, failed.Stderr)
	case err != nil:
		t.Fatalf("no python3 (`make setup` brings it): %v", err)
	}
	if _, err := fmt.Sscan(string(out), &rows, &digest); err != nil {
		t.Fatalf("digest.py said %q", out)
	}
	return rows, digest
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// built is the command, built once for all tests.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "semel-realdata-*"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.dir, "../../cmd/semel")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "semel")
}

// station is a database, a topic, and a file with routes between them.
type station struct {
	t      *testing.T
	topic  string
	tables []string
	db     *pgx.Conn
	env    []string
	semel  string
	random *rand.Rand
	sent   counts
}

// counts is what semel send --json prints.
type counts struct{ Lines, Repeats, Sent int64 }

// newStation makes tables by SQL and a file of routes. In the routes TOPIC
// stands for the topic, which is also a prefix for names of consumers.
func newStation(t *testing.T, ddl, routes string, tables ...string) *station {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	url := testenv.Postgres(t)
	s := &station{t: t, topic: testenv.Unique(t), tables: tables, semel: binary(t), random: rand.New(rand.NewPCG(seed, seed))}
	file := filepath.Join(t.TempDir(), "semel.yaml")
	head := "kafka: {brokers: \"${KAFKA_BROKERS}\"}\ndatabase: ${DATABASE_URL}\nserver: {listen: \"\"}\nroutes:\n"
	if err := os.WriteFile(file, []byte(head+strings.ReplaceAll(routes, "TOPIC", s.topic)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), "KAFKA_BROKERS="+testenv.Kafka(t), "DATABASE_URL="+url, "SEMEL_CONFIG="+file)
	s.db = s.connect(url)
	s.exec(s.db, ddl)
	return s
}

func (s *station) connect(url string) *pgx.Conn {
	s.t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	c, err := pgx.ConnectConfig(within(s.t), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (s *station) exec(c *pgx.Conn, sql string) {
	s.t.Helper()
	if _, err := c.Exec(within(s.t), sql); err != nil {
		s.t.Fatal(err)
	}
}

// run runs a command to its end, wants one of the exit codes, and answers what
// it printed.
func (s *station) run(codes []int, args ...string) []byte {
	s.t.Helper()
	cmd := s.command(within(s.t), args...)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		s.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); !slices.Contains(codes, got) {
		s.t.Fatalf("semel %s: exit code %d, want one of %d\n%s%s", strings.Join(args, " "), got, codes, out, cmd.Stderr)
	}
	return out
}

func (s *station) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.semel, args...)
	cmd.Env = s.env
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

// send sends a file to the topic.
func (s *station) send(file string, more ...string) {
	s.t.Helper()
	out := s.run([]int{0}, append([]string{"send", s.topic, file, "--json"}, more...)...)
	if err := json.Unmarshal(out, &s.sent); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// settle runs the routes until all is settled. On the way it kills the process:
// first inside its first transaction, before a locked table; then while it
// starts, and at so many random places in the log, every second time inside a
// transaction again. A kill counts only if work was left. Few messages may be
// settled before all kills have come; many are not.
func (s *station) settle(kills int, codes ...int) {
	s.t.Helper()
	began := time.Now()
	total := s.sent.Sent * int64(len(s.tables))
	places := make([]int64, kills)
	for i := range places {
		places[i] = s.random.Int64N(total / 2)
	}
	slices.Sort(places)
	free, inside := 0, 0
	count := func(n *int, left bool) {
		if left {
			*n++
		}
	}
	unlock := s.lock() // before it starts, so that nothing is settled yet
	count(&inside, s.kill(total, s.stuck))
	unlock()
	if inside == 0 {
		s.t.Error("the kill inside the first transaction left no work")
	}
	count(&free, s.kill(total, func(func() bool) bool { s.wait(100 * time.Millisecond); return true }))
	for i, place := range places {
		reach := func(over func() bool) bool {
			s.until(func() bool { return over() || s.settled() >= place })
			return !over()
		}
		if i%2 == 0 {
			count(&free, s.kill(total, func(over func() bool) bool {
				s.wait(20 * time.Millisecond)
				return reach(over)
			}))
			continue
		}
		unlock := func() {}
		count(&inside, s.kill(total, func(over func() bool) bool {
			if !reach(over) {
				return false
			}
			unlock = s.lock()
			return s.stuck(over)
		}))
		unlock()
	}
	if free == 0 && total > 1000 {
		s.t.Error("no kill outside of a locked transaction while work was left")
	}
	killed := time.Since(began)
	out := s.run(codes, "run", "--until-caught-up")
	s.t.Logf("%d messages for %d tables; killed with work left: %d anywhere, %d inside a transaction, in %.1f s; the last run %.1f s\n%s",
		s.sent.Sent, len(s.tables), free, inside, killed.Seconds(), (time.Since(began) - killed).Seconds(), out)
	if got := s.settled(); got != total {
		s.t.Errorf("%d messages settled, want %d", got, total)
	}
}

// kill starts the routes, kills the process with SIGKILL when its moment has
// come, and says whether that left work. over says that the process has ended by
// itself, for want of work; a moment that finds this answers false.
func (s *station) kill(total int64, moment func(over func() bool) bool) bool {
	s.t.Helper()
	cmd := s.command(within(s.t), "run", "--until-caught-up")
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	over := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	hit := moment(over)
	cmd.Process.Kill()
	<-ended
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() && status.ExitStatus() > 1 {
		s.t.Fatalf("semel run: exit code %d\n%s", status.ExitStatus(), cmd.Stderr)
	}
	return hit && status.Signaled() && s.settled() < total
}

// wait picks a moment for a kill, within d.
func (s *station) wait(d time.Duration) { time.Sleep(time.Duration(s.random.Int64N(int64(d)))) }

// until waits for a fact.
func (s *station) until(fact func() bool) {
	s.t.Helper()
	for late := time.Now().Add(limit); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			s.t.Fatalf("waited in vain; settled: %d", s.settled())
		}
	}
}

// settled counts what lies below the watermarks of all routes.
func (s *station) settled() (n int64) {
	s.t.Helper()
	err := s.db.QueryRow(within(s.t), "SELECT coalesce(sum(next_offset), 0)::bigint FROM semel.watermark").Scan(&n)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return 0 // not even started
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// lock keeps everybody from writing to the tables. Unlocking lets a killed one's
// session find out that it is alone.
func (s *station) lock() (unlock func()) {
	s.t.Helper()
	c := s.connect(s.db.Config().ConnString())
	s.exec(c, "BEGIN")
	s.exec(c, "LOCK TABLE "+strings.Join(s.tables, ", ")+" IN SHARE MODE")
	return func() { c.Close(context.Background()) }
}

// stuck waits until a process waits for a locked table.
func (s *station) stuck(over func() bool) bool {
	s.t.Helper()
	s.until(func() (waits bool) {
		err := s.db.QueryRow(within(s.t), "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = any($1::regclass[]) AND NOT granted)", s.tables).Scan(&waits)
		if err != nil {
			s.t.Fatal(err)
		}
		return waits || over()
	})
	return !over()
}

// audit proves the accounts with both commands and answers the outcomes of a
// route.
func (s *station) audit() map[string]map[string]int64 {
	s.t.Helper()
	s.run([]int{0}, "audit")
	out := json.NewDecoder(bytes.NewReader(s.run([]int{0}, "audit", "--deep", "--json")))
	sums := map[string]map[string]int64{}
	for out.More() {
		var p struct {
			Route    string
			Settled  int64
			Lost     int64
			Read     *int64
			Outcomes map[string]int64
		}
		if err := out.Decode(&p); err != nil {
			s.t.Fatal(err)
		}
		if p.Lost != 0 || p.Settled == 0 || p.Read == nil || *p.Read != p.Settled {
			s.t.Errorf("audit: %+v", p)
		}
		if sums[p.Route] == nil {
			sums[p.Route] = map[string]int64{}
		}
		for o, n := range p.Outcomes {
			if n > 0 {
				sums[p.Route][o] += n
			}
		}
	}
	return sums
}
