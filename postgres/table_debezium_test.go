package postgres_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/sink"
)

// tableChange is an event of Debezium: id, note, the LSN of the change, that of
// the commit before it, and the source's clock.
func tableChange(id int, note string, lsn, before, millis int) string {
	return fmt.Sprintf(`{"op":"u","before":null,"after":{"id":%d,"note":%q},"ts_ms":1,"source":{"connector":"postgresql","ts_ms":%d,"snapshot":"false","sequence":"[\"%d\",\"%d\"]","lsn":%d}}`,
		id, note, millis, before, lsn, lsn)
}

func newTableChanges(t *testing.T) *tableBench {
	return newTableBench(t, `CREATE TABLE o (id int PRIMARY KEY, note text, lsn numeric)`, postgres.TableConfig{
		Table: "o", Write: postgres.WriteUpsert, KeyFormat: sink.KeyJSON, Open: []sink.Opener{sink.NewDebezium()},
		Columns: map[string]string{"id": "value.id", "note": "value.note", "lsn": "envelope.position"}, Version: "envelope.position",
	})
}

func TestAChangeWinsByItsPlaceInTheSourcesLog(t *testing.T) {
	t.Parallel()
	b := newTableChanges(t)
	b.want(b.settle(tableChange(1, "b", 20, 10, 1), tableChange(2, "x", 15, 25, 2)), "aa") // side by side: LSNs in any order
	b.want(b.settle(tableChange(1, "old", 19, 26, 3), tableChange(1, "c", 30, 26, 3)), "sa")
	b.want(b.settle(tableChange(1, "b", 20, 10, 1)), "s") // the connector was killed and sends again
	if got := b.ask("SELECT string_agg(id || note || lsn, ' ' ORDER BY id) FROM o"); got != "1c30 2x15" {
		t.Error(got)
	}
}
