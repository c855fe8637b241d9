package cases_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A table is followed through its messages, deletions too, whatever share a batch.
func TestAMirrorFollowsItsTable(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 3, 1000} {
		t.Run(fmt.Sprint("batches of ", messages), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v <> 'bad'))")
			r := func(key, value string) *kgo.Record {
				r := &kgo.Record{Key: []byte(key)}
				if value != "" {
					r.Value = []byte(value)
				}
				return r
			}
			route := s.route(fmt.Sprintf("batch: {messages: %d}", messages), "id: {position: true}", "to: {table: t, write: mirror}")
			s.produce(r("1", `{"id":1,"v":"a"}`), r("2", `{"id":2,"v":"a"}`), r("1", ""), r("3", `{"id":3,"v":"bad"}`), r("3", `{"id":3,"v":"b"}`), r("9", ""))
			s.run(route)
			s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t", "2a 3b")
			s.produce(r("2", ""), r("2", `{"id":2,"v":"c"}`), r("3", ""))
			s.run(route)
			s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM t", "2c")
			if got := s.dead(); got != "0/3 constraint 23514" {
				t.Errorf("dead: %s", got)
			}
		})
	}
}

// A balance counts each payment once, though it is sent and delivered again, and no
// payment is refused for what only another one makes of the balance.
func TestABalanceCountsEachPaymentOnce(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 4, 1000} {
		t.Run(fmt.Sprint("batches of ", messages), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2, "CREATE TABLE account (id text PRIMARY KEY, balance numeric(12,2) NOT NULL CHECK (balance >= 0))")
			route := s.route(fmt.Sprintf("batch: {messages: %d}", messages), "id: {fields: [value.payment]}",
				"to: {table: account, write: upsert, columns: {id: value.account, balance: value.amount}, combine: {balance: add}}")
			pay := func(n int, account, amount string) *kgo.Record {
				return &kgo.Record{Value: fmt.Appendf(nil, `{"payment":%d,"account":%q,"amount":%s}`, n, account, amount)}
			}
			var rs []*kgo.Record
			for i := range 100 {
				rs = append(rs, pay(i, fmt.Sprint("a", i%3), "1.10"), pay(i/2, fmt.Sprint("a", i/2%3), "1.10"))
			}
			s.produce(rs...)
			s.run(route)
			s.want("SELECT string_agg(id || '=' || balance, ' ' ORDER BY id) FROM account", "a0=37.40 a1=36.30 a2=36.30")
			s.produce(pay(200, "a0", "-37.40"), pay(201, "a0", "-0.01"), pay(202, "a0", "0.01"), pay(203, "a0", "-0.01"), pay(200, "a0", "-37.40"))
			s.run(route)
			s.want("SELECT string_agg(id || '=' || balance, ' ' ORDER BY id) FROM account", "a0=0.00 a1=36.30 a2=36.30")
			if got := s.dead(); got != "0/201 constraint 23514" {
				t.Errorf("dead: %s", got)
			}
		})
	}
}

// SQL of the user's own takes effect once for each message, in any batch; what it
// leaves out is dead where the route says that it names each.
func TestSQLTakesEffectOnce(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{1, 7, 1000} {
		t.Run(fmt.Sprint("batches of ", messages), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE account (id text PRIMARY KEY, balance numeric NOT NULL); INSERT INTO account VALUES ('a', 0), ('b', 0)")
			route := s.route(fmt.Sprintf("batch: {messages: %d}", messages), "id: {fields: [value.payment]}", `to:
      relation: {account: {type: text, from: value.account}, amount: {type: numeric, from: value.amount}}
      sql: |
        WITH paid AS (
          UPDATE account SET balance = balance + b.total
          FROM (SELECT account, sum(amount) AS total FROM batch GROUP BY account) b
          WHERE id = b.account RETURNING id)
        SELECT batch.n FROM batch JOIN paid ON paid.id = batch.account
      expect: each`)
			var values []string
			for i := range 60 {
				values = append(values, fmt.Sprintf(`{"payment":%d,"account":%q,"amount":0.10}`, i, "aab"[i%3:i%3+1]), fmt.Sprintf(`{"payment":%d,"account":%q,"amount":0.1}`, i/2, "aab"[i/2%3:i/2%3+1]))
			}
			s.send(append(values, `{"payment":99,"account":"x","amount":1}`, `{"payment":100,"account":"a","amount":"much"}`)...)
			s.run(route)
			s.want("SELECT string_agg(id || '=' || balance, ' ' ORDER BY id) FROM account", "a=4.00 b=2.00")
			if got := s.dead(); got != "0/120 handler, 0/121 value" {
				t.Errorf("dead: %s", got)
			}
		})
	}
}

