//go:build !race

package postgres_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel/postgres"
)

// Not under the race detector, which makes pools forget on purpose.
func TestDecodingAllocatesNothingOnTheGoodPath(t *testing.T) {
	b := newTableBench(t, `CREATE TABLE o (id uuid PRIMARY KEY, n bigint, num numeric, f float8, t text, at timestamptz, d date, ok boolean, doc jsonb, raw bytea)`,
		postgres.TableConfig{Table: "o", Write: postgres.WriteInsert, ID: []string{"value.id"}})
	items := b.items(tableValuesOf(100, func(i int) string {
		return fmt.Sprintf(`{"id":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380%03d","n":%d,"num":1.25,"f":0.1,"t":"caf\u00e9","at":"2026-01-01T00:00:00.5Z","d":"2026-01-01","ok":true,"doc":{"a":[1]},"raw":"AAH/"}`, i, i)
	})...)
	for _, it := range items {
		if it.Err != nil {
			t.Fatal(it.Err)
		}
	}
	if n := testing.AllocsPerRun(20, func() { b.table.Decode(items) }); n > 10 {
		t.Errorf("%v allocations for 100 messages", n)
	}
}
