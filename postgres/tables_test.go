package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// newTables are tables named by their topics.
func newTables(t *testing.T, db postgres.Querier, cfg postgres.TableConfig) *postgres.Tables {
	t.Helper()
	ts, err := postgres.NewTables(db, postgres.TablesConfig{TableConfig: cfg, Of: func(topic string) (string, error) { return topic, nil }})
	must(t, err)
	return ts
}

// tablesItems are messages "topic value", decoded.
func tablesItems(ts *postgres.Tables, messages ...[2]string) (items []inbox.Item, all []*inbox.Item) {
	items = make([]inbox.Item, len(messages))
	for i, m := range messages {
		items[i].Message = semel.Message{Topic: m[0], Offset: int64(i), Value: []byte(m[1])}
		all = append(all, &items[i])
	}
	ts.Decode(items)
	return items, all
}

func TestLanesThatWriteManyTablesTakeLocksInOneOrder(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	c := tableConnect(t, url)
	_, err := c.Exec(t.Context(), `CREATE TABLE a (id int PRIMARY KEY, n int)`)
	must(t, err)
	_, err = c.Exec(t.Context(), `CREATE TABLE b (id int PRIMARY KEY, n int)`)
	must(t, err)
	ended := make(chan error)
	for lane := range 2 {
		go func() { ended <- writeBoth(url, lane) }()
	}
	for range 2 {
		must(t, <-ended)
	}
}

// writeBoth writes the same keys of both tables again and again, one lane's
// messages in the other's order turned round.
func writeBoth(url string, lane int) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	looks, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer looks.Close(ctx)
	ts, err := postgres.NewTables(looks, postgres.TablesConfig{
		TableConfig: postgres.TableConfig{Write: postgres.WriteUpsert}, Of: func(topic string) (string, error) { return topic, nil },
	})
	if err != nil {
		return err
	}
	for round := range 60 {
		var ms [][2]string
		for i := range 40 {
			id, topic := i/2, string('a'+rune(i%2))
			if lane == 1 {
				id, topic = 19-i/2, string('b'-rune(i%2))
			}
			ms = append(ms, [2]string{topic, fmt.Sprintf(`{"id":%d,"n":%d}`, id, round)})
		}
		_, all := tablesItems(ts, ms...)
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := ts.Apply(ctx, tableTx{tx: tx}, all); err != nil {
			return fmt.Errorf("lane %d, round %d: %w", lane, round, err)
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

func TestAMessageThatFailsAmongManyTablesIsNamed(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	c, looks := tableConnect(t, url), tableConnect(t, url)
	_, err := c.Exec(t.Context(), `CREATE TABLE a (id int)`)
	must(t, err)
	_, err = c.Exec(t.Context(), `CREATE TABLE b (id int)`)
	must(t, err)
	ts := newTables(t, looks, postgres.TableConfig{Write: postgres.WriteAppend, HaltUnknown: true})
	for at, ms := range map[int][][2]string{
		3: {{"b", `{"id":1}`}, {"a", `{"id":1}`}, {"b", `{"id":2}`}, {"a", `{"id":1,"x":2}`}},
		2: {{"b", `{"id":1}`}, {"a", `{"id":1}`}, {"none", `{"id":2}`}, {"a", `{"id":1}`}},
	} {
		_, all := tablesItems(ts, ms...)
		tx, err := c.Begin(t.Context())
		must(t, err)
		err = ts.Apply(t.Context(), tableTx{tx: tx}, all)
		must(t, tx.Rollback(t.Context()))
		var named *semel.FailedAtError
		var halt *inbox.HaltError
		if !errors.As(err, &named) || named.Index != at || !errors.As(err, &halt) {
			t.Errorf("message %d: %v", at, err)
		}
	}
}

func TestADatabaseThatIsOutIsNoMissingTable(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	c, looks := tableConnect(t, url), tableConnect(t, url)
	must(t, looks.Close(t.Context()))
	ts := newTables(t, looks, postgres.TableConfig{Write: postgres.WriteAppend, ID: []string{"value.id"}})
	items, all := tablesItems(ts, [2]string{"a", `{"id":1}`}, [2]string{"a", `{"id":1}`})
	if items[0].ID == items[1].ID {
		t.Error("two messages that nobody could look at are one")
	}
	tx, err := c.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context())
	var out *semel.OutageError
	if err := ts.Apply(t.Context(), tableTx{tx: tx}, all); !errors.As(err, &out) {
		t.Error(err)
	}
}
