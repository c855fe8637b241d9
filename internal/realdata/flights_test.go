package realdata_test

import (
	"fmt"
	"maps"
	"testing"
)

// Every column of the file, in types of many kinds.
const flightColumns = `(
	year smallint NOT NULL, month smallint NOT NULL, day smallint NOT NULL,
	dep_time integer, sched_dep_time integer NOT NULL, dep_delay numeric(6),
	arr_time integer, sched_arr_time integer NOT NULL, arr_delay numeric,
	carrier varchar(2) NOT NULL, flight integer NOT NULL, tailnum text, origin text NOT NULL, dest char(3) NOT NULL,
	air_time double precision, distance bigint NOT NULL, hour smallint NOT NULL, minute smallint NOT NULL,
	time_hour timestamptz NOT NULL, PRIMARY KEY (time_hour, carrier, flight, origin));`

// One table remembers by its key, the other by the inbox: a state table can't
// tell a repeat from an update.
const flightRoutes = `
  - name: inserted
    consumer: TOPIC-inserted
    from: {topics: [TOPIC], concurrency: 2, instance_id: station}
    id: {fields: [value.time_hour, value.carrier, value.flight, value.origin]}
    to: {table: inserted, write: insert}
    batch: {messages: %[1]d}
  - name: upserted
    consumer: TOPIC-upserted
    from: {topics: [TOPIC], concurrency: 2, instance_id: station}
    id: {header: message-id}
    to: {table: upserted, write: upsert}
    batch: {messages: %[1]d}
`

// Every flight is in both tables once, in every column as in the file, though a
// fifth was sent again and the process was killed again and again.
func TestRealDataFlightsAreInTheirTablesOnce(t *testing.T) {
	t.Parallel()
	batch, kills := 10, 4
	if whole() {
		batch, kills = 5000, 10
	}
	s := newStation(t, "CREATE TABLE inserted "+flightColumns+"CREATE TABLE upserted "+flightColumns,
		fmt.Sprintf(flightRoutes, batch), "inserted", "upserted")
	file := input("flights.jsonl.gz")
	s.send(file, "--create", "4", "--key", "value.dest", "--new-id", "--repeat", "0.2", "--seed", fmt.Sprint(s.random.Uint32()))
	s.settle(kills, 0)

	rows, want := expected(t, "flights", file)
	if s.sent.Lines != rows || s.sent.Repeats < rows/6 || s.sent.Repeats > rows/4 {
		t.Errorf("sent %+v of %d lines, a fifth again", s.sent, rows)
	}
	for _, table := range s.tables {
		lines := s.copied(`SELECT year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay,
			carrier, flight, tailnum, origin, dest, air_time, distance, hour, minute,
			to_char(time_hour, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM ` + table)
		if got := digest(lines); int64(len(lines)) != rows || got != want {
			t.Errorf("%s: %d rows of digest %s, want %d of %s", table, len(lines), got, rows, want)
		} else {
			t.Logf("%s: %d rows of digest %s, as in the file; sums of distance and dep_delay: %s",
				table, rows, got, s.copied("SELECT sum(distance), sum(dep_delay) FROM " + table)[0])
		}
	}
	outcomes := map[string]int64{"applied": rows, "duplicate": s.sent.Repeats}
	for route, got := range s.audit() {
		if !maps.Equal(got, outcomes) {
			t.Errorf("%s: %v, want %v", route, got, outcomes)
		}
	}
	if got := string(s.copied("SELECT consumer, count(*) FROM semel.inbox GROUP BY 1")[0]); got != fmt.Sprintf("%s-upserted\t%d", s.topic, rows) {
		t.Errorf("the inbox holds %q; the table inserted remembers its own IDs", got)
	}
}
