package cases_test

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// G14: rows of one key in one statement, with the batch's border at every place; the rows are those of one by one.
func TestRowsOfOneKeyInABatch(t *testing.T) {
	t.Parallel()
	values := []string{
		`{"id":7,"ver":1,"v":"a"}`, `{"id":8,"ver":1,"v":"b"}`, `{"id":7,"ver":2,"v":"c"}`, `{"id":"7","ver":3,"v":"d"}`, `{"id":9,"ver":1,"v":"e"}`,
		`{"id":7.0,"ver":2,"v":"late"}`, `{"id":8,"ver":1,"v":"same"}`, `{"id":9,"ver":4,"v":"f"}`,
	}
	for _, write := range []struct{ to, rows string }{
		{"to: {table: s, write: upsert}", "7late 8same 9f"},
		{"to: {table: s, write: upsert, version: value.ver}", "7d 8b 9f"},
		{"to: {table: s, write: insert}", "7a 8b 9e"},
	} {
		t.Run(write.to, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE s0 (id bigint PRIMARY KEY, ver int, v text, UNIQUE (id, v))")
			s.send(values...)
			var routes []string
			for border := 1; border <= len(values); border++ {
				for _, id := range []string{"{position: true}", "{fields: [value.id, value.ver, value.v]}"} {
					n := len(routes) + 1
					s.exec(fmt.Sprintf("CREATE TABLE s%d (LIKE s0 INCLUDING ALL)", n))
					routes = append(routes, s.route(fmt.Sprintf("name: s%d", n), fmt.Sprintf("consumer: TOPIC-%d", n), "id: "+id,
						strings.Replace(write.to, "table: s", fmt.Sprintf("table: s%d", n), 1), fmt.Sprintf("batch: {messages: %d}", border)))
				}
			}
			s.run(routes...)
			for n := range routes {
				s.want(fmt.Sprintf("SELECT string_agg(id || v, ' ' ORDER BY id) FROM s%d", n+1), write.rows)
			}
			s.want("SELECT count(DISTINCT consumer) || ' ' || sum(settled) || ' ' || sum(dead) FROM semel.watermark", fmt.Sprintf("%d %d 0", len(routes), len(routes)*len(values)))
			s.want("SELECT count(*) FROM semel.inbox", fmt.Sprint(len(routes)/2*len(values)))
			s.sums()
		})
	}
}

// G14: as many of one key as a batch holds, among many others, stay one transaction.
func TestManyRowsOfOneKeyStayOneTransaction(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (id int PRIMARY KEY, ver int, xid xid8 DEFAULT pg_current_xact_id())")
	s.send(numbered(3000, func(i int) string { return fmt.Sprintf(`{"id":%d,"ver":%d}`, i%300, i) })...)
	s.run(s.route("id: {position: true}", "to: {table: s, write: upsert, version: value.ver}", "batch: {messages: 3000}"))
	s.want("SELECT count(*) || ' ' || min(ver) || ' ' || max(ver) || ' ' || count(DISTINCT xmin::text) FROM s", "300 2700 2999 1")
	if got := s.outcomes(); got != "300 applied, 2700 superseded" {
		t.Error(got)
	}
}

