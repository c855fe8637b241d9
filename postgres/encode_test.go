package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// encodeBench asks two readers of a value: the encoder with COPY, and the server's
// own input function.
type encodeBench struct {
	conn  *pgx.Conn
	table *postgres.Table
}

func newEncodeBench(t *testing.T, typ string, cfg postgres.TableConfig) *encodeBench {
	t.Helper()
	conn := tableConnect(t, testenv.Postgres(t))
	ctx := context.Background()
	for _, sql := range []string{"SET timezone = 'Asia/Tokyo'", "CREATE TABLE v (v " + typ + ")"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Table, cfg.Write = "v", postgres.WriteAppend
	table, err := postgres.NewTable(ctx, conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.Path(), "binary") {
		t.Fatalf("not in binary form: %s", table.Path())
	}
	return &encodeBench{conn, table}
}

// store writes a JSON token, and answers what is stored, or that it was refused.
func (b *encodeBench) store(t interface{ Fatal(...any) }, token string) (stored string, refused bool) {
	ctx := context.Background()
	items := []inbox.Item{{Message: semel.Message{Value: []byte(`{"v":` + token + `}`)}}}
	b.table.Decode(items)
	if items[0].Err != nil {
		return items[0].Err.Error(), true
	}
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if err := b.table.Apply(ctx, tableTx{tx: tx}, []*inbox.Item{&items[0]}); err != nil {
		t.Fatal(token, err)
	}
	if err := tx.QueryRow(ctx, "SELECT v::text FROM v").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	return stored, false
}

// input is what the server makes of a text.
func (b *encodeBench) input(text, typ, zone string) (read string, refused bool) {
	ctx := context.Background()
	if zone != "" {
		tx, _ := b.conn.Begin(ctx)
		defer tx.Rollback(ctx)
		tx.Exec(ctx, "SET LOCAL timezone = '"+zone+"'")
		var at time.Time // as an instant, whatever the session's zone
		if err := tx.QueryRow(ctx, "SELECT $1::text::"+typ, text).Scan(&at); err != nil {
			return err.Error(), true
		}
		tx.Exec(ctx, "SET LOCAL timezone = 'Asia/Tokyo'")
		if err := tx.QueryRow(ctx, "SELECT $1::"+typ+"::text", at).Scan(&read); err != nil {
			return err.Error(), true
		}
		return read, false
	}
	if err := b.conn.QueryRow(ctx, "SELECT $1::text::"+typ+"::text", text).Scan(&read); err != nil {
		return err.Error(), true
	}
	return read, false
}

func TestNumericIsWhatPostgreSQLReads(t *testing.T) {
	t.Parallel()
	b := newEncodeBench(t, "numeric", postgres.TableConfig{})
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching(`0|[1-9][0-9]{0,40}`).Draw(t, "whole")
		n := rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign") + digits +
			rapid.StringMatching(`(\.[0-9]{1,30})?`).Draw(t, "fraction") +
			rapid.StringMatching(`([eE][+-]?[0-9]{1,3})?`).Draw(t, "exponent")
		if rapid.Bool().Draw(t, "in a string") {
			n = `"` + n + `"`
		}
		got, refused := b.store(t, n)
		want, _ := b.input(strings.Trim(n, `"`), "numeric", "")
		if refused || got != want {
			t.Fatalf("%s is stored as %s, PostgreSQL reads %s", n, got, want)
		}
	})
}

func TestNumericAtItsLimits(t *testing.T) {
	t.Parallel()
	b := newEncodeBench(t, "numeric", postgres.TableConfig{})
	for token, ok := range map[string]bool{
		"1e131071": true, "1e131072": false, "9e-16383": true, "9e-16384": false,
		"1e9999999999999999999": false, "0e999999999": true,
		`"Infinity"`: true, `"-infinity"`: true, `"nan"`: true, `"-nan"`: false, `""`: false, `" 1"`: false, "true": false, "[1]": false,
	} {
		got, refused := b.store(t, token)
		if refused == ok {
			t.Errorf("%s: refused is %v: %.80s", token, refused, got)
		}
		if want, _ := b.input(strings.Trim(token, `"`), "numeric", ""); ok && got != want {
			t.Errorf("%s is stored as %.50s, want %.50s", token, got, want)
		}
	}
}

