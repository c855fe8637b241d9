package lab_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/lab"
)

// What a client hears of a COMMIT, and what the database did.
func TestPostgresProxyFaults(t *testing.T) {
	for _, c := range []struct {
		do   lab.Action
		done bool
		ok   bool
	}{{lab.CutBefore, false, false}, {lab.LoseAnswer, true, false}, {lab.HoldAnswer, true, false}, {lab.Hold, true, true}} {
		t.Run(c.do.String(), func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t)
			p, err := lab.NewPostgresProxy(url)
			must(t, err)
			defer p.Close()
			direct, err := pgx.Connect(within(t), url)
			must(t, err)
			defer direct.Close(context.Background())
			_, err = direct.Exec(within(t), "CREATE TABLE r (n int)")
			must(t, err)
			i := p.Inject(lab.Fault{At: lab.IsCommit, Do: c.do, Skip: 1})
			conn, err := pgx.Connect(within(t), p.URL())
			must(t, err)
			defer conn.Close(context.Background())
			insert := func() error {
				return pgx.BeginFunc(within(t), conn, func(tx pgx.Tx) error {
					_, err := tx.Exec(within(t), "INSERT INTO r VALUES (1)")
					return err
				})
			}
			must(t, insert())
			go func() {
				if i.Wait(within(t), 1) == nil {
					i.Release()
				}
			}()
			if err := insert(); (err == nil) != c.ok {
				t.Errorf("the client heard %v", err)
			}
			var n int
			must(t, direct.QueryRow(within(t), "SELECT count(*) FROM r").Scan(&n))
			if done := n == 2; done != c.done || i.Fired() != 1 {
				t.Errorf("%d rows, fired %d times", n, i.Fired())
			}
		})
	}
}

// A connection that ends before the answer takes no firing with it: the fault waits for the next.
func TestCutBeforeTheAnswerIsNoFiring(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	p, err := lab.NewPostgresProxy(url)
	must(t, err)
	defer p.Close()
	i := p.Inject(lab.Fault{At: func(f lab.Frame) bool { return f.Kind == "Query" }, Do: lab.LoseAnswer})
	ask := func(sql string) error {
		conn, err := pgx.Connect(within(t), p.URL())
		must(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(within(t), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	direct, err := pgx.Connect(within(t), url)
	must(t, err)
	defer direct.Close(context.Background())
	_, err = direct.Exec(within(t), "SELECT pg_advisory_lock(7)")
	must(t, err)
	asked := make(chan error, 1)
	go func() { asked <- ask("SELECT pg_advisory_lock(7)") }()
	until(t, "the server has the request", func() bool {
		var waits bool
		err := direct.QueryRow(within(t), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits)
		return err == nil && waits
	})
	p.Cut()
	if err := <-asked; err == nil || i.Fired() != 0 {
		t.Fatalf("heard %v, fired %d times", err, i.Fired())
	}
	if err := ask("SELECT 1"); err == nil || i.Fired() != 1 {
		t.Errorf("the next one heard %v, fired %d times", err, i.Fired())
	}
}

// A request whose answer is lost was executed; one that is cut was not.
func TestKafkaProxyFaults(t *testing.T) {
	for _, c := range []struct {
		do   lab.Action
		done bool
	}{{lab.CutBefore, false}, {lab.LoseAnswer, true}} {
		t.Run(c.do.String(), func(t *testing.T) {
			t.Parallel()
			p, err := lab.NewKafkaProxy(testenv.Brokers(t)[0])
			must(t, err)
			defer p.Close()
			cl, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...), kgo.Dialer(p.Dial), kgo.RequestRetries(0), kgo.RetryTimeout(time.Second))
			must(t, err)
			defer cl.Close()
			name := testenv.Unique(t)
			i := p.Inject(lab.Fault{At: lab.Is(kmsg.CreateTopics.Name()), Do: c.do, Times: -1})
			if _, err := kadm.NewClient(cl).CreateTopic(within(t), 1, -1, nil, name); err == nil {
				t.Error("the client heard that it was done")
			}
			if i.Fired() == 0 {
				t.Error("it never fired")
			}
			i.Remove()
			_, err = kadm.NewClient(cl).CreateTopic(within(t), 1, -1, nil, name)
			if done := err == kerr.TopicAlreadyExists; done != c.done {
				t.Errorf("created again: %v", err)
			}
			kadm.NewClient(cl).DeleteTopic(within(t), name)
		})
	}
}

// Silence is no cut: what was held arrives when it ends.
func TestSilenceHoldsAndLetsGo(t *testing.T) {
	t.Parallel()
	p, err := lab.NewPostgresProxy(testenv.Postgres(t))
	must(t, err)
	defer p.Close()
	conn, err := pgx.Connect(within(t), p.URL())
	must(t, err)
	defer conn.Close(context.Background())
	p.Silence(true)
	answered := make(chan error, 1)
	go func() { _, err := conn.Exec(within(t), "SELECT 1"); answered <- err }()
	select {
	case <-answered:
		t.Fatal("answered in silence")
	case <-time.After(100 * time.Millisecond):
	}
	p.Speak()
	must(t, <-answered)
}
