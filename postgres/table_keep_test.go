package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// send settles messages as one batch: key=value, key= for a tombstone, and after
// a bar the version in a header.
func (b *tableBench) send(messages ...string) []inbox.Item {
	b.t.Helper()
	items := make([]inbox.Item, len(messages))
	for i, s := range messages {
		s, version, versioned := strings.Cut(s, "|")
		key, value, _ := strings.Cut(s, "=")
		m := semel.Message{Topic: "t", Offset: b.offset, Key: []byte(key)}
		if value != "" {
			m.Value = []byte(value)
		}
		if versioned {
			m.Headers = []semel.Header{{Name: "ver", Value: []byte(version)}}
		}
		items[i].Message = m
		b.offset++
	}
	b.table.Decode(items)
	if err := b.isolate(items); err != nil {
		b.t.Fatal(err)
	}
	return items
}

func (b *tableBench) wantRows(sql, want string) {
	b.t.Helper()
	if got := b.ask("SELECT coalesce(string_agg(" + sql + ", ' ' ORDER BY id), '') FROM s"); got != want {
		b.t.Errorf("rows %s, want %s", got, want)
	}
}

func TestMirrorDeletesInTheOrderOfThePartition(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v text, own text DEFAULT 'own')`, postgres.TableConfig{
		Table: "s", Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Columns: map[string]string{"id": "value.id", "v": "value.v"},
	})
	b.want(b.send(`1={"id":1,"v":"a"}`, `2={"id":2,"v":"a"}`, `3=`, `1=`), "oaaa")
	b.wantRows("id || v", "2a")
	b.exec("UPDATE s SET own = 'mine'")
	b.want(b.send(`2=`, `2={"id":2,"v":"b"}`, `1={"id":1,"v":"c"}`, `x=`, `4={"id":4,"v":"d"}`, `4=`), "aaaxoa")
	b.wantRows("id || v || own", "1cown 2bown")
	// Null key and null value.
	items := []inbox.Item{{Message: semel.Message{Topic: "t"}}}
	b.table.Decode(items)
	if items[0].Class != inbox.DeadMissingID {
		t.Errorf("%s, %v", items[0].Class, items[0].Err)
	}
}

func TestMirrorReadsACompositeKeyOfTombstones(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int, "B" text, v int, PRIMARY KEY (id, "B"))`, postgres.TableConfig{
		Table: "s", Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, KeyFormat: sink.KeyJSON,
	})
	b.want(b.send(`{"id":1,"B":"x"}={"id":1,"B":"x","v":1}`, `{"id":1,"B":"y"}={"id":1,"B":"y","v":2}`), "aa")
	b.want(b.send(`{"B":"x","id":1}=`, `{"id":1}=`), "ax")
	b.wantRows(`id || "B" || v`, "1y2")
}

func TestADeletionUnderAVersionLeavesItsRow(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v text, ver bigint, gone timestamptz)`, postgres.TableConfig{
		Table: "s", Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone",
		Columns: map[string]string{"id": "value.id", "v": "value.v", "ver": "headers.ver"},
	})
	const rows = "id || coalesce(v, '-') || ver || CASE WHEN gone > now() - interval '1 hour' THEN 'x' ELSE '' END"
	// A deletion that comes before its row.
	b.want(b.send(`1=|5`, `2={"id":2,"v":"a"}|1`, `3=`), "aax")
	b.want(b.send(`1={"id":1,"v":"late"}|4`, `2=|2`), "sa")
	b.wantRows(rows, "1-5x 2a2x")
	b.want(b.send(`2={"id":2,"v":"late"}|2`, `1={"id":1,"v":"new"}|6`, `1=|6`), "sas")
	b.wantRows(rows, "1new6 2a2x")
}

func TestAPatchSetsWhatItHas(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, a int, b int NOT NULL, c text DEFAULT 'c', CHECK (a < b))`,
		postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep})
	b.want(b.send(`={"id":1,"a":1,"b":2}`, `={"id":1,"b":5}`, `={"id":1,"a":4}`, `={"id":2,"a":1}`, `={"id":1,"b":3}`, `={"id":1,"c":null}`), "aaaxxa")
	b.wantRows("id || ' ' || a || b || coalesce(c, '-')", "1 45-")
	b.want(b.send(`={"id":1}`, `={"id":3,"b":1}`), "aa")
	b.wantRows("id || ' ' || coalesce(a, 0) || b || coalesce(c, '-')", "1 45- 3 01c")
}

