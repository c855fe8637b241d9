package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/postgres"
)

// env is what everything here runs on: a PostgreSQL of our own, and a real Kafka.
type env struct {
	server  *devenv.Postgres
	pool    *pgxpool.Pool
	brokers []string // none: variants that need Kafka are left out
	broker  int      // its process, if it is on this machine
	admin   *kadm.Client
	kafka   *kgo.Client
	serial  int
	rings   *postgres.Rings // of what runs now; nil: each lane has its own
}

// settings are those that pg-limits were measured with: nothing is durable later
// than it says.
var settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "2GB", "max_wal_size": "12GB", "checkpoint_timeout": "15min", "jit": "off",
	"track_commit_timestamp": "off", "max_connections": "50",
}

const tables = `
	DROP TABLE IF EXISTS orders, states;
	CREATE TABLE orders (id uuid PRIMARY KEY, account text, amount bigint, at timestamptz, payload jsonb) WITH (autovacuum_enabled = off);
	CREATE TABLE states (id uuid PRIMARY KEY, account text, amount bigint, at timestamptz, payload jsonb, version bigint) WITH (autovacuum_enabled = off)`

func start(ctx context.Context, dir string, brokers string) (*env, error) {
	server, err := devenv.StartPostgres(ctx, devenv.PostgresConfig{Dir: dir, Settings: settings})
	if err != nil {
		return nil, err
	}
	e := &env{server: server}
	if e.pool, err = pgxpool.New(ctx, server.URL()); err != nil {
		return e, err
	}
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return e, err
	}
	defer conn.Release()
	if _, err := postgres.Migrate(ctx, conn.Conn(), postgres.MigrateConfig{}); err != nil {
		return e, err
	}
	if brokers == "" {
		return e, nil
	}
	e.brokers = strings.Split(brokers, ",")
	e.kafka, err = kgo.NewClient(kgo.SeedBrokers(e.brokers...), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(100_000),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return e, err
	}
	e.admin = kadm.NewClient(e.kafka)
	e.broker = brokerProcess(e.brokers[0])
	return e, nil
}

func (e *env) close() {
	if e.kafka != nil {
		e.kafka.Close()
	}
	if e.pool != nil {
		e.pool.Close()
	}
	e.server.Stop(context.Background())
}

// name is one that nothing had before.
func (e *env) name(of string) string {
	e.serial++
	return fmt.Sprintf("%s-%d-%d", of, os.Getpid(), e.serial)
}

// fresh empties the tables and takes what a checkpoint would do out of the run.
func (e *env) fresh(ctx context.Context) error {
	return e.exec(ctx, tables, "CHECKPOINT")
}

func (e *env) exec(ctx context.Context, sql ...string) error {
	for _, s := range sql {
		if _, err := e.pool.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// check compares the table with what was sent.
func (e *env) check(ctx context.Context, table string, s *stream) error {
	var rows, ids int
	var sum int64
	err := e.pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id), coalesce(sum(amount), 0)::bigint FROM "+table).Scan(&rows, &ids, &sum)
	if err == nil && (rows != s.rows || ids != s.rows || sum != s.sum) {
		err = fmt.Errorf("%s has %d rows, %d IDs, sum %d; %d rows, sum %d were sent", table, rows, ids, sum, s.rows, s.sum)
	}
	return err
}

// topic makes a topic and sends the logs to it.
func (e *env) topic(ctx context.Context, name string, logs [][]semel.Message) error {
	if _, err := e.admin.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		return err
	}
	return e.send(ctx, name, logs)
}

func (e *env) send(ctx context.Context, name string, logs [][]semel.Message) error {
	var failed error
	for i := 0; ; i++ {
		more := false
		for p, log := range logs {
			if i < len(log) {
				more = true
				e.kafka.Produce(ctx, record(name, p, &log[i]), func(_ *kgo.Record, err error) {
					if err != nil {
						failed = err
					}
				})
			}
		}
		if !more {
			break
		}
	}
	return errors.Join(e.kafka.Flush(ctx), failed)
}

func record(topic string, partition int, m *semel.Message) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: int32(partition), Key: m.Key, Value: m.Value}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return r
}

// usage is CPU time used until now.
type usage struct{ client, server, broker time.Duration }

func (u usage) minus(v usage) usage {
	return usage{u.client - v.client, u.server - v.server, u.broker - v.broker}
}

func (e *env) usage() usage {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	u := usage{client: time.Duration(r.Utime.Nano() + r.Stime.Nano())}
	u.server = processTime(e.server.PID(), true)
	for _, pid := range children(e.server.PID()) {
		u.server += processTime(pid, false)
	}
	if e.broker != 0 {
		u.broker = processTime(e.broker, false)
	}
	return u
}

// stat are the fields of /proc/PID/stat after the command.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// processTime is a process's CPU time, to 10 ms; with that of children that have
// ended, if so asked. 0 where there is no /proc.
func processTime(pid int, ended bool) (t time.Duration) {
	f := stat(pid)
	if len(f) < 15 {
		return 0
	}
	last := 13
	if ended {
		last = 15
	}
	for _, s := range f[11:last] {
		n, _ := strconv.Atoi(s)
		t += time.Duration(n) * 10 * time.Millisecond
	}
	return t
}

func children(parent int) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if f := stat(pid); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// brokerProcess finds the broker that scripts/kafka/kafka.sh has started.
func brokerProcess(addr string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		args := strings.Split(string(b), "\x00")
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-Dsemel.node=") })
		if i < 0 {
			continue
		}
		port, _ := os.ReadFile(filepath.Join(strings.TrimPrefix(args[i], "-Dsemel.node="), "port"))
		if strings.HasSuffix(addr, ":"+strings.TrimSpace(string(port))) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return pid
		}
	}
	return 0
}
