package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/semelhq/semel/inbox"
)

// queryShapes are ways to insert id and v; other columns are nobody's.
var queryShapes = map[string]string{
	"one statement":      `INSERT INTO t (id, v) SELECT id, v FROM batch`,
	"several statements": `INSERT INTO t (id, v) SELECT id, v FROM batch; /* ; */ SELECT ';', $a$;$a$; -- ;`,
	"in a query":         `WITH i AS (INSERT INTO t (id, v) SELECT id, v FROM batch RETURNING id) SELECT count(*) FROM i`,
	"known rows apart":   `INSERT INTO t AS t (v, id) SELECT DISTINCT ON (id) v, id FROM batch ORDER BY id ON CONFLICT (id) DO UPDATE SET v = excluded.v`,
	"without a list":     `INSERT INTO t SELECT id, v FROM batch`,
}

func newFillsBench(t *testing.T, shape, more string) *tableBench {
	t.Helper()
	cfg := queryConfig(shape, false)
	cfg.Relation[0].Name, cfg.Relation[0].Type, cfg.Relation[1].Name = "id", "int", "v"
	cfg.Columns = map[string]string{"id": "value.id", "v": "value.v"}
	return newQueryBench(t, `CREATE TABLE t (id int PRIMARY KEY, v numeric NOT NULL, w text, x int NOT NULL DEFAULT 7);`+more, cfg)
}

// A column that nothing fills is none of a message's fault, whether it was there when
// the route began or came while it runs.
func TestAColumnThatTheSQLDoesNotFillHaltsTheRoute(t *testing.T) {
	t.Parallel()
	for name, shape := range queryShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, alter := range []string{
				`ALTER TABLE t ADD y int NOT NULL`,
				`ALTER TABLE t ALTER w SET NOT NULL`,
				`ALTER TABLE t ALTER x DROP DEFAULT`,
			} {
				for _, running := range []bool{true, false} {
					var b *tableBench
					if running {
						b = newFillsBench(t, shape, "")
						b.want(b.send(`={"id":1,"v":1}`), "a")
						b.exec("TRUNCATE t;" + alter)
					} else {
						b = newFillsBench(t, shape, alter)
					}
					items := b.items(`{"id":2,"v":2}`, `{"id":3,"v":3}`)
					var halt *inbox.HaltError
					if err := b.attempt(items); !errors.As(err, &halt) || halt.Kind != "table-changed" || !strings.Contains(halt.Why, "public.t") && !strings.Contains(halt.Why, "of t:") {
						t.Errorf("%s, running %t: %v", alter, running, err)
					}
				}
			}
		})
	}
}

// A null that a message brings makes that message dead, whatever else has changed.
func TestANullOfAMessageInSQLIsBuried(t *testing.T) {
	t.Parallel()
	for name, shape := range queryShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFillsBench(t, shape, "")
			b.exec(`ALTER TABLE t ADD y int NOT NULL DEFAULT 1, ALTER w SET DEFAULT 'w'`)
			b.want(b.send(`={"id":1,"v":1}`, `={"id":2}`, `={"id":3,"v":null}`, `={"id":4,"v":4}`), "axxa")
		})
	}
}

// What else than the statement may make a column, or may have met the null.
func TestANullThatTheDatabaseMakesOfAMessageIsBuried(t *testing.T) {
	t.Parallel()
	shape := queryShapes["one statement"]
	for name, ddl := range map[string]string{
		"an expression": `ALTER TABLE t ADD y numeric NOT NULL GENERATED ALWAYS AS (nullif(v, 2)) STORED`,
		"a trigger": `CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.y = nullif(NEW.v, 2); RETURN NEW; END $$;
			ALTER TABLE t ADD y numeric NOT NULL; CREATE TRIGGER fill BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()`,
		"another table": `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (nullif(NEW.v, 2)); RETURN NULL; END $$;
			CREATE TABLE seen (w numeric NOT NULL); CREATE TRIGGER audit AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION audit()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFillsBench(t, shape, ddl)
			b.want(b.send(`={"id":1,"v":1}`, `={"id":2,"v":2}`, `={"id":3,"v":3}`), "axa")
		})
	}
	t.Run("another statement", func(t *testing.T) {
		t.Parallel()
		b := newFillsBench(t, `INSERT INTO t (id, v, w) SELECT id, v, 'w' FROM batch; INSERT INTO t (id, v, w, x) SELECT -id, v, nullif(v, 2)::text, 1 FROM batch`, `ALTER TABLE t ALTER w SET NOT NULL`)
		b.want(b.send(`={"id":1,"v":1}`, `={"id":2,"v":2}`, `={"id":3,"v":3}`), "axa")
	})
}

// A row goes into a partition, and that is where the server misses a column.
func TestAPartitionsColumnThatTheSQLDoesNotFillHaltsTheRoute(t *testing.T) {
	t.Parallel()
	cfg := queryConfig(`INSERT INTO p (b, a) SELECT amount, account FROM batch`, false)
	b := newQueryBench(t, `CREATE TABLE p (gone int, a text, b numeric NOT NULL) PARTITION BY LIST (a); ALTER TABLE p DROP gone; ALTER TABLE p ADD c int;
		CREATE TABLE "P 1" (c int, b numeric NOT NULL, a text); ALTER TABLE p ATTACH PARTITION "P 1" DEFAULT`, cfg)
	b.want(b.send(`={"account":"a","amount":1}`, `={"account":"a"}`), "ax")
	b.exec(`TRUNCATE p; ALTER TABLE p ALTER c SET NOT NULL`)
	var halt *inbox.HaltError
	if err := b.attempt(b.items(`{"account":"a","amount":1}`)); !errors.As(err, &halt) || halt.Kind != "table-changed" {
		t.Error(err)
	}
}