// G15: what happens to a key happens in its order, deletions too: rows are not written first and deleted last. The border
// of the batch is at every place.
func TestDeletionsKeepTheirPlaceInAKey(t *testing.T) {
	t.Parallel()
	type step struct{ key, value string }
	steps := []step{
		{"7", `{"id":7,"v":"first"}`},
		{"8", `{"id":8,"v":"first"}`},
		{"7", ""},
		{"8", ""},
		{"7", `{"id":7,"v":"last"}`},
		{"9", ""},
		{"9", `{"id":9,"v":"last"}`},
		{"7", ""},
		{"7", `{"id":7,"v":"at last"}`},
		{"6", `{"id":6,"v":"first"}`},
		{"6", ""},
	}
	for messages := 1; messages <= len(steps); messages++ {
		for name, to := range map[string]string{
			"plain":   "to: {table: t, write: mirror}",
			"version": "to: {table: t, write: mirror, version: headers.ver, deleted: gone}",
		} {
			t.Run(fmt.Sprint(name, ", batches of ", messages), func(t *testing.T) {
				t.Parallel()
				columns := "id int PRIMARY KEY, v text"
				if name == "version" {
					columns += ", ver bigint, gone timestamptz"
					to = strings.Replace(to, "deleted:", "columns: {id: value.id, v: value.v, ver: headers.ver}, deleted:", 1)
				}
				s := newScene(t, 1, "CREATE TABLE t ("+columns+")")
				for i, st := range steps {
					r := &kgo.Record{Key: []byte(st.key), Headers: []kgo.RecordHeader{{Key: "ver", Value: fmt.Append(nil, i+1)}}}
					if st.value != "" {
						r.Value = []byte(st.value)
					}
					s.produce(r)
				}
				s.run(s.route(fmt.Sprintf("batch: {messages: %d}", messages), "id: {position: true}", to))
				where := ""
				if name == "version" {
					where = " WHERE gone IS NULL"
				}
				s.want("SELECT string_agg(id || ' ' || v, ', ' ORDER BY id) FROM t"+where, "7 at last, 9 last")
				if got := s.dead(); got != "" {
					t.Errorf("dead: %s: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
				}
			})
		}
	}
}

// G26: null that is said and null that isn't are two things: one empties the column in every mode, the other leaves it
// where rows are patched.
func TestAnExplicitNullIsWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ to, want string }{
		"whole row":          {"write: upsert", "7 NULL NULL, 8 NULL y, 9 NULL NULL"},
		"patch":              {"write: upsert, absent: keep", "7 NULL kept, 8 NULL y, 9 x kept"},
		"patch by mirror":    {"write: mirror, absent: keep", "7 NULL kept, 8 NULL y, 9 x kept"},
		"patch, mapped":      {"write: upsert, absent: keep, columns: {id: value.id, nick: value.nick, other: value.other}", "7 NULL kept, 8 NULL y, 9 x kept"},
		"whole row, mapped":  {"write: upsert, columns: {id: value.id, nick: value.nick, other: value.other}", "7 NULL NULL, 8 NULL y, 9 NULL NULL"},
		"whole row by table": {"write: mirror", "7 NULL NULL, 8 NULL y, 9 NULL NULL"},
	} {
		for _, messages := range []int{1, 1000} {
			t.Run(fmt.Sprint(name, ", batches of ", messages), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, "CREATE TABLE t (id int PRIMARY KEY, nick text, other text); INSERT INTO t SELECT i, 'x', 'kept' FROM generate_series(7, 9) i")
				s.send(`{"id":7,"nick":null}`, `{"id":8,"nick":"z"}`, `{"id":8,"nick":null,"other":"y"}`, `{"id":9}`)
				s.run(s.route(fmt.Sprintf("batch: {messages: %d}", messages), "id: {position: true}", "to: {table: t, "+c.to+"}"))
				s.want("SELECT string_agg(concat_ws(' ', id, coalesce(nick, 'NULL'), coalesce(other, 'NULL')), ', ' ORDER BY id) FROM t", c.want)
				if got := s.dead(); got != "" {
					t.Errorf("dead: %s: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
				}
			})
		}
	}
}

// Several patches of a key in a batch in which no message adds anything.
func TestPatchesThatAddNothingShareABatch(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE t (id int PRIMARY KEY, v text, bal int)")
	route := s.route("id: {position: true}", "to: {table: t, write: upsert, absent: keep, combine: {bal: add}}")
	s.send(`{"id":1,"v":"a","bal":5}`)
	s.run(route)
	s.send(`{"id":1,"v":"b"}`, `{"id":1,"v":"c"}`, `{"id":2,"v":"x"}`, `{"id":2,"v":"y"}`)
	s.run(route)
	s.want("SELECT string_agg(concat_ws(' ', id, bal, v), ', ' ORDER BY id) FROM t", "1 5 c, 2 y")
	if got := s.dead(); got != "" {
		t.Errorf("dead: %s: %s", got, s.ask("SELECT string_agg(error, ', ') FROM semel.dead_letter"))
	}
}
