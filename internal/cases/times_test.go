package cases_test

import (
	"fmt"
	"testing"
)

// G22: the instant that a message names doesn't depend on the zones of process and database; a time without a zone
// needs one in the file.
func TestInstantsAreTheSameUnderEveryZone(t *testing.T) {
	t.Parallel()
	type at struct{ column, json, utc, new string } // utc: without a zone in the file; new: with America/New_York
	same := func(column, json, want string) at { return at{column, json, want, want} }
	all := []at{
		same("tz", `"2026-03-29T12:00:00+09:00"`, "2026-03-29 03:00:00"),
		same("tz", `"2026-03-29T12:00:00-00:30"`, "2026-03-29 12:30:00"),
		same("tz", `"2026-03-29T12:00:00.123456Z"`, "2026-03-29 12:00:00.123456"),
		same("tz", `"2026-03-29 12:00:00z"`, "2026-03-29 12:00:00"),
		same("tz", `"2026-03-29T12:00:00+0530"`, "2026-03-29 06:30:00"),
		same("tz", `"2026-03-29T12:00:00.1234567Z"`, dead), // would be rounded
		{"tz", `"2026-03-29T12:00:00"`, dead, "2026-03-29 16:00:00"},
		{"tz", `"2026-01-29T12:00:00"`, dead, "2026-01-29 17:00:00"},
		{"tz", `"2026-01-29"`, dead, "2026-01-29 05:00:00"},
		// The hour that comes twice in autumn, and the one that never comes in spring.
		same("tz", `"2026-11-01T01:30:00-04:00"`, "2026-11-01 05:30:00"),
		same("tz", `"2026-11-01T01:30:00-05:00"`, "2026-11-01 06:30:00"),
		{"tz", `"2026-11-01T01:30:00"`, dead, "2026-11-01 06:30:00"},
		{"tz", `"2026-03-08T02:30:00"`, dead, "2026-03-08 07:30:00"},
		same("ms", "1793514600123", "2026-11-01 06:30:00.123"),
		same("ms", `"1793514600123"`, "2026-11-01 06:30:00.123"),
		same("ms", "-1", "1969-12-31 23:59:59.999"),
		same("ms", "1e12", "2001-09-09 01:46:40"),
		same("ms", "0.5", "1970-01-01 00:00:00.0005"),
		same("ms", "0.0001", dead),
		same("ms", "1e300", dead),
		same("ms", "1e999999999", dead),
		same("tz", "1793514600123", dead), // no unit
		same("tz", `"1793514600123"`, dead),
		// No zone is needed for a clock on the wall, and none is invented.
		same("ts", `"2026-11-01T01:30:00"`, "2026-11-01 01:30:00"),
		{"ts", `"2026-11-01T01:30:00Z"`, dead, "2026-10-31 21:30:00"},
		same("d", `"2026-03-29"`, "2026-03-29"),
		same("d", `"2026-03-29T00:00:00+09:00"`, "2026-03-29"),
		same("d", `"2026-03-29T12:00:00Z"`, dead),
		same("tod", `"23:59:59.5"`, "23:59:59.5"),
		same("tod", `"24:00:00"`, "24:00:00"),
		same("tod", `"23:59:59+09:00"`, dead),
		same("tz", `"2016-12-31T23:59:60Z"`, "2017-01-01 00:00:00"),
		same("tz", `"2016-12-31T23:59:61Z"`, dead),
		same("tz", `"2026-02-29T00:00:00Z"`, dead),
		same("tz", `"2024-02-29T00:00:00Z"`, "2024-02-29 00:00:00"),
		same("tz", `"2026-13-01T00:00:00Z"`, dead),
		same("tz", `"9999-12-31T23:59:59-01:00"`, "10000-01-01 00:59:59"),
		same("tz", `"12026-01-01T00:00:00Z"`, "12026-01-01 00:00:00"),
		same("tz", `"294276-12-31T23:59:59.999999Z"`, "294276-12-31 23:59:59.999999"),
		same("tz", `"294277-01-01T00:00:00Z"`, dead),
		same("tz", `"0001-01-01T00:00:00Z"`, "0001-01-01 00:00:00"),
		same("tz", `"0001-01-01T00:00:00+01:00"`, "0001-12-31 23:00:00 BC"),
		same("tz", `"0000-01-01T00:00:00Z"`, "0001-01-01 00:00:00 BC"), // ISO 8601 has a year 0
		same("tz", `"-0044-03-15T00:00:00Z"`, "0045-03-15 00:00:00 BC"),
		same("tz", `"0044-03-15 BC"`, dead),
		same("d", `"0044-03-15 BC"`, dead),
		same("d", `"12026-01-01"`, "12026-01-01"),
		same("tz", `"29/03/2026"`, dead),
		same("tz", `"2026-03-29T12:00:00 Europe/Warsaw"`, dead),
		same("tz", `"2026-03-29T12:00:00 CET"`, dead),
		same("tz", "null", "NULL"),
	}
	for _, process := range []string{"Asia/Tokyo", "America/New_York"} {
		for _, database := range []string{"America/New_York", "Asia/Kathmandu"} {
			t.Run(process+" to "+database, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, 1, "CREATE TABLE none (no int PRIMARY KEY, tz timestamptz, ms timestamptz, ts timestamp, d date, tod time); CREATE TABLE york (LIKE none INCLUDING ALL)")
				s.exec(fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET timezone = %%L', current_database(), '%s'); END $$", database))
				s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET datestyle = SQL, DMY', current_database()); END $$")
				s.db.Reset()
				s.want("SELECT current_setting('timezone')", database)
				for i, v := range all {
					s.send(fmt.Sprintf(`{"no":%d,%q:%s}`, i, v.column, v.json))
				}
				text := s.text(
					s.route("name: none", "consumer: TOPIC-none", "id: {position: true}", "to: {table: none, write: append, times: {epoch: {ms: ms}}}"),
					s.route("name: york", "consumer: TOPIC-york", "id: {position: true}", "to: {table: york, write: upsert, times: {zone: America/New_York, epoch: {ms: ms}}}"))
				p := s.spawn([]string{"TZ=" + process}, []string{"--until-caught-up"}, text)
				if code := p.wait(); code != 1 { // something was buried
					t.Fatalf("exit %d", code)
				}
				for i, v := range all {
					for table, want := range map[string]string{"none": v.utc, "york": v.new} {
						column := v.column
						if column == "tz" || column == "ms" {
							column += " AT TIME ZONE 'UTC'"
						}
						got := s.ask(fmt.Sprintf(`SELECT CASE WHEN EXISTS (SELECT FROM %s WHERE no = %d) THEN (SELECT coalesce((%s)::text, 'NULL') FROM %s WHERE no = %d) ELSE 'dead' END`,
							table, i, column, table, i))
						if got != want {
							t.Errorf("%s %s in %s is %s, want %s", v.column, v.json, table, got, want)
						}
					}
				}
				for table, n := range map[string]int{"none": 0, "york": 0} {
					for _, v := range all {
						if table == "none" && v.utc == dead || table == "york" && v.new == dead {
							n++
						}
					}
					s.want(fmt.Sprintf("SELECT count(*) FROM semel.dead_letter WHERE class = 'value' AND consumer LIKE '%%%s'", table), fmt.Sprint(n))
				}
			})
		}
	}
}

// G22: a message's own timestamp is an instant too, and goes into columns of either kind without anybody's zone.
func TestTheTimeOfTheMessageIsAnInstant(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE v (no int PRIMARY KEY, at timestamptz)")
	s.send(`{"no":1}`)
	s.run(s.route("id: {position: true}", "to: {table: v, write: append, columns: {no: value.no, at: timestamp}}"))
	s.want("SELECT now() - at BETWEEN '-1 minute' AND '2 minutes' FROM v", "true")
}
