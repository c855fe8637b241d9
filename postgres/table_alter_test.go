package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/postgres"
)

const alterColumns = `id int, v int, w varchar(8), ver int, gone timestamptz, extra text`

// alterModes are all ways to write; {} is the table.
var alterModes = map[string]postgres.TableConfig{
	"append":             {Write: postgres.WriteAppend, Identified: true},
	"insert":             {Write: postgres.WriteInsert, Identified: true},
	"insert, remembered": {Write: postgres.WriteInsert, ID: []string{"value.id"}},
	"upsert":             {Write: postgres.WriteUpsert, Identified: true},
	"upsert, version":    {Write: postgres.WriteUpsert, Version: "value.ver", Identified: true},
	"upsert, patch":      {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep, Identified: true},
	"upsert, combine":    {Write: postgres.WriteUpsert, Combine: []string{"v"}, Identified: true},
	"mirror":             {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Identified: true},
	"mirror, version":    {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "value.ver", Deleted: "gone", Identified: true},
	"sql":                {},
}

// alteration is what an administrator does to the table {} of a route that runs.
type alteration struct {
	before, sql string
	// on: the route goes on; else it halts, but for the modes in but, for which it
	// is the other way round.
	on   bool
	but  []string
	mend string // before the route is started again
}

var alterations = map[string]alteration{
	"a column added":            {sql: `ALTER TABLE {} ADD n int`, on: true},
	"a column with a default":   {sql: `ALTER TABLE {} ADD n int NOT NULL DEFAULT 7`, on: true},
	"another column dropped":    {sql: `ALTER TABLE {} DROP extra`, on: true},
	"a column dropped":          {sql: `ALTER TABLE {} DROP w`, mend: `ALTER TABLE {} ADD w varchar(8)`},
	"a column renamed":          {sql: `ALTER TABLE {} RENAME w TO x`, mend: `ALTER TABLE {} RENAME x TO w`},
	"a column widened":          {sql: `ALTER TABLE {} ALTER v TYPE bigint, ALTER w TYPE text`, but: []string{"sql"}},
	"a type changed":            {sql: `ALTER TABLE {} ALTER v TYPE text USING v::text`, mend: `ALTER TABLE {} ALTER v TYPE int USING v::int`, but: []string{"sql"}},
	"a column that none fills":  {before: `TRUNCATE {}`, sql: `ALTER TABLE {} ADD n int NOT NULL`, mend: `ALTER TABLE {} ALTER n SET DEFAULT 1`},
	"the key made anew":         {sql: `ALTER TABLE {} DROP CONSTRAINT {}_pkey, ADD PRIMARY KEY (id)`, on: true},
	"the key gone":              {sql: `ALTER TABLE {} DROP CONSTRAINT {}_pkey`, mend: `ALTER TABLE {} ADD PRIMARY KEY (id)`, but: []string{"append"}},
	"renamed":                   {sql: `ALTER TABLE {} RENAME TO {}_away`, mend: `ALTER TABLE {}_away RENAME TO {}`},
	"swapped":                   {sql: `CREATE TABLE {}_new (LIKE {} INCLUDING ALL); ALTER TABLE {} RENAME TO {}_old; ALTER TABLE {}_new RENAME TO {}`, on: true},
	"swapped for one without":   {sql: `CREATE TABLE {}_new (LIKE {}); ALTER TABLE {} RENAME TO {}_old; ALTER TABLE {}_new RENAME TO {}`, mend: `ALTER TABLE {} ADD PRIMARY KEY (id)`, but: []string{"append"}},
	"the schema gone and back":  {sql: `CREATE SCHEMA s{}; ALTER TABLE {} SET SCHEMA s{}`, mend: `ALTER TABLE s{}.{} SET SCHEMA public`},
	"a partition detached":      {sql: `ALTER TABLE {} DETACH PARTITION {}_0`, mend: `ALTER TABLE {} ATTACH PARTITION {}_0 DEFAULT`},
	"row security switched on":  {sql: `ALTER TABLE {} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, on: true}, // not for a superuser
	"the table emptied":         {sql: `TRUNCATE {}`, on: true},
	"an index made beside":      {sql: `CREATE INDEX {}_v ON {} (v)`, on: true},
	"the index made by REINDEX": {sql: `REINDEX TABLE {}`, on: true},
}

// alterRun is a route that begins and ends within a test.
type alterRun struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
	cfg  postgres.TableConfig
	name string
	list []postgres.QueryColumn // of the relation, where the effect is SQL; nil: id, v and w
	same bool                   // columns are mapped by their names
	b    *inboxtest.Broker
	sent int
}

func (r *alterRun) exec(sql string) {
	r.t.Helper()
	_, err := r.conn.PgConn().Exec(r.t.Context(), strings.ReplaceAll(sql, "{}", r.name)).ReadAll()
	must(r.t, err)
}

func (r *alterRun) send(n int) {
	for range n {
		r.sendRow(`{"id":%d,"v":%[1]d,"w":"w","ver":1}`)
	}
}

// sendRow sends a row whose %d is its number.
func (r *alterRun) sendRow(row string) {
	v := fmt.Appendf(nil, row, r.sent)
	r.b.Send(semel.Message{Topic: "t", Key: []byte(fmt.Sprint(r.sent)), Value: v, Headers: []semel.Header{{Name: "message-id", Value: fmt.Append(nil, r.sent)}}})
	r.sent++
}

// start runs the route; done is closed when it has ended by itself.
func (r *alterRun) start() (in *inbox.Inbox[pgx.Tx], done chan struct{}, err *error) {
	r.t.Helper()
	pool := newPool(r.t, r.url)
	cfg := inbox.Config[pgx.Tx]{Consumer: r.name, Source: r.b.NewSource(r.name, inboxtest.StartGroup, "t")}
	table := r.cfg
	table.Table, table.Columns = "public."+r.name, map[string]string{"id": "value.id", "v": "value.v", "w": "value.w", "ver": "value.ver"}
	if table.Write == postgres.WriteMirror {
		table.Columns["id"] = "key"
	}
	if r.same {
		table.Columns = nil
	}
	if table.Write == "" {
		table.Identified, table.Columns = true, map[string]string{"id": "value.id", "v": "value.v", "w": "value.w"}
		if r.list == nil {
			r.list = []postgres.QueryColumn{{"id", "int"}, {"v", "int"}, {"w", "text"}}
		}
		q, err := postgres.NewQuery(r.t.Context(), pool, postgres.QueryConfig{
			TableConfig: table, Each: true, Relation: r.list,
			SQL: strings.ReplaceAll(`INSERT INTO public.{} (id, v, w) SELECT id, v, w FROM batch ON CONFLICT (id) DO NOTHING; SELECT n FROM batch`, "{}", r.name),
		})
		must(r.t, err)
		cfg.Effect, cfg.Memory, cfg.Store = q, q.Memory(), postgres.NewInboxStore(pool, postgres.InboxConfig{Table: q.Table})
	} else {
		to, err := postgres.NewTable(r.t.Context(), pool, table)
		must(r.t, err)
		cfg.Effect, cfg.Memory, cfg.OwnIDs, cfg.Store = to, to.Memory(), to.OwnIDs(), postgres.NewInboxStore(pool, postgres.InboxConfig{Table: to})
	}
	if !cfg.OwnIDs {
		cfg.ID = semel.HeaderID("message-id")
	}
	cfg.OnError = inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond}
	in, e := inbox.New(cfg)
	must(r.t, e)
	done, err = make(chan struct{}), new(error)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	go func() {
		*err = in.Run(ctx)
		close(done)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return in, done, err
}

// settled waits until all that was sent is settled, or the route has ended.
func (r *alterRun) settled(done chan struct{}) bool {
	r.t.Helper()
	for {
		if ask[int](r.t, r.conn, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.005) WHERE consumer = $1", r.name) == r.sent {
			return true
		}
		select {
		case <-done:
			return false
		default:
		}
	}
}

// Whatever is done to a table while it is written to, no message is a dead letter for
// it: the route goes on, or it halts and says why, and goes on when that is mended.
func TestATableIsAlteredWhileItRuns(t *testing.T) {
	t.Parallel()
	for mode, cfg := range alterModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			n := 0
			for what, alter := range alterations {
				n++
				r := &alterRun{t: t, url: url, conn: connect(t, url), cfg: cfg, name: fmt.Sprintf("a%d", n), b: inboxtest.NewBroker()}
				r.b.CreateTopic("t", 1)
				if !t.Run(what, func(t *testing.T) { r.t = t; r.run(mode, alter) }) {
					return
				}
			}
		})
	}
}

func (r *alterRun) run(mode string, alter alteration) {
	t := r.t
	ddl := "CREATE TABLE {} (" + alterColumns + ", PRIMARY KEY (id))"
	if strings.Contains(alter.sql, "PARTITION") {
		ddl += " PARTITION BY RANGE (id); CREATE TABLE {}_0 PARTITION OF {} DEFAULT"
	}
	if mode == "append" {
		ddl = strings.Replace(ddl, "id int", "id int NOT NULL", 1)
	}
	r.exec(ddl)
	r.send(3)
	in, done, err := r.start()
	if !r.settled(done) {
		t.Fatal(*err)
	}
	rows := 3
	r.exec(alter.before)
	r.exec(alter.sql)
	if strings.Contains(alter.before+alter.sql, "TRUNCATE") || strings.Contains(alter.sql, "_old") {
		rows = 0
	}
	r.send(30)
	on := r.settled(done)
	dead := func() {
		t.Helper()
		if n := ask[int](t, r.conn, "SELECT count(*)::int FROM semel.dead_letter WHERE consumer = $1", r.name); n != 0 {
			t.Errorf("%d dead letters, %s", n, ask[string](t, r.conn, "SELECT min(error) FROM semel.dead_letter WHERE consumer = $1", r.name))
		}
	}
	dead()
	want := alter.on
	for _, m := range alter.but {
		want = want != (m == mode)
	}
	var halt *inbox.HaltError
	switch {
	case on && !want:
		t.Error("it goes on")
	case !on && want, !on && !errors.As(*err, &halt):
		t.Errorf("it ends: %v", *err)
	case !on:
		t.Logf("halts: %s: %s", halt.Kind, halt.Why)
	}
	if on {
		in.Drain()
		<-done
		must(t, *err)
	} else {
		r.exec(alter.mend)
		in, done, err = r.start()
		if !r.settled(done) {
			t.Fatalf("mended, it ends: %v", *err)
		}
		in.Drain()
		<-done
		must(t, *err)
		dead()
	}
	if n := ask[int](t, r.conn, "SELECT count(*)::int FROM public."+r.name); n != rows+30 {
		t.Errorf("%d rows, want %d", n, rows+30)
	}
}
