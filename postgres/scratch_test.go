package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

const scratchDDL = `
	CREATE SCHEMA shop;
	CREATE SEQUENCE number;
	CREATE TABLE shop.account (id text PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0));
	INSERT INTO shop.account VALUES ('a', 100);
	CREATE TABLE entry (no bigint PRIMARY KEY DEFAULT nextval('number'), account text REFERENCES shop.account, amount numeric);
	CREATE TABLE audit (no bigserial, what text);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit (what) VALUES (NEW.account); RETURN NULL; END $$;
	CREATE TRIGGER note AFTER INSERT ON entry FOR EACH ROW EXECUTE FUNCTION note()`

// scratchPayments moves balances in tables with and without a schema before their name.
const scratchPayments = `WITH paid AS (UPDATE shop.account AS a SET balance = balance + b.amount FROM batch b WHERE a.id = b.account RETURNING b.n, a.id, b.amount),
	made AS (INSERT INTO entry (account, amount) SELECT id, amount FROM paid)
	SELECT n FROM paid`

func scratchItems(values ...string) []inbox.Item {
	items := make([]inbox.Item, len(values))
	for i, v := range values {
		items[i].Message = semel.Message{Topic: "t", Offset: int64(i), Value: []byte(v)}
	}
	return items
}

func TestSQLIsTriedOnCopiesAlone(t *testing.T) {
	t.Parallel()
	ctx, url := context.Background(), testenv.Postgres(t)
	conn, other := tableConnect(t, url), tableConnect(t, url)
	_, err := conn.Exec(ctx, scratchDDL)
	must(t, err)
	cfg := queryConfig(scratchPayments, true)
	accounts, entries := postgres.TableName{Schema: "shop", Name: "account"}, postgres.TableName{Name: "entry"}
	s, err := postgres.NewScratch(ctx, conn, postgres.ScratchConfig{Query: &cfg, Named: []postgres.TableName{accounts, entries}})
	must(t, err)
	defer s.Close()
	must(t, s.Give(ctx, accounts, `{"id": "a", "balance": 1}`))
	must(t, s.Ready(ctx))
	items := scratchItems(`{"account":"a","amount":2}`, `{"account":"a","amount":-9}`, `{"account":"b","amount":2}`, `{"account":"a","amount":3}`)
	q := s.Query()
	q.Decode(items)
	must(t, s.Apply(ctx, q, false, items))
	for i, want := range []inbox.Outcome{inbox.Applied, inbox.Dead, inbox.Dead, inbox.Applied} {
		if items[i].Outcome != want {
			t.Errorf("message %d is %v (%v), not %v", i, items[i].Outcome, items[i].Err, want)
		}
	}
	for name, want := range map[postgres.TableName]string{accounts: `[map[balance:6.00 id:"a"]]`, entries: `[map[account:"a" amount:2.00 no:1] map[account:"a" amount:3.00 no:2]]`} {
		rows, err := s.Rows(ctx, name)
		must(t, err)
		var got []string
		for _, row := range rows {
			text := map[string]string{}
			for k, v := range row {
				text[k] = string(v)
			}
			got = append(got, fmt.Sprint(text))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v: %v, not %v", name, got, want)
		}
	}
	if len(s.Lacks()) > 0 {
		t.Error(s.Lacks())
	}

	// Nobody waits for it but who alters what was copied.
	var locks string
	must(t, other.QueryRow(ctx, `SELECT string_agg(DISTINCT mode, ' ') FROM pg_locks WHERE pid = $1 AND locktype = 'relation'
		AND relation IN ('shop.account'::regclass, 'entry'::regclass, 'audit'::regclass, 'number'::regclass)`, conn.PgConn().PID()).Scan(&locks))
	if locks != "AccessShareLock" {
		t.Error("it holds", locks)
	}
	s.Close()
	var left string
	must(t, conn.QueryRow(ctx, `SELECT concat_ws(' ', (SELECT balance FROM shop.account), (SELECT count(*) FROM entry), (SELECT count(*) FROM audit), (SELECT is_called FROM number), to_regclass('pg_temp.entry'))`).Scan(&left))
	if left != "100 0 0 f" {
		t.Error("it left", left)
	}
}

func TestATriggerDoesNotReachOutOfTheCopies(t *testing.T) {
	t.Parallel()
	ctx, conn := context.Background(), tableConnect(t, testenv.Postgres(t))
	_, err := conn.Exec(ctx, `
		CREATE TABLE audit (what text);
		CREATE TABLE plain (id bigint PRIMARY KEY);
		CREATE FUNCTION reach() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.audit VALUES ('x'); RETURN NULL; END $$;
		CREATE TRIGGER reach AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION reach()`)
	must(t, err)
	s, err := postgres.NewScratch(ctx, conn, postgres.ScratchConfig{Table: postgres.TableName{Name: "plain"}})
	must(t, err)
	defer s.Close()
	must(t, s.Ready(ctx))
	table, err := postgres.NewTable(ctx, s.DB(), postgres.TableConfig{Table: s.Name().String(), Write: postgres.WriteUpsert})
	must(t, err)
	items := scratchItems(`{"id":1}`)
	table.Decode(items)
	if err := s.Apply(ctx, table, false, items); !errors.Is(err, postgres.ErrNotCopied) {
		t.Errorf("it wrote to the real table: %v", err)
	}
}

func TestTwoTablesOfOneNameCanNotBeCopied(t *testing.T) {
	t.Parallel()
	ctx, conn := context.Background(), tableConnect(t, testenv.Postgres(t))
	_, err := conn.Exec(ctx, `CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE a.account (id text); CREATE TABLE b.account (id text)`)
	must(t, err)
	cfg := queryConfig("INSERT INTO a.account SELECT account FROM batch WHERE account NOT IN (SELECT id FROM b.account)", false)
	_, err = postgres.NewScratch(ctx, conn, postgres.ScratchConfig{Query: &cfg})
	var mistake *postgres.TableError
	if !errors.As(err, &mistake) {
		t.Errorf("%v", err)
	}
}