func TestAFieldThatIsAbsentIsAnError(t *testing.T) {
	t.Parallel()
	for _, mode := range []postgres.WriteMode{postgres.WriteAppend, postgres.WriteInsert, postgres.WriteUpsert} {
		b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, a int, b int NOT NULL DEFAULT 1)`,
			postgres.TableConfig{Table: "s", Write: mode, Absent: postgres.AbsentError})
		items := b.send(`={"id":1,"a":null,"b":2}`, `={"id":2,"a":1}`, `={"id":3,"b":1}`)
		b.want(items, "axx")
		if items[1].Class != inbox.DeadValue || !strings.Contains(items[1].Err.Error(), `column "b" (value.b): absent`) {
			t.Error(items[1].Err)
		}
	}
}

func TestAMessageAddsToWhatIsStored(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id text PRIMARY KEY, balance numeric(12,2), n int, seen int)`, postgres.TableConfig{
		Table: "s", Write: postgres.WriteUpsert, Combine: []string{"balance", "n"}, Identified: true,
		Columns: map[string]string{"id": "value.id", "balance": "value.amount", "n": "value.n", "seen": "offset"},
	})
	values := []string{`={"id":"a","amount":0.10,"n":1}`, `={"id":"b","amount":"9999999999.98","n":2147483647}`, `={"id":"a","amount":0.20,"n":1}`}
	b.want(b.send(values...), "aaa")
	b.wantRows("id || balance || '/' || n || '/' || seen", "a0.30/2/2 b9999999999.98/2147483647/1")
	// Out of range, also if a later one would bring it back.
	b.want(b.send(`={"id":"b","amount":0.01,"n":0}`, `={"id":"b","amount":0.01,"n":0}`, `={"id":"b","amount":-1,"n":-1}`, `={"id":"b","amount":0,"n":2}`,
		`={"id":"b","amount":0,"n":1}`, `={"id":"a","n":1}`, `={"id":"a","amount":null,"n":1}`, `={"id":"a","amount":0.001,"n":1}`), "axaxaxxx")
	b.wantRows("id || balance || '/' || n", "a0.30/2 b9999999998.99/2147483647")
	b.want(b.send(`={"id":"b","amount":5,"n":0}`, `={"id":"b","amount":-5,"n":0}`), "xa")
	b.want(b.send(`={"id":"c","amount":"9999999999","n":0}`, `={"id":"c","amount":5,"n":0}`, `={"id":"c","amount":-5,"n":0}`), "axa")
	b.wantRows("id || balance || '/' || n", "a0.30/2 b9999999993.99/2147483647 c9999999994.00/0")
	many := make([]string, 3000)
	for i := range many {
		many[i] = fmt.Sprintf(`={"id":"k%d","amount":0.01,"n":%d}`, i%700, i%3)
	}
	b.want(b.send(many...), strings.Repeat("a", 3000))
	b.want(b.send(many...), strings.Repeat("a", 3000))
	if got := b.ask("SELECT count(*) || ' ' || sum(balance) || ' ' || sum(n) FROM s WHERE id LIKE 'k%'"); got != "700 60.00 6000" {
		t.Error(got)
	}
}

