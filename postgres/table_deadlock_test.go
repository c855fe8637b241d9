package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/postgres"
)

// deadlockCase is how lanes meet the same keys, none of which is there yet.
type deadlockCase struct {
	cfg  postgres.TableConfig
	ddl  string // {} is the table
	some bool   // PostgreSQL may have to end one of two, and the batch is done again
}

const deadlockDDL = `CREATE TABLE {} (id int PRIMARY KEY, u int, v int NOT NULL DEFAULT 0, ver int, gone timestamptz)`

var deadlockCases = map[string]deadlockCase{
	"insert":               {cfg: postgres.TableConfig{Write: postgres.WriteInsert}},
	"insert, remembered":   {cfg: postgres.TableConfig{Write: postgres.WriteInsert, ID: []string{"value.id"}, OnCollision: inbox.CollisionDuplicate}},
	"upsert":               {cfg: postgres.TableConfig{Write: postgres.WriteUpsert}},
	"upsert, version":      {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Version: "value.ver"}},
	"mirror":               {cfg: postgres.TableConfig{Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete}, some: true},
	"mirror, version":      {cfg: postgres.TableConfig{Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete, Version: "headers.ver", Deleted: "gone"}, some: true},
	"combine":              {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Combine: []string{"v"}}},
	"patch":                {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep}},
	"another unique index": {cfg: postgres.TableConfig{Write: postgres.WriteUpsert, Version: "value.ver"}, ddl: deadlockDDL + `; CREATE UNIQUE INDEX ON {} (u)`, some: true},
}

// deadlockLanes runs lanes over a table.
type deadlockLanes struct {
	t       *testing.T
	url     string
	name    string
	reader  string // the consumer; "": name
	b       *inboxtest.Broker
	cfg     postgres.TableConfig
	batch   int // 0: 100 messages
	ended   chan error
	members []*inbox.Inbox[pgx.Tx]
	victims atomic.Int64 // transactions of ours that PostgreSQL ended for a deadlock
}

func (d *deadlockLanes) start(partitions int32) {
	d.cfg.Table, d.cfg.Identified = "public."+d.name, len(d.cfg.ID) == 0
	d.cfg.Columns = map[string]string{"id": "value.id", "u": "value.u", "v": "value.v", "ver": "value.ver"}
	if d.cfg.Write == postgres.WriteMirror {
		d.cfg.Columns["id"] = "key"
		if d.cfg.Version != "" {
			d.cfg.Columns["ver"] = d.cfg.Version
		}
	}
	d.reader = cmp.Or(d.reader, d.name)
	d.ended = make(chan error, partitions)
	for range partitions {
		pool := newPool(d.t, d.url)
		table, err := postgres.NewTable(d.t.Context(), pool, d.cfg)
		must(d.t, err)
		cfg := inbox.Config[pgx.Tx]{
			Consumer: d.reader, Source: d.b.NewSource(d.reader, inboxtest.StartGroup, "t"), Effect: table, Memory: table.Memory(), OwnIDs: table.OwnIDs(),
			Store:   postgres.NewInboxStore(pool, postgres.InboxConfig{Table: table, LockTimeout: time.Minute}),
			Batch:   inbox.BatchLimits{Messages: cmp.Or(d.batch, 100)},
			OnError: inbox.ErrorPolicy{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond},
			Observe: inbox.Observer{Error: func(class inbox.Class, err error) {
				if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "40P01" && class == inbox.ClassConflict {
					d.victims.Add(1)
				}
			}},
		}
		if !cfg.OwnIDs {
			cfg.ID = semel.HeaderID("message-id")
		}
		in, err := inbox.New(cfg)
		must(d.t, err)
		d.members = append(d.members, in)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		go func() {
			defer cancel()
			d.ended <- in.Run(ctx)
		}()
	}
}

func (d *deadlockLanes) message(partition int32, n, id int) semel.Message {
	m := semel.Message{
		Topic: "t", Partition: partition, Key: []byte(strconv.Itoa(id)),
		Headers: []semel.Header{{Name: "message-id", Value: []byte(strconv.Itoa(n))}, {Name: "ver", Value: []byte(strconv.Itoa(n + 1))}},
		Value:   fmt.Appendf(nil, `{"id":%d,"u":%d,"v":1,"ver":%d}`, id, -id, n+1),
	}
	if d.cfg.Write == postgres.WriteMirror && n%5 == 4 {
		m.Value = nil
	}
	return m
}

// settled waits until so many messages are settled.
func (d *deadlockLanes) settled(c *pgx.Conn, n int) {
	d.t.Helper()
	for ask[int](d.t, c, "SELECT coalesce(sum(next_offset), 0)::int FROM semel.watermark, pg_sleep(0.005) WHERE consumer = $1", d.reader) < n {
		select {
		case err := <-d.ended:
			d.t.Fatalf("a lane ended: %v", err)
		default:
		}
	}
}

func (d *deadlockLanes) stop(c *pgx.Conn) {
	d.t.Helper()
	for _, in := range d.members {
		in.Drain()
	}
	for range d.members {
		must(d.t, <-d.ended)
	}
	if n := ask[int](d.t, c, "SELECT count(*)::int FROM semel.dead_letter"); n != 0 {
		d.t.Errorf("%d dead letters", n)
	}
}

