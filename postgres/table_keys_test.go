package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/postgres"
)

// borderKeys are types of keys, and spellings of few keys of each, as JSON.
var borderKeys = map[string][]string{
	"numeric":              {`1`, `1.0`, `1.00`, `"1"`, `1e0`, `100`, `1e2`, `"1E+2"`, `0`, `-0`, `0.0`, `-0.00`, `0e7`, `10000`, `1e4`, `10000.0000`, `0.0001`, `1e-4`, `0.00010`, `"NaN"`, `"nan"`, `-1`, `-1.0`},
	"numeric(10,2)":        {`1`, `1.0`, `1.00`, `1.000`, `"1.0"`, `10e-1`, `-0.00`, `0`, `"NaN"`, `12345678.9`, `12345678.90`},
	"int":                  {`1`, `1.0`, `1e0`, `"1"`, `10e-1`, `-0`, `0`, `"0"`, `"01"`},
	"bigint":               {`9007199254740993`, `"9007199254740993"`, `9007199254740993.0`, `9007199254740992`, `900719925474099.3e1`},
	"float8":               {`0`, `-0`, `-0.0`, `"-0"`, `0.0`, `0.1`, `0.10`, `0.1000000000000000055511151231257827`, `"NaN"`, `"nan"`, `"Infinity"`, `"inf"`, `1`, `1.0`},
	"real":                 {`0`, `-0.0`, `0.1`, `0.10000000149`, `16777216`, `16777217`, `"NaN"`, `"Infinity"`, `"+inf"`},
	"uuid":                 {`"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`, `"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"`, `"{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}"`, `"a0eebc999c0b4ef8bb6d6bb9bd380a11"`, `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"`},
	"text":                 {`"a"`, `"a "`, `"A"`, `"é"`, `"e\u0301"`, `"\u00e9"`, `""`, `"1"`, `1`, `"a\u000b"`},
	"varchar(3)":           {`"ab"`, `"ab "`, `"abc"`, `"abc "`, `""`, `" "`, `12`, `"12"`},
	"char(3)":              {`"ab"`, `"ab "`, `"ab    "`, `"abc"`, `""`, `" "`, `"   "`, `" ab"`},
	"citext":               {`"a"`, `"A"`, `"é"`, `"É"`, `"ß"`, `"ẞ"`, `"ss"`, `"İ"`, `"i̇"`, `"ı"`, `"I"`, `"i"`, `"Σ"`, `"σ"`, `"ς"`, `"a "`},
	"name":                 {`"a"`, `"A"`, `"a "`},
	"date":                 {`"2026-01-01"`, `"2026-01-01T00:00:00"`, `"infinity"`, `"Infinity"`, `"-infinity"`, `"2026-01-02"`},
	"timestamptz":          {`"2026-01-01T00:00:00Z"`, `"2026-01-01T01:00:00+01:00"`, `"2026-01-01T00:00:00.000Z"`, `"2025-12-31T24:00:00Z"`, `"2025-12-31T23:59:60Z"`, `"infinity"`, `"INFINITY"`, `"2025-12-31T19:00:00-0500"`},
	"timestamptz(0)":       {`"2026-01-01T00:00:00Z"`, `"2026-01-01T01:00:00.000+01:00"`, `"2026-01-01T00:00:00.4Z"`},
	"timestamp":            {`"2026-01-01T00:00:00"`, `"2026-01-01 00:00:00"`, `"2025-12-31T24:00:00"`, `"2026-01-01T00:00:00.0000"`, `"infinity"`},
	"timestamp(3)":         {`"2026-01-01T00:00:00.001"`, `"2026-01-01T00:00:00.001000"`, `"2026-01-01T00:00:00.0011"`},
	"time":                 {`"24:00:00"`, `"00:00:00"`, `"00:00"`, `"23:59:60"`, `"10:00"`, `"10:00:00.0"`, `"10:00:00.000001"`},
	"boolean":              {`true`, `"true"`, `false`, `"false"`},
	"bytea":                {`"AQ=="`, `"\\x01"`, `"\\X01"`, `""`, `"\\x"`, `"/w=="`, `"\\xFF"`, `"\\xff"`},
	"bit(3)":               {`"101"`, `"010"`, `"b101"`, `"x5"`, `101`},
	"bit(1)":               {`"1"`, `true`, `false`, `"0"`, `1`},
	"bit varying(5)":       {`"101"`, `"0101"`, `"b101"`, `""`, `101`, `true`},
	"inet":                 {`"10.0.0.1"`, `"10.0.0.1/32"`, `"10.0.0.1/8"`, `"10.0.0.2/8"`, `"::1"`, `"0:0::1"`, `"::ffff:1.2.3.4"`, `"::FFFF:102:304"`},
	"cidr":                 {`"10.0.0.0/8"`, `"10/8"`, `"10"`, `"::/0"`, `"0::/0"`, `"10.0.0.0/9"`},
	"macaddr":              {`"08:00:2b:01:02:03"`, `"08002B010203"`, `"08-00-2b-01-02-03"`, `"08:00:2b:01:02:04"`},
	"macaddr8":             {`"08:00:2b:01:02:03"`, `"08:00:2b:ff:fe:01:02:03"`, `"0800.2bff.fe01.0203"`},
	"e{}":                  {`"a"`, `"A"`, `"b"`, `"c"`},
	"d{} AS citext":        {`"a"`, `"A"`, `"b"`},
	"d{} AS char(3)":       {`"a"`, `"a "`, `"a  "`, `"b"`},
	"d{} AS numeric(4,1)":  {`1`, `1.0`, `"1.00"`, `1.05`},
	"d{} AS e{}":           {`"a"`, `"A"`, `"b"`},
	"d{} AS inet":          {`"10.0.0.1"`, `"10.0.0.1/32"`},
	"d{} AS timestamptz":   {`"2026-01-01T00:00:00Z"`, `"2026-01-01T01:00:00+01:00"`},
	"d{} AS varbit":        {`"101"`, `"b101"`},
	"text COLLATE \"C\"":   {`"a"`, `"A"`, `"é"`},
	"citext COLLATE \"C\"": {`"a"`, `"A"`, `"é"`, `"É"`},
}