func TestNumericIsNeverRounded(t *testing.T) {
	t.Parallel()
	b := newEncodeBench(t, "numeric(5,2)", postgres.TableConfig{})
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.StringMatching(`-?(0|[1-9][0-9]{0,4})(\.[0-9]{1,5})?(e-?[0-3])?`).Draw(t, "n")
		got, refused := b.store(t, n)
		exact, _ := b.input(n, "numeric", "")
		limited, over := b.input(n, "numeric(5,2)", "")
		var same bool
		if !over {
			b.conn.QueryRow(context.Background(), "SELECT $1::text::numeric = $2::text::numeric", exact, limited).Scan(&same)
		}
		if refused == same {
			t.Fatalf("%s: refused is %v (%s), and the column makes %s of it", n, refused, got, limited)
		}
		if !refused && got != limited {
			t.Fatalf("%s is stored as %s, want %s", n, got, limited)
		}
	})
}

// Zone-less times are read in the route's zone, whatever the zones of process and
// session; both sides of a change of clocks are among them.
func TestTimestamptzIsWhatPostgreSQLReads(t *testing.T) {
	t.Parallel()
	const zone = "America/New_York"
	b := newEncodeBench(t, "timestamptz", postgres.TableConfig{Zone: tableZone(t, zone)})
	rapid.Check(t, func(t *rapid.T) {
		text := encodeDrawDay(t) + rapid.SampledFrom([]string{"T", " "}).Draw(t, "T") + encodeDrawClock(t) +
			rapid.StringMatching(`(Z|[+-](0[0-9]|1[0-4])(:?[0-5][0-9])?)?`).Draw(t, "zone")
		got, refused := b.store(t, `"`+text+`"`)
		want, no := b.input(text, "timestamptz", zone)
		if refused != no || !refused && got != want {
			t.Fatalf("%s is stored as %s, PostgreSQL reads %s", text, got, want)
		}
	})
}

func tableZone(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func encodeDrawDay(t *rapid.T) string {
	if rapid.Bool().Draw(t, "change of clocks") { // New York, 2025
		return rapid.SampledFrom([]string{"2025-03-09", "2025-11-02", "2025-03-08", "2025-11-03", "2024-02-29", "2025-02-29"}).Draw(t, "day")
	}
	return fmt.Sprintf("%04d-%02d-%02d", rapid.IntRange(1900, 2100).Draw(t, "year"),
		rapid.IntRange(0, 13).Draw(t, "month"), rapid.IntRange(0, 32).Draw(t, "day"))
}

func encodeDrawClock(t *rapid.T) string {
	s := fmt.Sprintf("%02d:%02d", rapid.IntRange(0, 24).Draw(t, "hour"), rapid.IntRange(0, 60).Draw(t, "minute"))
	if rapid.Bool().Draw(t, "with seconds") {
		s += fmt.Sprintf(":%02d", rapid.IntRange(0, 61).Draw(t, "second"))
		if !strings.HasSuffix(s, ":60") { // PostgreSQL takes parts of a leap second; they are refused here
			s += rapid.StringMatching(`(\.[0-9]{1,6}0{0,3})?`).Draw(t, "fraction")
		}
	}
	return s
}

func TestDateAndTimeAreWhatPostgreSQLReads(t *testing.T) {
	t.Parallel()
	for typ, draw := range map[string]func(*rapid.T) string{"date": encodeDrawDay, "time": encodeDrawClock} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			b := newEncodeBench(t, typ, postgres.TableConfig{})
			rapid.Check(t, func(t *rapid.T) {
				text := draw(t)
				got, refused := b.store(t, `"`+text+`"`)
				want, no := b.input(text, typ, "")
				if refused != no || !refused && got != want {
					t.Fatalf("%s is stored as %s, PostgreSQL reads %s", text, got, want)
				}
			})
		})
	}
}

// encodeCase is a token, and what is stored of it; "" if it is refused.
type encodeCase struct{ token, stored string }

func encodeCases(t *testing.T, typ string, cfg postgres.TableConfig, cases ...encodeCase) {
	t.Run(typ, func(t *testing.T) {
		t.Parallel()
		b := newEncodeBench(t, typ, cfg)
		for _, c := range cases {
			got, refused := b.store(t, c.token)
			if refused != (c.stored == "") {
				t.Errorf("%s: refused is %v: %s", c.token, refused, got)
			} else if !refused && got != c.stored {
				t.Errorf("%s is stored as %q, want %q", c.token, got, c.stored)
			}
		}
	})
}

