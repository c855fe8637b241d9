// Package examples_test runs the examples as whole programs, on a broker and a
// PostgreSQL of their own, with repeats by the producer and a SIGKILL in between.
package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const payments = 200

func TestHandler(t *testing.T)    { paysOnce(t, nothing, build(t, "./handler")) }
func TestOwnLoop(t *testing.T)    { paysOnce(t, nothing, build(t, "./own-loop")) }
func TestOwnLoopSQL(t *testing.T) { paysOnce(t, byCommand, build(t, "./own-loop-sql")) }
func TestConfluent(t *testing.T)  { paysOnce(t, migrate, build(t, "./confluent")) }
func TestWatermill(t *testing.T)  { paysOnce(t, migrate, build(t, "./watermill")) }
func TestPython(t *testing.T)     { paysOnce(t, migrate, python(t), "python/main.py") }

// What makes Semel's tables, for a program that doesn't itself.
func nothing(*testing.T, string) {}

func byCommand(t *testing.T, database string) {
	run(t, os.Environ(), semelBinary(t), "migrate", "--database", database)
}

func migrate(t *testing.T, database string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := postgres.Migrate(t.Context(), c, postgres.MigrateConfig{}); err != nil {
		t.Fatal(err)
	}
}

// paysOnce runs a program over payments of which a quarter is sent twice, kills
// it, starts it again, and compares the balance.
func paysOnce(t *testing.T, prepare func(t *testing.T, database string), program string, args ...string) {
	t.Parallel()
	broker, _ := testenv.OwnBroker(t, map[string]int32{"payments": 2})
	database := testenv.Postgres(t)
	env := append(os.Environ(), "KAFKA_BROKERS="+broker.Addr(), "DATABASE_URL="+database)
	prepare(t, database)
	send(t, broker.Addr(), 0, payments/2)

	first := start(t, env, program, args...)
	until(t, database, "some payments are in", func(sum int64) bool { return sum > 0 })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	send(t, broker.Addr(), payments/2, payments)
	second := start(t, env, program, args...)
	want := int64(payments * (payments + 1) / 2)
	until(t, database, fmt.Sprintf("the balance is %d", want), func(sum int64) bool { return sum >= want })
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = second.Wait()
	if sum := balance(t, database); sum != want {
		t.Errorf("the balance is %d, %d was sent", sum, want)
	}
}

func TestNoCode(t *testing.T) {
	t.Parallel()
	broker, _ := testenv.OwnBroker(t, map[string]int32{"orders": 1})
	database := testenv.Postgres(t)
	semel := semelBinary(t)
	env := append(os.Environ(), "KAFKA_BROKERS="+broker.Addr(), "DATABASE_URL="+database)
	table, err := os.ReadFile("no-code/orders.sql")
	if err != nil {
		t.Fatal(err)
	}
	ask[string](t, database, string(table)+"; SELECT ''")
	run(t, env, semel, "migrate", "no-code/semel.yaml")
	run(t, env, semel, "send", "orders", "no-code/orders.jsonl", "--new-id", "--brokers", broker.Addr())
	run(t, env, semel, "check", "no-code/semel.yaml")
	out, err := command(env, semel, "run", "no-code/semel.yaml", "--until-caught-up").CombinedOutput()
	if code := exitCode(err); code != 1 { // one order isn't a number: buried
		t.Fatalf("exit code %d: %s", code, out)
	}
	got := ask[string](t, database, `SELECT string_agg(id || ' ' || customer || ' ' || total || ' v' || version, ', ' ORDER BY id) FROM orders`)
	if want := "2 Blaise 7.00 v3, 9007199254740993 Ada 12.50 v1"; got != want {
		t.Errorf("rows: %s\nwant: %s", got, want)
	}
	if n := ask[int](t, database, `SELECT count(*)::int FROM semel.dead_letter WHERE class = 'value'`); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// send sends payments from..to, and every fourth of them twice: a new record
// with the same message ID.
func send(t *testing.T, brokers string, from, to int) {
	t.Helper()
	sendEvery(t, brokers, from, to, 4)
}

// sendEvery sends payments, and each one of repeats twice; 0: none.
func sendEvery(t *testing.T, brokers string, from, to, repeats int) {
	t.Helper()
	s, err := kafka.NewSender(kafka.SenderConfig{Brokers: []string{brokers}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ms []semel.Message
	for i := from; i < to; i++ {
		m := semel.Message{
			Topic: "payments", Key: fmt.Appendf(nil, "account-%d", i%7),
			Value:   fmt.Appendf(nil, `{"account": "account-%d", "amount": %d}`, i%7, i+1),
			Headers: []semel.Header{{Name: "message-id", Value: fmt.Appendf(nil, "payment-%d", i)}},
		}
		ms = append(ms, m)
		if repeats > 0 && i%repeats == 0 {
			ms = append(ms, m)
		}
	}
	for _, err := range s.Send(t.Context(), ms) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func build(t *testing.T, what string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", bin, what).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", what, err, out)
	}
	return bin
}

// python is an interpreter that has the example's packages.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SEMEL_EXAMPLES_PYTHON")
	if path == "" {
		t.Fatal("SEMEL_EXAMPLES_PYTHON names no interpreter with python/requirements.txt: make examples brings one")
	}
	return path
}

// semelBinary is the daemon, built from the module above.
func semelBinary(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "semel")
	c := exec.Command("go", "build", "-o", bin, "./cmd/semel")
	c.Dir = ".."
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("go build ./cmd/semel: %v\n%s", err, out)
	}
	return bin
}

func command(env []string, program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Env = env
	return c
}

func run(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	if out, err := command(env, program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func exitCode(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return 0
}

func start(t *testing.T, env []string, program string, args ...string) *exec.Cmd {
	t.Helper()
	var log bytes.Buffer
	c := command(env, program, args...)
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", program, log.String())
		}
	})
	return c
}

func until(t *testing.T, database, what string, fact func(sum int64) bool) {
	t.Helper()
	untilTrue(t, what, func() bool { return fact(balance(t, database)) })
}

func untilTrue(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !fact(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func balance(t *testing.T, database string) int64 {
	t.Helper()
	if !ask[bool](t, database, `SELECT to_regclass('account') IS NOT NULL`) {
		return 0
	}
	return ask[int64](t, database, `SELECT coalesce(sum(balance), 0)::bigint FROM account`)
}

func ask[T any](t *testing.T, database, sql string) (v T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	c, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	// the simple protocol takes several statements; the last one's row counts
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	last := results[len(results)-1]
	if err := c.TypeMap().Scan(last.FieldDescriptions[0].DataTypeOID, last.FieldDescriptions[0].Format, last.Rows[0][0], &v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}
