package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// written is a format whose messages are JSON already, and whose schema is known.
type written struct{ of func(data []byte) *sink.Type }

func (written) AppendJSON(dst, data []byte) ([]byte, error) { return append(dst, data...), nil }
func (w written) TypeOf(data []byte) *sink.Type             { return w.of(data) }

func fields(pairs ...any) *sink.Type {
	t := &sink.Type{Kind: sink.TypeRecord}
	for i := 0; i < len(pairs); i += 2 {
		of, ok := pairs[i+1].(*sink.Type)
		if !ok {
			of = &sink.Type{Kind: pairs[i+1].(sink.TypeKind)}
		}
		t.Fields = append(t.Fields, sink.Field{Name: pairs[i].(string), Type: of})
	}
	return t
}

func fitPool(t *testing.T, ddl string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(context.Background(), ddl); err != nil {
		t.Fatal(err)
	}
	return pool
}

// fitting is a route that may do anything with its table.
func fitting(pool *pgxpool.Pool, table string, value *sink.Type) postgres.TableConfig {
	return postgres.TableConfig{
		Table: table, Write: postgres.WriteUpsert, PrimaryKey: []string{"id"},
		Open: []sink.Opener{sink.Formats(written{func([]byte) *sink.Type { return value }}, nil)},
		Fit:  &postgres.Fit{DB: pool, Create: true, Evolve: true},
	}
}

func fit(cfg postgres.TableConfig, value *sink.Type) error {
	return postgres.FitTable(context.Background(), cfg, []sink.Types{{Value: value}})
}

func mistakes(t *testing.T, err error) string {
	t.Helper()
	var wrong *postgres.TableError
	if !errors.As(err, &wrong) {
		t.Fatalf("no mistake of the route: %v", err)
	}
	return err.Error() + " | " + wrong.Hint
}