// G16: rows times columns beyond 16 bits of parameters, around the limit and far above it.
func TestMoreValuesThanParametersInABatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		columns int
		sizes   []int
	}{{40, []int{1638, 1639, 5000}}, {1000, []int{65, 66}}} {
		t.Run(fmt.Sprint(c.columns, " columns"), func(t *testing.T) {
			t.Parallel()
			var ddl, fields []string
			for i := 1; i < c.columns; i++ {
				ddl, fields = append(ddl, fmt.Sprintf("c%d int", i)), append(fields, fmt.Sprintf(`"c%d":%d`, i, i))
			}
			s := newScene(t, 1, "CREATE TABLE w (c0 int, "+strings.Join(ddl, ", ")+")")
			ways := []string{"write: append", "write: insert", "write: insert", "write: upsert, version: value.c1"}
			var routes []string
			for n, way := range ways {
				s.exec(fmt.Sprintf("CREATE TABLE w%d (LIKE w, PRIMARY KEY (c0))", n))
				id := "{position: true}"
				if n == 2 {
					id = "{fields: [value.c0]}"
				}
				routes = append(routes, s.route(fmt.Sprintf("name: w%d", n), fmt.Sprintf("consumer: TOPIC-%d", n), "id: "+id, fmt.Sprintf("to: {table: w%d, %s}", n, way), "batch: {messages: 5000, bytes: 64MiB}"))
			}
			rows, tail := 0, ","+strings.Join(fields, ",")+"}"
			for _, size := range c.sizes {
				s.send(numbered(size, func(i int) string { return fmt.Sprintf(`{"c0":%d`, rows+i) + tail })...)
				rows += size
				s.run(routes...)
			}
			for n := range ways {
				s.want(fmt.Sprintf("SELECT count(*) || ' ' || sum(c%d) FROM w%d", c.columns-1, n), fmt.Sprintf("%d %d", rows, rows*(c.columns-1)))
			}
			s.want("SELECT count(*) FROM semel.dead_letter", "0")
		})
	}
}

// G19: what is older than the row, or as old, never overwrites it, in whatever batch, partition and message it comes.
func TestOlderRecordsNeverOverwrite(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 100} {
		t.Run(fmt.Sprint("batches of ", messages), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2, "CREATE TABLE s (id int PRIMARY KEY, ver numeric, v text); INSERT INTO s VALUES (9, NULL, 'old')")
			to := []string{"id: {fields: [value.mid]}", "to: {table: s, write: upsert, version: value.ver}", fmt.Sprintf("batch: {messages: %d}", messages)}
			s.send(`{"mid":"a","id":7,"ver":3,"v":"three"}`)
			s.run(s.route(to...))
			s.send(
				`{"mid":"b","id":7,"ver":2,"v":"late"}`,      // older, another message
				`{"mid":"c","id":7,"ver":3,"v":"again"}`,     // as old, another message
				`{"mid":"a","id":7,"ver":3,"v":"three"}`,     // the same message
				`{"mid":"d","id":7,"ver":3.0,"v":"same"}`,    // as old, spelled otherwise
				`{"mid":"e","id":7,"ver":null,"v":"null"}`,   // no version
				`{"mid":"f","id":7,"v":"absent"}`,            // no version
				`{"mid":"g","id":9,"ver":0,"v":"over null"}`, // the row has none
				`{"mid":"h","id":9,"ver":-1,"v":"below"}`,
				`{"mid":"i","id":10,"ver":10,"v":"ten"}`, // as text it would be below 9
				`{"mid":"j","id":10,"ver":9,"v":"nine"}`,
			)
			s.run(s.route(to...))
			s.produce(&kgo.Record{Partition: 1, Value: []byte(`{"mid":"k","id":7,"ver":1,"v":"other partition"}`)},
				&kgo.Record{Partition: 1, Value: []byte(`{"mid":"l","id":7,"ver":3.5,"v":"newer"}`)})
			s.run(s.route(to...))
			s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM s", "7newer 9over null 10ten")
			if got := s.outcomes(); got != "4 applied, 1 duplicate, 6 stale, 2 dead" {
				t.Error(got)
			}
			if got := s.dead(); got != "0/5 value, 0/6 value" {
				t.Error(got)
			}
			until(t, "all is acked", func() bool { return s.acked(0) == 11 && s.acked(1) == 2 })
		})
	}
}