// overtaken are two lanes of one table, and strangers that hold keys of it.
type overtaken struct {
	t         *testing.T
	conn      *pgx.Conn
	lanes     [2]*deadlockLanes
	sent      [2]int
	strangers map[int]*pgx.Conn // by the key that they have inserted
}

func newOvertaken(t *testing.T, mode string) *overtaken {
	t.Helper()
	url := migrated(t)
	o := &overtaken{t: t, conn: connect(t, url), strangers: map[int]*pgx.Conn{}}
	exec1(t, o.conn, strings.ReplaceAll(deadlockDDL, "{}", "d"))
	for i := range o.lanes {
		o.lanes[i] = &deadlockLanes{t: t, url: url, name: "d", reader: fmt.Sprint("lane", i), b: inboxtest.NewBroker(), cfg: deadlockCases[mode].cfg}
		o.lanes[i].b.CreateTopic("t", 1)
		o.lanes[i].start(1)
	}
	return o
}

// hold has a stranger insert a key, and not commit.
func (o *overtaken) hold(id int) {
	o.t.Helper()
	c := connect(o.t, o.lanes[0].url)
	exec1(o.t, c, "SET deadlock_timeout = '1h'") // lanes are the ones that look
	exec1(o.t, c, "BEGIN")
	exec1(o.t, c, "INSERT INTO d (id, v) VALUES ($1, 1)", id)
	o.strangers[id] = c
}

func (o *overtaken) send(lane int, ids ...int) {
	var ms []semel.Message
	for _, id := range ids {
		ms = append(ms, o.lanes[lane].message(0, o.sent[lane], id))
		o.sent[lane]++
	}
	o.lanes[lane].b.Send(ms...)
}

// waits until a lane waits for another one, or a stranger.
func (o *overtaken) waits(lane int, by string, args ...any) {
	o.t.Helper()
	for !ask[bool](o.t, o.conn, `SELECT count(*) > 0 FROM pg_stat_activity a, pg_stat_activity b, pg_sleep(0.005)
		WHERE a.application_name LIKE $1 AND b.pid = ANY(pg_blocking_pids(a.pid)) AND `+by, append([]any{fmt.Sprintf("semel/lane%d/%%", lane)}, args...)...) {
	}
}

func (o *overtaken) waitsForKey(lane, id int) {
	o.t.Helper()
	o.waits(lane, "b.pid = $2", o.strangers[id].PgConn().PID())
}

func (o *overtaken) end() {
	o.t.Helper()
	for i, d := range o.lanes {
		d.settled(o.conn, o.sent[i])
		d.stop(o.conn)
		if n := d.victims.Load(); n > 0 {
			o.t.Errorf("lane %d: %d deadlocks", i, n)
		}
	}
}

// A lane finds that somebody else has inserted a key, with another one in its hand
// that he wants.
func TestALaneThatIsOvertakenGivesUpWhatItHolds(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"combine", "patch"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOvertaken(t, mode)
			o.hold(1)
			o.hold(9)
			o.send(0, 1, 5, 9)
			o.waitsForKey(0, 1)
			faster := o.strangers[1]
			exec1(t, faster, "COMMIT")
			o.waitsForKey(0, 9) // it has 5
			exec1(t, faster, "BEGIN")
			exec1(t, faster, "SELECT FROM d WHERE id = 1 FOR UPDATE")
			done := make(chan error, 1)
			go func() {
				_, err := faster.Exec(context.Background(), "INSERT INTO d (id, v) VALUES (5, 1); COMMIT")
				done <- err
			}()
			for !ask[bool](t, o.conn, "SELECT cardinality(pg_blocking_pids($1)) > 0 FROM pg_sleep(0.005)", faster.PgConn().PID()) {
			}
			exec1(t, o.strangers[9], "ROLLBACK")
			must(t, <-done)
			o.end()
		})
	}
}

// A lane that has found a key changes it only when it has inserted all others: who
// tries to insert that key waits for the change, with others in his hand.
func TestALaneInsertsBeforeItChanges(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"combine", "patch"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOvertaken(t, mode)
			o.hold(3)
			o.hold(4)
			o.send(0, 3, 5, 9)
			o.waitsForKey(0, 3)
			exec1(t, o.conn, "INSERT INTO d (id, v) VALUES (9, 1)")
			o.send(1, 4, 5, 9)
			o.waitsForKey(1, 4) // it has found 9
			exec1(t, o.strangers[3], "ROLLBACK")
			o.waits(0, "b.application_name LIKE 'semel/lane1/%'")
			exec1(t, o.strangers[4], "ROLLBACK")
			o.end()
		})
	}
}