func TestValuesAreExactOrRefused(t *testing.T) {
	t.Parallel()
	epoch := func(u postgres.EpochUnit) postgres.TableConfig {
		return postgres.TableConfig{Epoch: map[string]postgres.EpochUnit{"v": u}}
	}
	encodeCases(t, "smallint", postgres.TableConfig{}, encodeCase{"32767", "32767"}, encodeCase{"-32768", "-32768"}, encodeCase{"32768", ""},
		encodeCase{`"7"`, "7"}, encodeCase{`"007"`, "7"}, encodeCase{`{"a":1}`, ""})
	encodeCases(t, "integer", postgres.TableConfig{}, encodeCase{"-2147483648", "-2147483648"}, encodeCase{"2147483648", ""})
	encodeCases(t, "float8", postgres.TableConfig{}, encodeCase{"0.1", "0.1"}, encodeCase{`"NaN"`, "NaN"}, encodeCase{`"-Infinity"`, "-Infinity"},
		encodeCase{"1e400", ""}, encodeCase{"1e-400", ""}, encodeCase{"0.0e5", "0"}, encodeCase{"-0.0", "-0"}, encodeCase{`"0x10"`, ""}, encodeCase{`"1_0"`, ""}, encodeCase{`""`, ""})
	encodeCases(t, "float4", postgres.TableConfig{}, encodeCase{"1.5", "1.5"}, encodeCase{"1e39", ""}, encodeCase{"1e-46", ""})
	encodeCases(t, "boolean", postgres.TableConfig{}, encodeCase{"true", "true"}, encodeCase{`"false"`, "false"}, encodeCase{"1", ""}, encodeCase{`""`, ""})
	encodeCases(t, "uuid", postgres.TableConfig{}, encodeCase{`"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		encodeCase{`"{a0eebc999c0b4ef8bb6d6bb9bd380a11}"`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, encodeCase{`"a0eebc99"`, ""}, encodeCase{"7", ""})
	encodeCases(t, "varchar(3)", postgres.TableConfig{}, encodeCase{`"абв"`, "абв"}, encodeCase{`"abc "`, ""}, encodeCase{`"a\u0000"`, ""})
	encodeCases(t, "text", postgres.TableConfig{StripNUL: true}, encodeCase{`"a\u0000b\ud83d"`, "ab"})
	encodeCases(t, "jsonb", postgres.TableConfig{StripNUL: true}, encodeCase{`{"a\u0000":"\ud83d"}`, `{"a": ""}`}, encodeCase{`"x"`, `"x"`}, encodeCase{"1.50", "1.50"})
	encodeCases(t, "name", postgres.TableConfig{}, encodeCase{`"` + strings.Repeat("x", 64) + `"`, ""})
	encodeCases(t, "bytea", postgres.TableConfig{}, encodeCase{`"AAH/"`, `\x0001ff`}, encodeCase{`"\\x00fF"`, `\x00ff`}, encodeCase{`""`, `\x`},
		encodeCase{`"AA"`, ""}, encodeCase{`"\\x0"`, ""}, encodeCase{`"AA\nH/"`, ""}, encodeCase{"1", ""})
	encodeCases(t, "timestamptz", postgres.TableConfig{}, encodeCase{`"2026-01-01T00:00:00"`, ""}, encodeCase{`"2026-01-01T00:00:00Z"`, "2026-01-01 09:00:00+09"},
		encodeCase{"1", ""}, encodeCase{`"-infinity"`, "-infinity"}, encodeCase{`"294276-12-31T23:59:59.999999Z"`, "294277-01-01 08:59:59.999999+09"},
		encodeCase{`"294277-01-01T00:00:00Z"`, ""}, encodeCase{`"2026-01-01T00:00:00.0000001Z"`, ""}, encodeCase{`"yesterday"`, ""}, encodeCase{`""`, ""})
	encodeCases(t, "timestamptz(3)", epoch(postgres.EpochSeconds), encodeCase{"1774751400.123", "2026-03-29 11:30:00.123+09"}, encodeCase{"1774751400.1234", ""},
		encodeCase{`"1774751400"`, "2026-03-29 11:30:00+09"}, encodeCase{"1e30", ""}, encodeCase{`"2026-01-01T00:00:00.1234Z"`, ""})
	encodeCases(t, "timestamp", postgres.TableConfig{}, encodeCase{`"2026-01-01T00:00:00"`, "2026-01-01 00:00:00"}, encodeCase{`"2026-01-01T00:00:00Z"`, ""})
	encodeCases(t, "timestamp(6)", postgres.TableConfig{Zone: time.FixedZone("", 3600), Epoch: map[string]postgres.EpochUnit{"v": "ns"}},
		encodeCase{`"2026-01-01T00:00:00Z"`, "2026-01-01 01:00:00"}, encodeCase{"1774751400000001000", "2026-03-29 03:30:00.000001"}, encodeCase{"1774751400000000001", ""})
	encodeCases(t, "date", epoch(postgres.EpochMillis), encodeCase{`"2026-01-01T00:00:00Z"`, "2026-01-01"}, encodeCase{`"2026-01-01T01:00:00Z"`, ""},
		encodeCase{`"infinity"`, "infinity"}, encodeCase{"1774742400000", "2026-03-29"}, encodeCase{"1774742400001", ""})
	encodeCases(t, "integer[]", postgres.TableConfig{}, encodeCase{"[]", "{}"}, encodeCase{"[1,null, 3]", "{1,NULL,3}"}, encodeCase{"[[1,2],[3,4]]", "{{1,2},{3,4}}"},
		encodeCase{"[[1],[2,3]]", ""}, encodeCase{"[1,[2]]", ""}, encodeCase{"[[1],2]", ""}, encodeCase{`["x"]`, ""}, encodeCase{`"{1}"`, ""}, encodeCase{"[[]]", ""})
	encodeCases(t, "text[]", postgres.TableConfig{}, encodeCase{`["a,b","\"", "", "NULL", {"a":1}]`, `{"a,b","\"","","NULL","{\"a\":1}"}`}, encodeCase{`["\u0000"]`, ""})
	encodeCases(t, "jsonb[]", postgres.TableConfig{}, encodeCase{`[[1],{"a":[2]}]`, `{[1],"{\"a\": [2]}"}`})
}

// What the encoder takes is written alike in text form, which tables with types
// of unknown binary form use.
func TestBothFormsStoreTheSame(t *testing.T) {
	t.Parallel()
	const columns = `i2 smallint, i8 bigint, f8 float8, n numeric, b boolean, u uuid, t text, c char(5), j jsonb, by bytea, d date, ti time, ts timestamp, tz timestamptz, ia int[], ta text[], nested numeric[]`
	conn := tableConnect(t, testenv.Postgres(t))
	ctx := context.Background()
	var tables []*postgres.Table
	for name, more := range map[string]string{"bin": "", "txt": ", x inet"} {
		if _, err := conn.Exec(ctx, "CREATE TABLE "+name+" ("+columns+more+")"); err != nil {
			t.Fatal(err)
		}
		table, err := postgres.NewTable(ctx, conn, postgres.TableConfig{
			Table: name, Write: postgres.WriteAppend, Zone: time.UTC,
			Epoch: map[string]postgres.EpochUnit{"tz": "ms"},
		})
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	rapid.Check(t, func(t *rapid.T) {
		row := map[string]any{}
		for name, values := range map[string][]any{
			"i2": {1, "-3", nil}, "i8": {json.Number("1e3"), json.Number("9223372036854775807")}, "f8": {0.1, "nan", "-inf", 1e300, "-0"},
			"n": {json.Number("1.10"), json.Number("-1e-20"), "Infinity", json.Number("1E5")}, "b": {true, "false"},
			"u": {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, "t": {"", "\\N", "\\.", "a\tb\nc\rd\\", 1, true, map[string]any{"a": "\\"}, "\u2028😀"},
			"c": {"ab", "\\"}, "j": {map[string]any{"a": "\t\\\""}, "x", 1.5, []any{nil}, "\\"}, "by": {"AAH/", "\\x5c"},
			"d": {"2026-02-28", "infinity", "0001-01-01"}, "ti": {"24:00", "23:59:59.999999", "00:00"}, "ts": {"2026-01-01 10:00", "0001-01-01", "1999-12-31T23:59:59.000001"},
			"tz": {1, -1, "infinity", "2026-01-01T00:00:00.5+05:30"}, "ia": {[]any{}, []any{1, nil}, []any{[]any{1}, []any{2}}},
			"ta": {[]any{"a\"b\\c", "", "NULL", nil, "{}"}}, "nested": {[]any{json.Number("1.50"), "NaN"}},
		} {
			if v := rapid.SampledFrom(values).Draw(t, name); v != nil {
				row[name] = v
			}
		}
		value, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		for _, table := range tables {
			items := []inbox.Item{{Message: semel.Message{Value: value}}}
			table.Decode(items)
			if items[0].Err != nil {
				t.Fatalf("%s: %v", value, items[0].Err)
			}
			if err := table.Apply(ctx, tableTx{tx: tx}, []*inbox.Item{&items[0]}); err != nil {
				t.Fatalf("%s: %v", value, err)
			}
		}
		var bin, txt string
		if err := tx.QueryRow(ctx, "SELECT (SELECT row(bin.*)::text FROM bin), (SELECT row("+encodeNames(columns)+")::text FROM txt)").Scan(&bin, &txt); err != nil {
			t.Fatal(err)
		}
		if bin != txt {
			t.Fatalf("%s\nbinary %s\ntext   %s", value, bin, txt)
		}
	})
}

func encodeNames(columns string) string {
	var names []string
	for _, c := range strings.Split(columns, ", ") {
		names = append(names, strings.Fields(c)[0])
	}
	return strings.Join(names, ", ")
}
