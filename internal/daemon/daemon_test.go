package daemon_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

// parse makes a file with one route, from the topic into table orders.
func parse(t *testing.T, database, listen, topic string) *config.File {
	t.Helper()
	f, err := config.Parse("semel.yaml", fmt.Appendf(nil, `
kafka: {brokers: %q}
database: %q
server: {listen: %q}
routes:
  - name: orders
    consumer: %q
    from: {topics: [%q]}
    id: {fields: [value.no]}
    to: {table: orders, write: insert}
`, testenv.Kafka(t), database, listen, topic, topic), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func execute(t *testing.T, database, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, topic string, values ...string) {
	t.Helper()
	s, err := kafka.NewSender(kafka.SenderConfig{Brokers: testenv.Brokers(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ms []semel.Message
	for _, v := range values {
		ms = append(ms, semel.Message{Topic: topic, Value: []byte(v)})
	}
	for _, err := range s.Send(t.Context(), ms) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// await asks the path until the answer begins so.
func await(t *testing.T, address, path, begins string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	last := ""
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		res, err := client.Get("http://" + address + path)
		if err != nil {
			continue
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if last = fmt.Sprintf("%d %s", res.StatusCode, b); strings.HasPrefix(last, begins) {
			return
		}
	}
	t.Fatalf("%s never began with %q; last: %s", path, begins, last)
}

func TestAnOutageIsRedAndWaitedOut(t *testing.T) {
	t.Parallel()
	pg := testenv.OwnPostgres(t, nil)
	topic := testenv.Topic(t, 1)
	execute(t, pg.URL(), "CREATE TABLE orders (no integer PRIMARY KEY)")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()

	soft, drain := context.WithCancel(t.Context())
	defer drain()
	type end struct {
		daemon.Result
		error
	}
	ended := make(chan end, 1)
	go func() {
		r, err := daemon.Run(t.Context(), soft, daemon.Config{File: parse(t, pg.URL(), address, topic), Logger: slog.New(slog.DiscardHandler)})
		ended <- end{r, err}
	}()
	await(t, address, "/health", "200 ok")
	pg.Kill()
	send(t, topic, `{"no": 1}`, `{"no": 2}`)
	await(t, address, "/health", "503 orders: outage")
	await(t, address, "/livez", "200")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, address, "/health", "200 ok")
	await(t, address, "/metrics", "200") // it answers all the while

	again, err := daemon.Run(t.Context(), t.Context(), daemon.Config{
		File: parse(t, pg.URL(), "", topic), UntilCaughtUp: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	drain()
	first := <-ended
	if first.error != nil {
		t.Fatal(first.error)
	}
	both := first.Tallies[0].Accounts.Plus(again.Tallies[0].Accounts)
	if both.Settled.Count != 2 || first.Buried() != 0 || again.Buried() != 0 || len(first.Halted) != 0 {
		t.Errorf("after an outage: %+v and %+v", first.Result, again)
	}
}