// What are equal keys, the server says: whatever their spelling, and wherever a stream is cut, rows, outcomes and dead
// letters are those of messages one by one.
func TestAnyBatchBorderOverKeysOfAnyType(t *testing.T) {
	t.Parallel()
	seeds := uint64(1)
	if n, err := strconv.ParseUint(os.Getenv("SEMEL_BORDER_SEEDS"), 10, 32); err == nil {
		seeds = n
	}
	first := firstSeed()
	url := testenv.Postgres(t)
	conn := tableConnect(t, url)
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION citext"); err != nil {
		t.Fatal(err)
	}
	number := 0
	for _, typ := range slices.Sorted(maps.Keys(borderKeys)) {
		pool := borderKeys[typ]
		for _, mode := range slices.Sorted(maps.Keys(borderModes)) {
			cfg := borderModes[mode]
			for _, more := range []string{"", ", x inet", ", u2 int UNIQUE"} { // in binary form, in text form, in the order of arrival
				number++
				if cfg.Write == postgres.WriteAppend || seeds == 1 && uint64(number)%7 != first%7 {
					continue // all of them take minutes
				}
				one, many := fmt.Sprintf("one%d", number), fmt.Sprintf("many%d", number)
				t.Run(typ+"/"+mode+"/"+more, func(t *testing.T) {
					b := tableBench{t: t, ctx: context.Background(), conn: conn, known: map[semel.ID]bool{}}
					cfg := cfg
					cfg.Columns = map[string]string{"k": "value.k", "u": "value.u", "v": "value.v", "w": "value.w", "bal": "value.bal", "ver": "headers.ver"}
					if strings.Contains(more, "inet") {
						cfg.Columns["x"] = "value.x"
					}
					var tables [2]*postgres.Table
					for i, name := range []string{one, many} {
						ddl, of := "", typ
						if strings.Contains(typ, "e{}") {
							ddl = "CREATE TYPE e{} AS ENUM ('a', 'A', 'b');"
						}
						if strings.Contains(typ, "d{}") {
							ddl += "CREATE DOMAIN " + typ + ";"
							of = "d{}"
						}
						ddl += "CREATE TABLE {} (k " + of + " PRIMARY KEY, u int, v int, w text, bal int, ver int, gone timestamptz" + more + ")"
						b.exec(strings.ReplaceAll(ddl, "{}", name))
						cfg.Table = name
						var err error
						tables[i], err = postgres.NewTable(b.ctx, b.conn, cfg)
						if err != nil {
							t.Fatal(err)
						}
					}
					for seed := first; seed < first+seeds; seed++ {
						rng := rand.New(rand.NewPCG(seed, 7))
						ms := borderHistory(rng, 5+rng.IntN(25))
						few := make([]string, 1+rng.IntN(5))
						for i := range few {
							few[i] = pool[rng.IntN(len(pool))]
						}
						for i := range ms {
							lit := few[rng.IntN(len(few))]
							var v any
							if json.Unmarshal([]byte(lit), &v) != nil {
								t.Fatal(lit)
							}
							ms[i].Key = []byte(lit)
							if s, ok := v.(string); ok {
								ms[i].Key = []byte(s)
							}
							if ms[i].Value != nil {
								was := ms[i].Value[:strings.IndexAny(string(ms[i].Value), ",}")] // {"k":1
								ms[i].Value = append([]byte(`{"k":`+lit), ms[i].Value[len(was):]...)
							}
						}
						b.compareBorders(seed, rng, ms, tables, [2]string{one, many})
					}
				})
			}
		}
	}
}