func columnsOf(t *testing.T, pool *pgxpool.Pool, table string) string {
	t.Helper()
	var text string
	err := pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(attname || ' ' || format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END, ', ' ORDER BY attnum), '')
		FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0`, table).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestATableIsMadeByItsSchema(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "")
	array := func(elem *sink.Type) *sink.Type { return &sink.Type{Kind: sink.TypeArray, Elem: elem} }
	of := func(k sink.TypeKind) *sink.Type { return &sink.Type{Kind: k} }
	value := fields("id", sink.TypeInt64, "Mixed \"Case\"", sink.TypeText, "bool", sink.TypeBool, "small", sink.TypeInt16, "int", sink.TypeInt32,
		"f4", sink.TypeFloat32, "f8", sink.TypeFloat64, "d", &sink.Type{Kind: sink.TypeDecimal, Precision: 15, Scale: 5}, "any_d", sink.TypeDecimal, "vast", &sink.Type{Kind: sink.TypeDecimal, Precision: 2000},
		"raw", sink.TypeBytes, "u", sink.TypeUUID, "b", &sink.Type{Kind: sink.TypeBits, Precision: 7}, "bs", sink.TypeBits, "day", sink.TypeDate, "clock", sink.TypeClock, "zoned", sink.TypeZonedClock,
		"wall", sink.TypeLocal, "at", sink.TypeInstant, "took", sink.TypeInterval, "doc", sink.TypeDocument, "whatever", sink.TypeAny, "map", &sink.Type{Kind: sink.TypeMap, Elem: of(sink.TypeText)},
		"rec", fields("x", sink.TypeInt32), "ints", array(of(sink.TypeInt32)), "nums", array(&sink.Type{Kind: sink.TypeDecimal, Precision: 5, Scale: 2}), "recs", array(fields("x", sink.TypeInt32)), "deep", array(array(of(sink.TypeInt32))), "spans", array(of(sink.TypeInterval)))
	if err := fit(fitting(pool, "made", value), value); err != nil {
		t.Fatal(err)
	}
	want := `id bigint not null, Mixed "Case" text, bool boolean, small smallint, int integer, f4 real, f8 double precision, d numeric(15,5), any_d numeric, vast numeric, raw bytea, u uuid, ` +
		`b bit varying(7), bs bit varying, day date, clock time without time zone, zoned time with time zone, wall timestamp without time zone, at timestamp with time zone, took interval, doc jsonb, whatever jsonb, map jsonb, ` +
		`rec jsonb, ints integer[], nums numeric(5,2)[], recs jsonb, deep jsonb, spans jsonb`
	if got := columnsOf(t, pool, "made"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := fit(fitting(pool, "made", value), value); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestWithoutLeaveNothingIsMadeOrAltered(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE TABLE old (id bigint PRIMARY KEY)")
	value := fields("id", sink.TypeInt64, "more", sink.TypeText)
	for _, leave := range []*postgres.Fit{{DB: pool}, {DB: pool, Create: true}} {
		cfg := fitting(pool, "old", value)
		cfg.Fit = leave
		if err := fit(cfg, value); err != nil {
			t.Error(err)
		}
		b := &tableBench{t: t, ctx: context.Background(), conn: tableConnect(t, pool.Config().ConnString())}
		var err error
		if b.table, err = postgres.NewTable(b.ctx, pool, cfg); err != nil {
			t.Fatal(err)
		}
		b.table.Decode([]inbox.Item{{Message: semel.Message{Value: []byte(`{"id":1,"more":"x"}`)}}})
	}
	cfg := fitting(pool, "new", value)
	cfg.Fit = &postgres.Fit{DB: pool, Evolve: true}
	if err := fit(cfg, value); err != nil {
		t.Error(err)
	}
	if got := columnsOf(t, pool, "old") + "|" + columnsOf(t, pool, "new"); got != "id bigint not null|" {
		t.Error(got)
	}
}

func TestColumnsOfANewerSchemaAreAdded(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE TABLE t (id bigint PRIMARY KEY, old text)")
	one, two := fields("id", sink.TypeInt64), fields("id", sink.TypeInt64, "note", sink.TypeText)
	cfg := fitting(pool, "t", nil)
	cfg.Identified = true
	cfg.Open = []sink.Opener{sink.Formats(written{func(data []byte) *sink.Type {
		if strings.Contains(string(data), "note") {
			return two
		}
		return one
	}}, nil)}
	table, err := postgres.NewTable(context.Background(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	item := func(text string) inbox.Item { return inbox.Item{Message: semel.Message{Value: []byte(text)}} }
	first := []inbox.Item{item(`{"id":1}`)}
	table.Decode(first)
	before := first[0].Digest
	if got := columnsOf(t, pool, "t"); got != "id bigint not null, old text" {
		t.Fatal(got)
	}
	items := []inbox.Item{item(`{"id":1}`), item(`{"id":2,"note":"new"}`), item(`{"id":3}`)}
	table.Decode(items)
	if got := columnsOf(t, pool, "t"); got != "id bigint not null, old text, note text" {
		t.Fatal(got)
	}
	if table.UnknownFields() != 0 {
		t.Errorf("%d unknown fields, though each has its column", table.UnknownFields())
	}
	if items[0].Digest != before || before == (inbox.Digest{}) {
		t.Error("a message from before the column is another one after it")
	}
	apply(t, pool, table, items)
	var rows string
	if err := pool.QueryRow(context.Background(), "SELECT string_agg(t::text, ' ' ORDER BY id) FROM t").Scan(&rows); err != nil || rows != "(1,,) (2,,new) (3,,)" {
		t.Errorf("%s %v", rows, err)
	}
}

// apply writes items as the inbox would, which has nothing against them.
func apply(t *testing.T, pool *pgxpool.Pool, table *postgres.Table, items []inbox.Item) {
	t.Helper()
	err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		of := make([]*inbox.Item, len(items))
		for i := range items {
			if items[i].Err != nil {
				return items[i].Err
			}
			of[i] = &items[i]
		}
		return table.Apply(context.Background(), tableTx{tx: tx}, of)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestATypeThatChangedHaltsAtItsMessage(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE TABLE t (id bigint PRIMARY KEY, n integer)")
	one, two := fields("id", sink.TypeInt64, "n", sink.TypeInt32), fields("id", sink.TypeInt64, "n", sink.TypeText, "more", sink.TypeText)
	cfg := fitting(pool, "t", nil)
	cfg.Open = []sink.Opener{sink.Formats(written{func(data []byte) *sink.Type {
		if strings.Contains(string(data), "more") {
			return two
		}
		return one
	}}, nil)}
	table, err := postgres.NewTable(context.Background(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	items := []inbox.Item{{Message: semel.Message{Value: []byte(`{"id":1,"n":1}`)}}, {Message: semel.Message{Value: []byte(`{"id":2,"n":2,"more":""}`)}}}
	table.Decode(items)
	err = pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		return table.Apply(context.Background(), tableTx{tx: tx}, []*inbox.Item{&items[0], &items[1]})
	})
	var at *semel.FailedAtError
	var halt *inbox.HaltError
	if !errors.As(err, &at) || at.Index != 1 || !errors.As(err, &halt) || !strings.Contains(halt.Why, `column "n": it is integer, and by the schema values are text`) {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(halt.Hint, `ALTER TABLE public.t ALTER COLUMN "n" TYPE text`) {
		t.Error(halt.Hint)
	}
	if got := columnsOf(t, pool, "t"); got != "id bigint not null, n integer" {
		t.Errorf("something was altered: %s", got)
	}
}

func TestWhoAltersFirstIsRight(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "")
	value := fields("id", sink.TypeInt64, "a", sink.TypeText, "b", sink.TypeInt32)
	ctx := context.Background()
	race := func(table string) {
		errs := make(chan error)
		const all = 6
		for range all {
			go func() {
				for {
					err := fit(fitting(pool, table, value), value)
					var locked *pgconn.PgError
					if !errors.As(err, &locked) || locked.Code != "55P03" { // waited too long: routes try again
						errs <- err
						return
					}
				}
			}()
		}
		for range all {
			if err := <-errs; err != nil {
				t.Errorf("%s: %v", table, err)
			}
		}
		if got := columnsOf(t, pool, table); got != "id bigint not null, a text, b integer" {
			t.Errorf("%s: %s", table, got)
		}
	}
	race("made")
	if _, err := pool.Exec(ctx, "CREATE TABLE altered (id bigint PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	race("altered")
}

// Somebody who takes no lock of ours adds the column with another type between our
// look and our statement.
func TestAStrangersDefinitionIsLookedAt(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE TABLE t (id bigint PRIMARY KEY)")
	ctx := context.Background()
	stranger, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Exec(ctx, "ALTER TABLE t ADD COLUMN a integer"); err != nil {
		t.Fatal(err)
	}
	value := fields("id", sink.TypeInt64, "a", sink.TypeText)
	if err := fit(fitting(pool, "t", value), value); err == nil || errors.As(err, new(*postgres.TableError)) {
		t.Fatalf("the table is locked, and: %v", err)
	}
	if err := stranger.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if got := mistakes(t, fit(fitting(pool, "t", value), value)); !strings.Contains(got, `column "a": it is integer, and by the schema values are text`) {
		t.Error(got)
	}
}

func TestWhatATableCannotBeMadeOfIsRefusedByName(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE SCHEMA closed")
	role := "fit_" + pool.Config().ConnConfig.Database
	if _, err := pool.Exec(context.Background(), "CREATE ROLE "+pgx.Identifier{role}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), strings.ReplaceAll("DROP OWNED BY x; DROP ROLE x", "x", pgx.Identifier{role}.Sanitize()))
	})
	id := fields("id", sink.TypeInt64)
	for name, c := range map[string]struct {
		value *sink.Type
		cfg   func(*postgres.TableConfig)
		want  string
	}{
		"no record":           {value: &sink.Type{Kind: sink.TypeText}, want: "the schema's value is text"},
		"no fields":           {value: fields(), want: "no fields"},
		"a name too long":     {value: fields("id", sink.TypeInt64, strings.Repeat("é", 32), sink.TypeText), want: "1 to 63 bytes"},
		"a system column":     {value: fields("id", sink.TypeInt64, "xmin", sink.TypeText), want: "for the server's own use"},
		"no key":              {value: id, cfg: func(c *postgres.TableConfig) { c.PrimaryKey = nil }, want: "name one with primary_key"},
		"insert has no key":   {value: id, cfg: func(c *postgres.TableConfig) { c.Write, c.PrimaryKey = postgres.WriteInsert, nil }, want: "is not for a schema to say"},
		"a key of no column":  {value: id, cfg: func(c *postgres.TableConfig) { c.PrimaryKey = []string{"no"} }, want: `column "no": it is part of the key`},
		"a key of documents":  {value: fields("id", sink.TypeAny), want: "values can't be told apart exactly"},
		"no schema":           {value: id, cfg: func(c *postgres.TableConfig) { c.Table = "nowhere.t" }, want: "there is no schema nowhere"},
		"a field of no field": {value: id, cfg: func(c *postgres.TableConfig) { c.Columns = map[string]string{"id": "value.id", "x": "value.id.x"} }, want: `column "x": its type isn't known: by the schema value.id is integer of 64 bits`},
		"a field that isn't":  {value: id, cfg: func(c *postgres.TableConfig) { c.Columns = map[string]string{"id": "value.id", "x": "value.x"} }, want: `the schema has no field "x"`},
		"a computed number":   {value: id, cfg: func(c *postgres.TableConfig) { c.Columns = map[string]string{"id": "value.id", "x": "value.id * 2.0"} }, want: `goes into double precision`},
		"a version of text": {
			value: fields("id", sink.TypeInt64, "v", sink.TypeText), want: "text can't be a version",
			cfg: func(c *postgres.TableConfig) { c.Version = "value.v" },
		},
	} {
		cfg := fitting(pool, "t", c.value)
		if c.cfg != nil {
			c.cfg(&cfg)
		}
		if got := mistakes(t, fit(cfg, c.value)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := columnsOf(t, pool, "t"); got != "" {
		t.Errorf("a table was made all the same: %s", got)
	}
	limited, err := pgxpool.ParseConfig(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	limited.ConnConfig.RuntimeParams["role"] = role
	db, err := pgxpool.NewWithConfig(context.Background(), limited)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := pool.Exec(context.Background(), strings.ReplaceAll("GRANT USAGE ON SCHEMA closed TO ROLE; CREATE TABLE closed.old (id bigint PRIMARY KEY); GRANT SELECT ON closed.old TO ROLE", "ROLE", pgx.Identifier{role}.Sanitize())); err != nil {
		t.Fatal(err)
	}
	more := fields("id", sink.TypeInt64, "more", sink.TypeText)
	for table, want := range map[string]string{"closed.new": "permission denied for schema closed", "closed.old": "must be owner of table old"} {
		got := mistakes(t, fit(fitting(db, table, more), more))
		if !strings.Contains(got, want) || !strings.Contains(got, "check --plan") {
			t.Error(got)
		}
		if got := mistakes(t, postgres.FitRights(context.Background(), db, table)); !strings.Contains(got, "this role may not") {
			t.Error(got)
		}
		if err := postgres.FitRights(context.Background(), pool, table); err != nil {
			t.Error(err)
		}
	}
}

func TestAPlanIsTheSQLOfWhatIsMissing(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "CREATE TABLE old (id bigint PRIMARY KEY)")
	value := fields("id", sink.TypeInt64, "Total", &sink.Type{Kind: sink.TypeDecimal, Precision: 15, Scale: 5})
	for _, table := range []string{"new", "old"} {
		cfg := fitting(pool, table, value)
		plan := func() string {
			sql, err := postgres.PlanTable(context.Background(), cfg, []sink.Types{{Value: value}})
			if err != nil {
				t.Fatal(err)
			}
			return sql
		}
		before := columnsOf(t, pool, table)
		sql := plan()
		if got := columnsOf(t, pool, table); got != before {
			t.Errorf("a plan alters: %s", got)
		}
		if _, err := pool.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if got := columnsOf(t, pool, table); got != "id bigint not null, Total numeric(15,5)" {
			t.Errorf("%s: %s", table, got)
		}
		if again := plan(); again != "" {
			t.Errorf("still missing: %s", again)
		}
	}
	bad := fields("id", sink.TypeAny, "x", sink.TypeText)
	if _, err := postgres.PlanTable(context.Background(), fitting(pool, "other", bad), []sink.Types{{Value: bad}}); err == nil {
		t.Error("a plan that the route can't run on")
	}
}

func TestAColumnFitsWhatItHoldsExactly(t *testing.T) {
	t.Parallel()
	pool := fitPool(t, "")
	decimal := func(p, s int) *sink.Type { return &sink.Type{Kind: sink.TypeDecimal, Precision: p, Scale: s} }
	of := func(k sink.TypeKind) *sink.Type { return &sink.Type{Kind: k} }
	array := func(k sink.TypeKind) *sink.Type { return &sink.Type{Kind: sink.TypeArray, Elem: of(k)} }
	for i, c := range []struct {
		column string
		of     *sink.Type
		fits   bool
	}{
		{"bigint", of(sink.TypeInt32), true},
		{"integer", of(sink.TypeInt64), false},
		{"smallint", of(sink.TypeInt32), false},
		{"bigint", decimal(20, 0), false},
		{"bigint", decimal(18, 0), true},
		{"numeric(15,5)", decimal(10, 5), true},
		{"numeric(15,5)", decimal(16, 5), false},
		{"numeric(15,5)", decimal(15, 6), false},
		{"numeric(15,5)", of(sink.TypeInt32), true},
		{"numeric(15,5)", of(sink.TypeInt64), false},
		{"numeric", of(sink.TypeDecimal), true},
		{"numeric", of(sink.TypeFloat64), true},
		{"numeric", of(sink.TypeText), false},
		{"real", of(sink.TypeFloat64), false},
		{"double precision", of(sink.TypeFloat32), true},
		{"double precision", of(sink.TypeInt64), false},
		{"text", of(sink.TypeInt64), true},
		{"text", of(sink.TypeAny), true},
		{"jsonb", fields("x", sink.TypeText), true},
		{"boolean", of(sink.TypeText), false},
		{"uuid", of(sink.TypeText), false},
		{"bytea", of(sink.TypeText), false},
		{"date", of(sink.TypeInstant), false},
		{"timestamp", of(sink.TypeLocal), true},
		{"timestamp", of(sink.TypeInstant), false},
		{"timestamptz", of(sink.TypeLocal), false},
		{"time", of(sink.TypeZonedClock), false},
		{"integer[]", array(sink.TypeInt32), true},
		{"integer[]", array(sink.TypeInt64), false},
		{"integer[]", of(sink.TypeInt32), false},
		{"inet", of(sink.TypeText), true}, // the server reads it
	} {
		table := fmt.Sprintf("t%d", i)
		if _, err := pool.Exec(context.Background(), fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, c %s)", table, c.column)); err != nil {
			t.Fatal(err)
		}
		value := fields("id", sink.TypeInt64, "c", c.of)
		if err := fit(fitting(pool, table, value), value); (err == nil) != c.fits {
			t.Errorf("%s for %s: %v", c.column, c.of, err)
		}
	}
}