// A CHECK on the balance sees the balance, not what is added.
func TestACheckSeesTheResultingRow(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0), owner text NOT NULL); INSERT INTO s VALUES (1, 10, 'o')`,
		postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Combine: []string{"balance"}, Absent: postgres.AbsentKeep, Identified: true})
	b.want(b.send(`={"id":1,"balance":-4}`, `={"id":1,"balance":-7}`, `={"id":1,"balance":5}`, `={"id":1,"balance":-11}`, `={"id":2,"balance":1}`), "axaax")
	b.wantRows("id || ' ' || balance || owner", "1 0o")
	// What another would make good again is refused all the same.
	b.want(b.send(`={"id":1,"balance":-1}`, `={"id":1,"balance":2}`), "xa")
	b.wantRows("id || ' ' || balance || owner", "1 2o")
}

// Several routes write the same keys at the same time, in every order.
func TestWritersOfTheSameKeysNeverDeadlock(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	setup := tableConnect(t, url)
	const ddl = `CREATE TABLE s (id int PRIMARY KEY, v int CHECK (v IS NULL OR v > -100000), w int); INSERT INTO s SELECT n, 0, 0 FROM generate_series(0, 199) n`
	if _, err := setup.PgConn().Exec(context.Background(), ddl).ReadAll(); err != nil {
		t.Fatal(err)
	}
	configs := []postgres.TableConfig{
		{Write: postgres.WriteUpsert},
		{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		{Write: postgres.WriteUpsert, Combine: []string{"v"}},
		{Write: postgres.WriteUpsert, Combine: []string{"v"}, Absent: postgres.AbsentKeep},
	}
	var writers sync.WaitGroup
	for n, cfg := range configs {
		cfg.Table = "s"
		b := &tableBench{t: t, ctx: context.Background(), conn: tableConnect(t, url)}
		var err error
		if b.table, err = postgres.NewTable(b.ctx, b.conn, cfg); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for round := range 15 {
				var values []string
				for i := range 150 {
					id := (i*37 + n*53 + round*11) % 200
					if values = append(values, fmt.Sprintf(`={"id":%d,"v":1,"w":2}`, id)); i%3 == n%3 {
						values[i] = fmt.Sprintf(`={"id":%d,"v":1}`, id)
					}
				}
				items := make([]inbox.Item, len(values))
				for i, v := range values {
					items[i].Message = semel.Message{Topic: "t", Value: []byte(v[1:])}
				}
				b.table.Decode(items)
				if err := b.once(items); err != nil {
					var pg *pgconn.PgError
					if errors.As(err, &pg) {
						t.Errorf("writer %d: %s", n, pg.Code)
					}
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// What somebody else inserts between question and INSERT is found and changed.
func TestAFasterInsertIsAddedTo(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v int)`,
		postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert, Combine: []string{"v"}, Identified: true})
	other := tableConnect(t, b.conn.Config().ConnString())
	tx, err := other.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.ctx, "INSERT INTO s VALUES (1, 40)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		defer close(done)
		b.want(b.send(`={"id":1,"v":1}`, `={"id":1,"v":1}`, `={"id":2,"v":1}`), "aaa")
	}()
	for deadline := time.Now().Add(30 * time.Second); ; {
		var waits bool
		if err := other.QueryRow(b.ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits); err != nil || time.Now().After(deadline) {
			t.Fatal("nobody waits", err)
		}
		if waits {
			break
		}
	}
	if err := tx.Commit(b.ctx); err != nil {
		t.Fatal(err)
	}
	<-done
	b.wantRows("id || '=' || v", "1=42 2=1")
}

func TestATriggerThatSwallowsAChangeHalts(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE TABLE s (id int PRIMARY KEY, v int); INSERT INTO s VALUES (1, 1);
		CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER t BEFORE %s ON s FOR EACH ROW EXECUTE FUNCTION no()`
	for _, c := range []struct {
		event, message string
		cfg            postgres.TableConfig
	}{
		{"UPDATE", `={"id":1,"v":2}`, postgres.TableConfig{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep}},
		{"INSERT", `={"id":2,"v":2}`, postgres.TableConfig{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep}},
		{"UPDATE", `={"id":1,"v":2}`, postgres.TableConfig{Write: postgres.WriteUpsert, Combine: []string{"v"}}},
		{"DELETE", `1=`, postgres.TableConfig{Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete}},
	} {
		c.cfg.Table = "s"
		b := newTableBench(t, fmt.Sprintf(ddl, c.event), c.cfg)
		key, value, _ := strings.Cut(c.message, "=")
		items := []inbox.Item{{Message: semel.Message{Key: []byte(key), Value: []byte(value)}}}
		if value == "" {
			items[0].Value = nil
		}
		b.table.Decode(items)
		var halt *inbox.HaltError
		if err := b.once(items); !errors.As(err, &halt) || halt.Kind != "rows-swallowed" {
			t.Errorf("%s: %v", c.event, err)
		}
	}
}

func TestMarkedRowsAreRemovedAfterTheWindow(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE s (id int PRIMARY KEY, ver int, gone timestamptz)`)
	table, err := postgres.NewTable(t.Context(), c, postgres.TableConfig{
		Table: "s", Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone", Identified: true,
		Columns: map[string]string{"id": "value.id", "ver": "headers.ver"},
	})
	must(t, err)
	s := postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{Table: table})
	t.Cleanup(s.Close)
	_, err = s.Open(t.Context(), inbox.Record{Name: "billing", Memory: inbox.MemoryInbox, Window: time.Hour, Topics: []string{"orders"}})
	must(t, err)
	exec1(t, c, `INSERT INTO s SELECT n, 1, CASE WHEN n <= 2500 THEN now() - interval '2 hours' WHEN n <= 2600 THEN now() - interval '50 minutes' END FROM generate_series(1, 3000) n`)
	forget := func() {
		for more := true; more; {
			var err error
			more, err = s.Forget(t.Context(), time.Now())
			must(t, err)
		}
	}
	if forget(); ask[int](t, c, "SELECT count(*)::int FROM s") != 3000 {
		t.Error("a consumer that never moved removes rows")
	}
	exec1(t, c, `INSERT INTO semel.watermark (consumer, topic, partition, topic_id, start_offset, next_offset, updated_at) VALUES ('billing', 'orders', 0, gen_random_uuid(), 0, 0, now())`)
	s2 := postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{Table: table})
	t.Cleanup(s2.Close)
	_, err = s2.Open(t.Context(), inbox.Record{Name: "billing", Memory: inbox.MemoryInbox, Window: time.Hour, Topics: []string{"orders"}})
	must(t, err)
	s = s2
	if forget(); ask[int](t, c, "SELECT count(*)::int FROM s") != 500 {
		t.Errorf("%d rows are left", ask[int](t, c, "SELECT count(*)::int FROM s"))
	}
}