// Two spellings of a key are one row, which has the last one, as it has the last value
// of any column.
func TestARowHasTheLastSpellingOfItsKey(t *testing.T) {
	t.Parallel()
	for typ, spellings := range map[string][2]string{"citext": {`"Ann"`, `"ANN"`}, "numeric": {`1.0`, `1.00`}, "float8": {`0`, `-0.0`}} {
		for name, cfg := range map[string]postgres.TableConfig{
			"upsert":  {Write: postgres.WriteUpsert},
			"version": {Write: postgres.WriteUpsert, Version: "value.v"},
			"patch":   {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
			"sum":     {Write: postgres.WriteUpsert, Combine: []string{"v"}},
			"mirror":  {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete},
		} {
			t.Run(typ+" "+name, func(t *testing.T) {
				t.Parallel()
				cfg := cfg
				cfg.Table = "s"
				cfg.Columns = map[string]string{"id": "value.id", "v": "value.v"}
				b := newTableBench(t, "CREATE EXTENSION citext; CREATE TABLE s (id "+typ+" PRIMARY KEY, v int)", cfg)
				row := func(spelling, v int) string { return fmt.Sprintf(`k={"id":%s,"v":%d}`, spellings[spelling], v) }
				for _, batch := range [][]string{{row(0, 1)}, {row(1, 2)}, {row(1, 3), row(0, 4)}, {row(0, 5), row(1, 6)}} {
					b.send(batch...)
					want := strings.Trim(batch[len(batch)-1][len(`k={"id":`):strings.Index(batch[len(batch)-1], ",")], `"`)
					if want == "-0.0" {
						want = "-0"
					}
					b.wantRows("id::text", want)
				}
			})
		}
	}
}

// Of a domain over an enum the server finds no equality.
func TestADomainOverAnEnumIsAKey(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]postgres.TableConfig{
		"insert":     {Write: postgres.WriteInsert},
		"remembered": {Write: postgres.WriteInsert, ID: []string{"value.id"}},
		"upsert":     {Write: postgres.WriteUpsert, Version: "value.v"},
		"patch":      {Write: postgres.WriteUpsert, Absent: postgres.AbsentKeep},
		"sum":        {Write: postgres.WriteUpsert, Combine: []string{"v"}},
		"mirror":     {Write: postgres.WriteMirror, Tombstone: postgres.TombstoneDelete},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Table = "s"
			b := newTableBench(t, "CREATE TYPE e AS ENUM ('a', 'b'); CREATE DOMAIN d AS e; CREATE TABLE s (id d PRIMARY KEY, other d, v int)", cfg)
			b.send(`a={"id":"a","other":"b","v":1}`, `b={"id":"b","v":1}`)
			b.send(`a={"id":"a","other":"b","v":1}`, `a={"id":"a","other":"b","v":1}`, `b=`)
			want := map[string]string{"sum": "a3 b1", "mirror": "a1"}[name]
			if want == "" {
				want = "a1 b1"
			}
			b.wantRows("id::text || v", want)
		})
	}
}
