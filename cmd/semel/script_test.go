package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write what the scripts got over what they expect")

// TestMain makes this binary a stranger's shell: semel, and a few small tools
// to look at what it did.
func TestMain(m *testing.M) {
	testscript.Main(closing{m}, map[string]func(){
		"semel":   main,
		"topic":   tool(makeTopic),
		"records": tool(printRecords),
		"trim":    tool(trimTopic),
		"sql":     tool(printRows),
		"await":   tool(awaitFile),
		"get":     tool(get),

		"sql-until": tool(awaitRows),
		"as-runner": asRunner,
		"commit":    tool(commitOffset),
		"member":    tool(beMember),
		"standby":   tool(beStandby),
	})
}

// closing stops what the tests share, and looks for goroutines left over.
type closing struct{ m *testing.M }

func (c closing) Run() int {
	code := c.m.Run()
	testenv.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left over after the tests:", err)
			return 1
		}
	}
	return code
}

// TestScripts runs the sessions of testdata/script. Each has a database of its
// own in DATABASE_URL, a broker that all share in KAFKA_BROKERS, and a topic
// name of its own in TOPIC.
func TestScripts(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("KAFKA_BROKERS", brokers)
			env.Setenv("TOPIC", testenv.Unique(t))
			env.Setenv("SEMEL_POSTGRES_BIN", os.Getenv("SEMEL_POSTGRES_BIN"))
			database := testenv.Postgres(t)
			env.Setenv("DATABASE_URL", database)
			none, err := url.Parse(database)
			if err != nil {
				return err
			}
			none.Path = "/not_there"
			env.Setenv("NO_DATABASE_URL", none.String())
			env.Setenv("LISTEN", freeAddress(t))
			env.Setenv("RUNNER", "runner_"+strings.ToLower(rand.Text()[:8]))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// exits runs a command and wants an exact exit code: exits 2 semel …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND …")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if want, _ := strconv.Atoi(args[0]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func tool(f func(ctx context.Context, args []string) error) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := f(ctx, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// makeTopic: topic NAME PARTITIONS [SETTING=VALUE …]
func makeTopic(ctx context.Context, args []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("KAFKA_BROKERS")))
	if err != nil {
		return err
	}
	defer cl.Close()
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	settings := map[string]*string{}
	for _, kv := range args[2:] {
		k, v, _ := strings.Cut(kv, "=")
		settings[k] = &v
	}
	_, err = kadm.NewClient(cl).CreateTopic(ctx, int32(n), 1, settings, args[0])
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// trimTopic: trim TOPIC PARTITION OFFSET deletes what lies below, as retention does.
func trimTopic(ctx context.Context, args []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("KAFKA_BROKERS")))
	if err != nil {
		return err
	}
	defer cl.Close()
	partition, err := strconv.ParseInt(args[1], 10, 32)
	if err != nil {
		return err
	}
	below, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	at := kadm.Offsets{}
	at.AddOffset(args[0], int32(partition), below, -1)
	deleted, err := kadm.NewClient(cl).DeleteRecords(ctx, at)
	if err != nil {
		return err
	}
	return deleted.Error()
}

// printRecords: records TOPIC prints partition, key, headers and value of all.
func printRecords(ctx context.Context, args []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("KAFKA_BROKERS")), kgo.ConsumeTopics(args[0]))
	if err != nil {
		return err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, args[0])
	if err != nil {
		return err
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	for left > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) {
			left--
			var hs []string
			for _, h := range r.Headers {
				hs = append(hs, h.Key+"="+string(h.Value))
			}
			fmt.Printf("%d key=%s headers=%s value=%s\n", r.Partition, r.Key, strings.Join(hs, ","), r.Value)
		})
	}
	return nil
}

// printRows: sql QUERY, or sql @FILE, prints the rows, columns apart by a bar.
func printRows(ctx context.Context, args []string) error {
	query := args[0]
	if file, ok := strings.CutPrefix(query, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		query = string(text)
	}
	got, err := rowsOf(ctx, query)
	fmt.Print(got)
	return err
}

func rowsOf(ctx context.Context, query string) (string, error) {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, query).ReadAll()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, r := range results {
		for _, row := range r.Rows {
			fmt.Fprintf(&b, "%s\n", bytes.Join(row, []byte("|")))
		}
	}
	return b.String(), nil
}

// awaitRows: sql-until QUERY TEXT asks until the answer is the text.
func awaitRows(ctx context.Context, args []string) error {
	for {
		got, err := rowsOf(ctx, args[0])
		if err != nil {
			return err
		}
		if strings.TrimSpace(got) == args[1] {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, last answer: %s", ctx.Err(), got)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// asRunner: as-runner COMMAND … runs a command as the database's role RUNNER.
func asRunner() {
	u, err := url.Parse(os.Getenv("DATABASE_URL"))
	if err == nil {
		u.User = url.User(os.Getenv("RUNNER"))
		os.Setenv("DATABASE_URL", u.String())
		var path string
		if path, err = exec.LookPath(os.Args[1]); err == nil {
			err = syscall.Exec(path, os.Args[1:], os.Environ())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// commitOffset: commit GROUP TOPIC PARTITION OFFSET, as another program does.
func commitOffset(ctx context.Context, args []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("KAFKA_BROKERS")))
	if err != nil {
		return err
	}
	defer cl.Close()
	partition, err := strconv.ParseInt(args[2], 10, 32)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return err
	}
	os := kadm.Offsets{}
	os.AddOffset(args[1], int32(partition), at, -1)
	return kadm.NewClient(cl).CommitAllOffsets(ctx, args[0], os)
}

// beMember: member GROUP TOPIC READY is a consumer of another program, until it is
// killed.
func beMember(ctx context.Context, args []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("KAFKA_BROKERS")), kgo.ClientID("other"), kgo.ConsumerGroup(args[0]), kgo.ConsumeTopics(args[1]),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { os.WriteFile(args[2], []byte("ready"), 0o644) }))
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		cl.PollFetches(ctx)
	}
	return nil
}

// beStandby: standby READY connects as a standby does, until it is killed.
func beStandby(ctx context.Context, args []string) error {
	cfg, err := pgconn.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	cfg.RuntimeParams["replication"] = "yes"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll(); err != nil {
		return err
	}
	os.WriteFile(args[0], []byte("ready"), 0o644)
	<-ctx.Done()
	return nil
}

// awaitFile: await FILE [TEXT] waits until the text, or anything, is in it.
func awaitFile(ctx context.Context, args []string) error {
	for {
		b, _ := os.ReadFile(args[0])
		if len(b) > 0 && (len(args) == 1 || bytes.Contains(b, []byte(args[1]))) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; it holds %q", args[0], ctx.Err(), b)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// get: get PATH TEXT asks the server at LISTEN until the answer holds the text,
// and prints it. TOKEN is sent along if it is set.
func get(ctx context.Context, args []string) error {
	last := ""
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+os.Getenv("LISTEN")+args[0], nil)
		if err != nil {
			return err
		}
		if token := os.Getenv("TOKEN"); token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			last = fmt.Sprintf("%d %s", res.StatusCode, b)
			if strings.Contains(last, args[1]) {
				fmt.Print(last)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v, last answer: %s", ctx.Err(), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