// G5: a refused row leaves nothing behind in the session that goes on: there is one for the route.
func TestOneRefusedRowDoesNotPoisonTheSession(t *testing.T) {
	t.Parallel()
	const ddl = `CREATE TABLE parent (id int PRIMARY KEY); CREATE EXTENSION IF NOT EXISTS btree_gist;
		CREATE TABLE t (id int PRIMARY KEY, email text UNIQUE, p int REFERENCES parent, late int REFERENCES parent DEFERRABLE INITIALLY DEFERRED, c int CHECK (c > 0), n int NOT NULL DEFAULT 1, r int4range,
			EXCLUDE USING gist (r WITH &&), s varchar(3), boom int, pid int DEFAULT pg_backend_pid());
		CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.boom > 0 THEN RAISE EXCEPTION 'boom' USING ERRCODE = '22000'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER boom BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION boom();
		INSERT INTO t (id, email, r) VALUES (0, 'taken', '[1,5)')`
	for name, c := range map[string]struct{ field, state string }{
		"unique": {`"email":"taken"`, "23505"}, "foreign key": {`"p":1`, "23503"}, "deferred foreign key": {`"late":1`, "23503"},
		"check": {`"c":0`, "23514"}, "not null": {`"n":null`, "23502"}, "exclusion": {`"r":"[2,3)"`, "23P01"}, "too long": {`"s":"four"`, "22001"}, "trigger": {`"boom":1`, "22000"},
	} {
		for i, write := range []string{"append", "insert", "upsert"} {
			if i != len(name)%3 && name != "unique" && name != "deferred foreign key" {
				continue // one way each
			}
			t.Run(name+" "+write, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, ddl)
				s.send(`{"id":1,"boom":0}`, fmt.Sprintf(`{"id":2,%s}`, c.field), `{"id":3,"email":"x"}`, `{"id":4}`)
				route := s.route("id: {position: true}", "to: {table: t, write: "+write+", columns: {id: value.id, email: value.email, p: value.p, late: value.late, c: value.c, n: value.n, r: value.r, s: value.s, boom: value.boom}}")
				r := s.start(route)
				until(t, "all four are settled", func() bool { return s.watermark(0) == 4 })
				s.send(`{"id":5}`)
				until(t, "the session goes on", func() bool { return s.watermark(0) == 5 })
				r.stop()
				s.want("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t", "0 1 3 4 5")
				s.want("SELECT count(DISTINCT pid) FROM t WHERE id > 0", "1")
				s.want(`SELECT string_agg("offset"::text, ' ') FROM semel.dead_letter`, "1")
				if got := s.ask("SELECT coalesce(sqlstate, '') FROM semel.dead_letter"); got != c.state {
					t.Errorf("SQLSTATE %s, want %s", got, c.state)
				}
			})
		}
	}
}

// G28: three bad rows among 500, the first, one in the middle, the last; the other 497 are kept, and each letter says
// why. The same with bad neighbours, and where the database notices only at COMMIT.
func TestBadRowsAreBuriedAndTheOthersKept(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]map[int]string{
		"first, middle, last": {0: `"s":"abcd"`, 249: `"p":2`, 499: `"pos":0`},
		"neighbours":          {100: `"pos":0`, 101: `"p":2`, 102: `"pos":0`, 103: `"late":2`, 104: `"pos":0`},
		"at COMMIT":           {0: `"late":2`, 250: `"late":2`, 499: `"late":2`},
	} {
		for _, write := range []string{"append", "insert", "upsert"} {
			for _, id := range []string{"{position: true}", "{fields: [value.mid]}"} {
				if id != "{position: true}" && name != "first, middle, last" {
					continue
				}
				t.Run(strings.Join([]string{name, write, id}, " "), func(t *testing.T) {
					t.Parallel()
					s := newScene(t, 1, `CREATE TABLE parent (id int PRIMARY KEY);
						CREATE TABLE t (id int PRIMARY KEY, s varchar(3), p int REFERENCES parent, late int REFERENCES parent DEFERRABLE INITIALLY DEFERRED, pos int CHECK (pos > 0))`)
					s.send(numbered(500, func(i int) string {
						if b, ok := bad[i]; ok {
							return fmt.Sprintf(`{"id":%d,"mid":"m%d",%s}`, i, i, b)
						}
						return fmt.Sprintf(`{"id":%d,"mid":"m%d"}`, i, i)
					})...)
					s.send(`{"id":500,"mid":"m500"}`, `{"id":0,"mid":"later"}`) // later ones of the same key go on
					s.run(s.route("id: "+id, "to: {table: t, write: "+write+", columns: {id: value.id, s: value.s, p: value.p, late: value.late, pos: value.pos}}", "batch: {messages: 500}"))
					rows := 501 - len(bad)
					if bad[0] != "" {
						rows++
					}
					if write == "append" && bad[0] == "" {
						s.want(`SELECT sqlstate FROM semel.dead_letter WHERE "offset" = 501`, "23505")
						s.exec(`DELETE FROM semel.dead_letter WHERE "offset" = 501`)
					}
					s.want("SELECT count(*) FROM t", fmt.Sprint(rows))
					states := map[byte]string{'s': "value 22001", 'p': "constraint 23503", 'l': "constraint 23503"}
					var want []string
					for i := range 500 {
						b, ok := bad[i]
						switch {
						case !ok:
						case strings.HasPrefix(b, `"pos`):
							want = append(want, fmt.Sprintf("0/%d constraint 23514", i))
						default:
							want = append(want, fmt.Sprintf("0/%d %s", i, states[b[1]]))
						}
					}
					if got := s.dead(); got != strings.Join(want, ", ") {
						t.Errorf("dead %s\nwant %s", got, strings.Join(want, ", "))
					}
					s.sums()
				})
			}
		}
	}
}

