package testenv_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func count(t *testing.T, c *pgx.Conn) (n int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM r").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	for range 2 {
		if _, err := connect(t, testenv.Postgres(t)).Exec(t.Context(), "CREATE TABLE r (n int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKilledPostgresKeepsItsRows(t *testing.T) {
	t.Parallel()
	pg := testenv.OwnPostgres(t, nil)
	if _, err := connect(t, pg.URL()).Exec(t.Context(), "CREATE TABLE r AS SELECT generate_series(1, 1000)"); err != nil {
		t.Fatal(err)
	}
	pg.Kill()
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, connect(t, pg.URL())); n != 1000 {
		t.Errorf("%d rows after the crash, want 1000", n)
	}
}

func TestTopicsAreThereAndApart(t *testing.T) {
	t.Parallel()
	a, b := testenv.Topic(t, 3), testenv.Topic(t, 1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ds, err := kadm.NewClient(cl).ListTopics(t.Context(), a, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(ds[a].Partitions) != 3 || len(ds[b].Partitions) != 1 {
		t.Errorf("%v", ds)
	}
}

func TestOwnBrokerComesBackInPlace(t *testing.T) {
	t.Parallel()
	b, cfg := testenv.OwnBroker(t, map[string]int32{"a": 2})
	addr := b.Addr()
	b.Close()
	b, err := devenv.StartBroker(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Addr() != addr || b.Cluster().TopicInfo("a") == nil {
		t.Errorf("was at %s, is at %s", addr, b.Addr())
	}
}
