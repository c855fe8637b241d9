package postgres_test

import (
	"errors"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/postgres"
)

// states are those of the consumer's letters.
func (r *alterRun) states() string {
	return ask[string](r.t, r.conn, "SELECT coalesce(string_agg(concat_ws(' ', state, outcome), ', ' ORDER BY number), '') FROM semel.dead_letter, pg_sleep(0.005) WHERE consumer = $1", r.name)
}

// marked marks all letters, and waits until they are handled or the route has ended.
func (r *alterRun) marked(done chan struct{}) (ended bool) {
	r.t.Helper()
	r.exec("UPDATE semel.dead_letter SET state = 'redrive' WHERE consumer = '{}' AND state = 'buried'")
	for ask[bool](r.t, r.conn, "SELECT EXISTS (SELECT FROM semel.dead_letter WHERE consumer = $1 AND state = 'redrive')", r.name) {
		select {
		case <-done:
			return true
		default:
		}
		r.states()
	}
	return false
}

// A letter is redriven because its table was mended, while the route runs and no message comes by.
func TestARedriveSeesTheTableAsItIsNow(t *testing.T) {
	t.Parallel()
	const far = `{"id":%d,"v":3000000000,"w":"w","ver":1}`

	type mend struct {
		before, row, sql string
		same             bool
	}
	widen := mend{row: far, sql: `ALTER TABLE {} ALTER v TYPE bigint`}
	for mode, cfg := range alterModes {
		mends := map[string]mend{"widened": widen}
		switch mode {
		case "sql": // whose types are the file's
			mends = map[string]mend{"a domain made anew": {before: `CREATE DOMAIN dom AS int`, row: far, sql: `ALTER TABLE {} ALTER v TYPE bigint; DROP DOMAIN dom; CREATE DOMAIN dom AS bigint`}}
		case "append":
			mends["a column added"] = mend{before: `ALTER TABLE {} DROP w, ADD CHECK (v > 5)`, row: `{"id":%d,"v":4,"w":"kept","ver":1}`, sql: `ALTER TABLE {} DROP CONSTRAINT {}_v_check, ADD w text CHECK (w = 'kept'), ALTER w SET NOT NULL`, same: true}
			mends["a column dropped"] = mend{before: `ALTER TABLE {} ADD z smallint`, row: `{"id":%d,"v":4,"z":70000}`, sql: `ALTER TABLE {} DROP z`, same: true}
			mends["a value of an enum added"] = mend{before: `CREATE TYPE mood AS ENUM ('w'); ALTER TABLE {} ALTER w TYPE mood USING w::mood`, row: `{"id":%d,"v":4,"w":"new","ver":1}`, sql: `ALTER TYPE mood ADD VALUE 'new'`}
			mends["NOT NULL dropped"] = mend{before: `ALTER TABLE {} ALTER w SET NOT NULL`, row: `{"id":%d,"v":4,"w":null,"ver":1}`, sql: `ALTER TABLE {} ALTER w DROP NOT NULL`}
			mends["swapped"] = mend{row: far, sql: `CREATE TABLE {}_new (LIKE {} INCLUDING ALL); ALTER TABLE {}_new ALTER v TYPE bigint; ALTER TABLE {} RENAME TO {}_old; ALTER TABLE {}_new RENAME TO {}`}
		}
		for what, m := range mends {
			t.Run(mode+", "+what, func(t *testing.T) {
				t.Parallel()
				url := migrated(t)
				r := &alterRun{t: t, url: url, conn: connect(t, url), cfg: cfg, name: "a", b: inboxtest.NewBroker()}
				r.b.CreateTopic("t", 1)
				if m.same {
					r.same = true
				}
				if mode == "sql" {
					r.list = []postgres.QueryColumn{{Name: "id", Type: "int"}, {Name: "v", Type: "dom"}, {Name: "w", Type: "text"}}
				}
				r.exec("CREATE TABLE {} (" + alterColumns + ", PRIMARY KEY (id))")
				r.exec(m.before)
				r.sendRow(m.row)
				in, done, err := r.start()
				if !r.settled(done) {
					t.Fatal(*err)
				}
				if got := r.states(); got != "buried" {
					t.Fatalf("before it is mended: %q", got)
				}
				r.exec(m.sql)
				if r.marked(done) {
					t.Fatalf("it ends: %v", *err)
				}
				if got := r.states(); got != "redriven applied" {
					t.Errorf("mended: %q: %s", got, ask[string](t, r.conn, "SELECT error FROM semel.dead_letter"))
				}
				r.sendRow(m.row) // and so do messages
				if !r.settled(done) {
					t.Fatalf("it ends: %v", *err)
				}
				in.Drain()
				<-done
				must(t, *err)
				if n := ask[int](t, r.conn, "SELECT count(*)::int FROM public.a"); n != 2 || r.states() != "redriven applied" {
					t.Errorf("%d rows, letters: %q", n, r.states())
				}
			})
		}
	}
}