// costs runs rows in a database of their own and answers how many transactions the server counted there.
type costs struct {
	server *devenv.Postgres
	aside  *pgxpool.Pool
}

func newCosts(t *testing.T) *costs {
	t.Helper()
	// A vacuum that comes by would be counted too.
	server := testenv.OwnPostgres(t, map[string]string{"autovacuum": "off"})
	aside, err := pgxpool.New(within(t), server.URL())
	must(t, err)
	t.Cleanup(aside.Close)
	return &costs{server, aside}
}

type cost struct{ committed, rolledBack, letters int64 }

func (c cost) transactions() int64 { return c.committed + c.rolledBack }

// of settles n rows that the line gives.
func (c *costs) of(t *testing.T, n int, line func(i int) string, cfg postgres.TableConfig, edit ...func(*inbox.Config[pgx.Tx])) (out cost) {
	t.Helper()
	database := "run_" + strings.ToLower(rand.Text()[:12])
	_, err := c.aside.Exec(within(t), "CREATE DATABASE "+database)
	must(t, err)
	u, err := url.Parse(c.server.URL())
	must(t, err)
	u.Path = "/" + database
	s := makeScene(t, testenv.Brokers(t), testenv.Topic(t, 1), u.String(), "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, late int REFERENCES parent DEFERRABLE INITIALLY DEFERRED, pos int CHECK (pos > 0))")
	s.send(numbered(n, line)...)
	s.alone(int64(n), cfg, edit...)
	out.letters = int64(s.count("semel.dead_letter"))
	s.want("SELECT count(*) FROM t", fmt.Sprint(int64(n)-out.letters))
	// The server counts the asking too, unless it is asked from another database. Sessions that have ended have told
	// all they did.
	s.db.Reset()
	until(t, "all sessions are gone", func() bool {
		var left int
		must(t, c.aside.QueryRow(within(t), `SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = $1), xact_commit, xact_rollback
			FROM pg_stat_database WHERE datname = $1`, database).Scan(&left, &out.committed, &out.rolledBack))
		return left == 0
	})
	return out
}

