package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

func queryConfig(sql string, each bool) postgres.QueryConfig {
	return postgres.QueryConfig{
		TableConfig: postgres.TableConfig{Identified: true, Columns: map[string]string{"account": "value.account", "amount": "value.amount"}},
		Relation:    []postgres.QueryColumn{{"account", "text"}, {"amount", "numeric(12,2)"}}, SQL: sql, Each: each,
	}
}

func newQueryBench(t *testing.T, ddl string, cfg postgres.QueryConfig) *tableBench {
	t.Helper()
	b := &tableBench{t: t, ctx: context.Background(), conn: tableConnect(t, testenv.Postgres(t)), known: map[semel.ID]bool{}}
	b.exec(ddl)
	q, err := postgres.NewQuery(b.ctx, b.conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.table, b.effect = q.Table, q
	return b
}

const queryAccounts = `CREATE TABLE account (id text PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0)); INSERT INTO account VALUES ('a', 10), ('b', 0)`

func TestSQLIsRunOverTheBatch(t *testing.T) {
	t.Parallel()
	b := newQueryBench(t, queryAccounts, queryConfig(`UPDATE account SET balance = balance + b.total
		FROM (SELECT account, sum(amount) AS total FROM batch GROUP BY account) b WHERE account.id = b.account`, false))
	b.want(b.send(`={"account":"a","amount":0.10}`, `={"account":"a","amount":"0.20"}`, `={"account":"c","amount":1}`, `={"account":"a","amount":0.001}`, `k=`), "aaax-")
	b.want(b.send(`={"account":"b","amount":-1}`, `={"account":"a","amount":1}`), "xa")
	if got := b.ask("SELECT string_agg(id || balance, ' ' ORDER BY id) FROM account"); got != "a11.30 b0" {
		t.Error(got)
	}
	many := make([]string, 3000)
	for i := range many {
		many[i] = `={"account":"b","amount":0.01}`
	}
	b.want(b.send(many...), strings.Repeat("a", 3000))
	if got := b.ask("SELECT balance::text FROM account WHERE id = 'b'"); got != "30.00" {
		t.Error(got)
	}
}

func TestAMessageThatTheSQLDoesNotNameIsDead(t *testing.T) {
	t.Parallel()
	const update = `UPDATE account SET balance = balance + b.amount FROM batch b WHERE account.id = b.account RETURNING b.n`
	for _, sql := range []string{update, "INSERT INTO log SELECT account FROM batch; " + update + "; SELECT 1"} {
		b := newQueryBench(t, queryAccounts+"; CREATE TABLE log (a text)", queryConfig(sql, true))
		items := b.send(`={"account":"x","amount":1}`, `={"account":"a","amount":1}`, `={"account":"b","amount":-1}`, `={"account":null,"amount":1}`)
		b.want(items, "xaxx")
		if items[0].Err == nil || items[0].Err.Error() != "no effect: the SQL returned no n for it" || items[2].Class != inbox.DeadConstraint {
			t.Errorf("%v, %v", items[0].Err, items[2].Class)
		}
		if got := b.ask("SELECT string_agg(id || balance, ' ' ORDER BY id) FROM account"); got != "a11.00 b0" {
			t.Error(got)
		}
	}
}

func TestARelationHasAnyType(t *testing.T) {
	t.Parallel()
	cfg := queryConfig(`INSERT INTO r SELECT id, kind, ns, doc, at, ip FROM batch ORDER BY n`, false)
	cfg.Relation = nil
	cfg.Columns = map[string]string{}
	for _, c := range []postgres.QueryColumn{{"id", "positive"}, {"kind", "kind"}, {"ns", "numeric(5,1)[]"}, {"doc", "jsonb"}, {"at", "timestamptz"}, {"ip", "inet"}} {
		cfg.Relation = append(cfg.Relation, c)
		cfg.Columns[c.Name] = "value." + c.Name
	}
	cfg.Epoch = map[string]postgres.EpochUnit{"at": postgres.EpochMillis}
	b := newQueryBench(t, `CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE kind AS ENUM ('a b');
		CREATE TABLE r (id int, kind kind, ns numeric[], doc jsonb, at timestamptz, ip inet)`, cfg)
	b.want(b.send(`={"id":1,"kind":"a b","ns":[1.5,null],"doc":{"a":9007199254740993},"at":1700000000000,"ip":"10.0.0.1/8"}`,
		`={"id":0}`, `={"id":2,"kind":"c"}`, `={"id":3,"ns":[1.55]}`, `={"id":4}`), "axxxa")
	if got := b.ask("SELECT concat_ws(' ', id, kind, ns, doc, extract(epoch FROM at)::int, ip) FROM r WHERE id = 1"); got != `1 a b {1.5,NULL} {"a": 9007199254740993} 1700000000 10.0.0.1/8` {
		t.Error(got)
	}
}

func TestSQLThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	conn := tableConnect(t, testenv.Postgres(t))
	ctx := context.Background()
	role := "q" + strings.ToLower(conn.Config().Database)
	if _, err := conn.PgConn().Exec(ctx, queryAccounts+"; CREATE ROLE "+role).ReadAll(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.PgConn().Exec(ctx, "RESET ROLE; DROP OWNED BY "+role+"; DROP ROLE "+role).ReadAll(); err != nil {
			t.Error(err)
		}
	})
	refused := func(cfg postgres.QueryConfig, why string) {
		t.Helper()
		_, err := postgres.NewQuery(ctx, conn, cfg)
		var te *postgres.TableError
		if !errors.As(err, &te) || !strings.Contains(te.Error(), why) {
			t.Errorf("%v, want %s", err, why)
		}
	}
	refused(queryConfig("UPDATE acount SET balance = 1", false), `relation "acount" does not exist (42P01), at character 8`)
	refused(queryConfig("SELECT sum(amont) FROM batch; UPDATE account SET balance = 1", false), `column "amont" does not exist`)
	refused(queryConfig("UPDATE account balance = 1", false), "syntax error")
	refused(queryConfig("UPDATE account SET balance = $1", false), "the SQL has parameters")
	refused(queryConfig("UPDATE account SET balance = 1 RETURNING id", true), "the SQL returns no column n")
	cfg := queryConfig("SELECT 1", false)
	cfg.Relation[0].Type = "txt"
	refused(cfg, `there is no type "txt"`)
	cfg.Relation[0].Type = "text); DROP TABLE account; --"
	refused(cfg, `there is no type`)
	cfg.Relation[0] = postgres.QueryColumn{"n", "int"}
	refused(cfg, "it is the message's number")
	if _, err := conn.Exec(ctx, "SET ROLE "+role); err != nil {
		t.Fatal(err)
	}
	refused(queryConfig("UPDATE account SET balance = 1", false), "permission denied for table account (42501)")
}

func TestSQLThatFailsForAnotherReasonHaltsTheRoute(t *testing.T) {
	t.Parallel()
	b := newQueryBench(t, queryAccounts, queryConfig("SELECT 1 AS one; UPDATE account SET balance = b.amount FROM batch b RETURNING 7 AS n", true))
	items := []inbox.Item{{Message: semel.Message{Value: []byte(`{"account":"a","amount":1}`)}}}
	b.table.Decode(items)
	var halt *inbox.HaltError
	if err := b.once(items); !errors.As(err, &halt) || halt.Kind != "no-numbers" {
		t.Error(err)
	}
	b.exec("DROP TABLE account")
	if err := b.once(items); postgres.SQLStateClass(sqlStateOf(err)) != inbox.ClassRoute {
		t.Error(err)
	}
}

func sqlStateOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