// What halts a route at a batch halts it at a redrive: the letter isn't buried for what its table is now.
func TestARedriveHaltsWhereTheTableDoesNotFitAnyMore(t *testing.T) {
	t.Parallel()
	for mode, cfg := range map[string]postgres.TableConfig{
		"a mapped column":        {Write: postgres.WriteAppend, Identified: true},
		"the key":                {Write: postgres.WriteUpsert, Version: "value.ver", Identified: true},
		"the key that is the ID": {Write: postgres.WriteInsert, ID: []string{"value.id"}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			r := &alterRun{t: t, url: url, conn: connect(t, url), cfg: cfg, name: "a", b: inboxtest.NewBroker()}
			r.b.CreateTopic("t", 1)
			r.exec("CREATE TABLE {} (" + alterColumns + ", PRIMARY KEY (id))")
			r.sendRow(`{"id":%d,"v":3000000000,"w":"w","ver":1}`)
			_, done, err := r.start()
			if !r.settled(done) {
				t.Fatal(*err)
			}
			gone, back := "ALTER TABLE {} DROP w, ALTER v TYPE bigint", "ALTER TABLE {} ADD w text"
			if cfg.Write != postgres.WriteAppend {
				gone, back = "ALTER TABLE {} DROP CONSTRAINT {}_pkey, ALTER v TYPE bigint", "ALTER TABLE {} ADD PRIMARY KEY (id)"
			}
			r.exec(gone)
			if !r.marked(done) {
				t.Fatalf("it goes on: %q: %s", r.states(), ask[string](t, r.conn, "SELECT error FROM semel.dead_letter"))
			}
			var halt *inbox.HaltError
			if !errors.As(*err, &halt) || halt.Kind != inbox.HaltTableChanged {
				t.Errorf("it ends: %v", *err)
			}
			t.Log(halt)
			r.exec(back)
			in, done, err := r.start()
			if r.marked(done) {
				t.Fatalf("mended, it ends: %v", *err)
			}
			in.Drain()
			<-done
			must(t, *err)
			if got := r.states(); got != "redriven applied" {
				t.Errorf("mended: %q", got)
			}
		})
	}
}

func TestEachOfManyTablesIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, "CREATE TABLE orders (v int); CREATE TABLE others (v int)")
	many, err := postgres.NewTables(newPool(t, url), postgres.TablesConfig{
		TableConfig: postgres.TableConfig{Write: postgres.WriteAppend, Identified: true},
		Of:          func(topic string) (string, error) { return "public." + topic, nil },
	})
	must(t, err)
	refused := func(topic string) bool {
		items := []inbox.Item{{Message: semel.Message{Topic: topic, Value: []byte(`{"v":3000000000}`)}}}
		many.Decode(items)
		return items[0].Err != nil
	}
	if !refused("orders") || !refused("others") {
		t.Fatal("taken before the tables are widened")
	}
	exec1(t, c, "ALTER TABLE orders ALTER v TYPE bigint; ALTER TABLE others ALTER v TYPE bigint")
	s, row := lane(t, url)
	tx := begin(t, s, span(row, 1))
	must(t, many.Renew(t.Context(), tx, "orders"))
	must(t, many.Renew(t.Context(), tx, "new")) // nobody has looked at its table
	if refused("orders") || !refused("others") {
		t.Errorf("refused: orders %v, others %v", refused("orders"), refused("others"))
	}
}