// G28: what one bad row in 5,000 costs, counted by the server.
func TestOneBadRowCostsFewTransactions(t *testing.T) {
	t.Parallel()
	const n = 5000
	costs := newCosts(t)
	for _, write := range []string{"append", "insert", "upsert"} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			run := func(bad int, field string) int64 {
				return costs.of(t, n, func(i int) string {
					if i == bad {
						return fmt.Sprintf(`{"id":%d,%s}`, i, field)
					}
					return fmt.Sprintf(`{"id":%d}`, i)
				}, postgres.TableConfig{Table: "t", Write: postgres.WriteMode(write)}).transactions()
			}
			// How a run begins and ends costs one or two more or less: what is ready when, and a transaction begun for nothing.
			none := max(run(-1, ""), run(-1, ""), run(-1, ""))
			for _, bad := range []struct {
				at    int
				field string
			}{{0, `"pos":0`}, {3333, `"late":2`}, {n - 1, `"pos":0`}} {
				more := run(bad.at, bad.field) - none
				t.Logf("a bad row at %d: %d more than %d", bad.at, more, none)
				// The one that fails and the one that sifts; the run's own vary by as many.
				if more > 5 {
					t.Errorf("a bad row at %d costs %d transactions more", bad.at, more)
				}
			}
		})
	}
}

// G28: a thousand bad rows don't become a thousand transactions: what a batch costs more is the one that failed.
func TestAThousandBadRowsCostFewTransactions(t *testing.T) {
	t.Parallel()
	const every, batch = 10, 2500 // the whole is run where rows cost least
	costs := newCosts(t)
	for write, n := range map[string]int{"append": 10_000, "insert": 2500, "upsert": 2500} {
		t.Run(write, func(t *testing.T) {
			t.Parallel()
			run := func(bad bool) cost {
				return costs.of(t, n, func(i int) string {
					if !bad || i%every != 7 {
						return fmt.Sprintf(`{"id":%d}`, i)
					}
					return fmt.Sprintf(`{"id":%d,%s}`, i, []string{`"pos":0`, `"late":2`, `"pos":-1`}[i%3])
				}, postgres.TableConfig{Table: "t", Write: postgres.WriteMode(write)}, func(c *inbox.Config[pgx.Tx]) {
					c.Batch.Messages = batch
					c.OnError.InARow, c.OnError.Share = -1, -1
				})
			}
			none, bad := run(false), run(true)
			t.Logf("%d and %d transactions committed and rolled back for %d bad rows, %d and %d for none",
				bad.committed, bad.rolledBack, bad.letters, none.committed, none.rolledBack)
			if none.letters != 0 || bad.letters != int64(n/every) {
				t.Fatalf("%d and %d letters", none.letters, bad.letters)
			}
			// Batches may be cut where a poll ended, and a transaction begun for nothing.
			if more := bad.transactions() - none.transactions(); more > int64(2*n/batch+3) {
				t.Errorf("%d transactions more for %d batches", more, n/batch)
			}
		})
	}
}

// A trigger that looks at other rows sees those that came before, whatever their keys: a batch is what its messages are one
// by one.
func TestTriggersSeeRowsAsTheyCame(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"append":             {"id: {position: true}", "to: {table: s, write: append}"},
		"insert":             {"id: {position: true}", "to: {table: s, write: insert}"},
		"insert, remembered": {"id: {fields: [value.k]}", "to: {table: s, write: insert}"},
		"upsert":             {"id: {position: true}", "to: {table: s, write: upsert}"},
	} {
		for _, messages := range []int{1, 1000} {
			t.Run(fmt.Sprint(name, ", batches of ", messages), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, `CREATE TABLE s (k int PRIMARY KEY, v int);
					CREATE FUNCTION after_two() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
						IF new.v = 1 AND EXISTS (SELECT FROM s WHERE v = 2) THEN RAISE check_violation; END IF; RETURN new; END $$;
					CREATE TRIGGER after_two BEFORE INSERT OR UPDATE ON s FOR EACH ROW EXECUTE FUNCTION after_two()`)
				s.send(`{"k":5,"v":1}`, `{"k":4,"v":2}`, `{"k":3,"v":1}`)
				s.run(s.route(append([]string{fmt.Sprintf("batch: {messages: %d}", messages)}, lines...)...))
				s.want("SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) FROM s", "4 2, 5 1")
				if got := s.dead(); got != "0/2 constraint 23514" {
					t.Errorf("dead: %s", got)
				}
			})
		}
	}
}