func TestMarkedRowsAreRemovedOfEachOfManyTables(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	ts := newTables(t, connect(t, url), postgres.TableConfig{
		Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone", Identified: true,
		Columns: map[string]string{"id": "value.id", "ver": "headers.ver"},
	})
	for _, name := range []string{"a", "b", "gone_since"} {
		exec1(t, c, "CREATE TABLE "+name+" (id int PRIMARY KEY, ver int, gone timestamptz)")
		exec1(t, c, "INSERT INTO "+name+" SELECT n, 1, CASE WHEN n <= 1500 THEN now() - interval '2 hours' END FROM generate_series(1, 1600) n")
		_, err := ts.Table(t.Context(), name)
		must(t, err)
	}
	exec1(t, c, "DROP TABLE gone_since")
	s := postgres.NewInboxStore(newPool(t, url), postgres.InboxConfig{Tables: ts, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Close)
	_, err := s.Open(t.Context(), inbox.Record{Name: "billing", Memory: inbox.MemoryInbox, Window: time.Hour, Topics: []string{"a", "b"}})
	must(t, err)
	exec1(t, c, `INSERT INTO semel.watermark (consumer, topic, partition, topic_id, start_offset, next_offset, updated_at) VALUES ('billing', 'a', 0, gen_random_uuid(), 0, 0, now())`)
	for more := true; more; {
		more, err = s.Forget(t.Context(), time.Now())
		must(t, err)
	}
	if got := ask[string](t, c, "SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)"); got != "100 100" {
		t.Errorf("%s rows are left", got)
	}
}

func TestANullIsRefusedThoughItIsOvertaken(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v int NOT NULL)`, postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert})
	b.want(b.send(`={"id":1,"v":null}`, `={"id":1,"v":1}`, `={"id":2,"v":1}`, `={"id":2,"v":2}`), "xaoa")
}

// One by one the value is taken when it is asked for.
func TestAUniqueValueIsNotFreeBeforeItIsFreed(t *testing.T) {
	t.Parallel()
	for _, unique := range []string{"UNIQUE", "UNIQUE DEFERRABLE INITIALLY DEFERRED"} {
		b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v int `+unique+`); INSERT INTO s VALUES (1, 10), (3, 30)`, postgres.TableConfig{Table: "s", Write: postgres.WriteUpsert})
		b.want(b.send(`={"id":2,"v":10}`, `={"id":1,"v":11}`, `={"id":2,"v":10}`, `={"id":3,"v":31}`, `={"id":1,"v":30}`, `={"id":1,"v":10}`), "xaaaax")
		b.wantRows("id || '=' || v", "1=30 2=10 3=31")
	}
}

func TestARowWhoseKeyIsKnownIsNoBadRow(t *testing.T) {
	t.Parallel()
	b := newTableBench(t, `CREATE TABLE s (id int PRIMARY KEY, v int CHECK (v > 0)); INSERT INTO s VALUES (1, 1)`, postgres.TableConfig{Table: "s", Write: postgres.WriteInsert})
	b.want(b.send(`={"id":1,"v":0}`), "d") // a key that this lane hasn't written: it asks only now
	b.want(b.send(`={"id":1,"v":0}`, `={"id":2,"v":0}`, `={"id":3,"v":1}`), "dxa")
	b.want(b.send(`={"id":3,"v":0}`), "d")
}