// Several lanes find, insert and change few keys that are new to all of them: one that
// was overtaken must not wait with what it inserted in its hand.
func TestLanesThatAreOvertakenNeverDeadlock(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"combine", "patch"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const partitions, keys, rounds = 6, 6, 80
			url := migrated(t)
			conn := connect(t, url)
			d := &deadlockLanes{t: t, url: url, name: "d", b: inboxtest.NewBroker(), cfg: deadlockCases[mode].cfg, batch: 12}
			exec1(t, conn, strings.ReplaceAll(deadlockDDL, "{}", d.name))
			d.b.CreateTopic("t", partitions)
			d.start(partitions)
			n := 0
			for round := range rounds {
				for partition := range int32(partitions) {
					var ms []semel.Message
					for _, id := range rand.Perm(keys)[:keys/2+1] {
						ms = append(ms, d.message(partition, n, round*keys+id))
						n++
					}
					d.b.Send(ms...)
				}
			}
			d.settled(conn, n)
			d.stop(conn)
			if mode == "combine" {
				if got := ask[int](t, conn, "SELECT sum(v)::int FROM d"); got != n {
					t.Errorf("the sum is %d, want %d", got, n)
				}
			}
			if v := d.victims.Load(); v > 0 {
				t.Errorf("%d deadlocks", v)
			}
		})
	}
}

// Lanes insert, change and delete the same keys, in other orders, and hold each other
// up in a circle only where rows have to be written as they came.
func TestLanesOfTheSameNewKeysNeverDeadlock(t *testing.T) {
	t.Parallel()
	for mode, c := range deadlockCases {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const partitions, keys, rounds = 2, 100, 4
			url := migrated(t)
			conn := connect(t, url)
			d := &deadlockLanes{t: t, url: url, name: "d", b: inboxtest.NewBroker(), cfg: c.cfg}
			ddl := c.ddl
			if ddl == "" {
				ddl = deadlockDDL
			}
			exec1(t, conn, strings.ReplaceAll(ddl, "{}", d.name))
			d.b.CreateTopic("t", partitions)
			d.start(partitions)
			n := 0
			for round := range rounds {
				for partition := range int32(partitions) {
					ids := rand.Perm(keys) // shuffled, then up here and down there
					if round == 0 {
						slices.Sort(ids)
						if partition == 1 {
							slices.Reverse(ids)
						}
					}
					var ms []semel.Message
					for _, id := range ids {
						ms = append(ms, d.message(partition, n, id+round/2*keys))
						n++
					}
					d.b.Send(ms...)
				}
			}
			d.settled(conn, n)
			d.stop(conn)
			if len(c.cfg.Combine) > 0 {
				if got := ask[int](t, conn, "SELECT sum(v)::int FROM d"); got != n {
					t.Errorf("the sum is %d, want %d", got, n)
				}
			}
			if v := d.victims.Load(); v > 0 && !c.some {
				t.Errorf("%d deadlocks", v)
			} else if v > 0 {
				t.Logf("%d deadlocks, done again", v)
			}
		})
	}
}

// A stranger who takes rows in another order is none of a message's fault: the whole
// batch is done again.
func TestDeadlockWithAStrangerIsDoneAgain(t *testing.T) {
	t.Parallel()
	for mode, c := range deadlockCases {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := migrated(t)
			conn, stranger := connect(t, url), connect(t, url)
			d := &deadlockLanes{t: t, url: url, name: "d", b: inboxtest.NewBroker(), cfg: c.cfg}
			ddl := c.ddl
			if ddl == "" {
				ddl = deadlockDDL
			}
			exec1(t, conn, strings.ReplaceAll(ddl, "{}", d.name))
			d.b.CreateTopic("t", 1)
			d.start(1)
			exec1(t, stranger, "SET deadlock_timeout = '1h'") // ours is the one that looks
			exec1(t, stranger, "SET statement_timeout = '10s'")
			n := 0
			for d.victims.Load() == 0 {
				exec1(t, stranger, "BEGIN")
				exec1(t, stranger, "INSERT INTO d (id, v) VALUES ($1, 1)", n+1)
				d.b.Send(d.message(0, n, n), d.message(0, n+1, n+1))
				n += 2
				for ask[int](t, conn, `SELECT count(*)::int FROM pg_stat_activity, pg_sleep(0.005)
					WHERE datname = current_database() AND application_name LIKE 'semel/%' AND wait_event_type = 'Lock'`) == 0 {
					select {
					case err := <-d.ended:
						t.Fatalf("the lane ended: %v", err)
					default:
					}
				}
				// It waits for us with the first row in its hand, unless both came apart.
				_, err := stranger.Exec(t.Context(), "INSERT INTO d (id, v) VALUES ($1, 1)", n-2)
				if pg := (*pgconn.PgError)(nil); err != nil && !errors.As(err, &pg) {
					t.Fatal(err)
				}
				exec1(t, stranger, "ROLLBACK")
				d.settled(conn, n)
			}
			d.stop(conn)
			want := n
			if c.cfg.Write == postgres.WriteMirror && c.cfg.Version == "" {
				want -= n / 5 // deletions
			}
			if got := ask[int](t, conn, "SELECT count(*)::int FROM d"); got != want {
				t.Errorf("%d rows, want %d", got, want)
			}
			if got := ask[int](t, conn, "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()"); got == 0 {
				t.Log("the server's own count comes later")
			}
		})
	}
}
