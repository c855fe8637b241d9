package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// G27: a value that is null while a name is mapped onto another; the key alone says which row it was.
func TestTombstonesUnderARenamingCrashNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, outcomes, dead string }{
		{"ignore", "2 applied, 2 skipped", ""},
		{"dead-letter", "2 applied, 2 dead", "0/1 value, 0/2 value"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, "CREATE TABLE s (id bigint PRIMARY KEY, v text)")
			s.produce(
				&kgo.Record{Key: []byte(`{"entityId":7}`), Value: []byte(`{"entityId":7,"v":"a"}`)},
				&kgo.Record{Key: []byte(`{"entityId":7}`)},
				&kgo.Record{Key: []byte(`{"entityId":9}`)},
				&kgo.Record{Key: []byte(`{"entityId":8}`), Value: []byte(`{"entityId":8,"v":"b"}`)},
			)
			s.run(s.route("from: {topics: [TOPIC], key_format: json}", "id: {position: true}",
				"to: {table: s, write: upsert, columns: {id: value.entityId, v: value.v}, tombstone: "+c.rule+"}"))
			s.want("SELECT string_agg(id || v, ' ' ORDER BY id) FROM s", "7a 8b")
			if got := s.outcomes(); got != c.outcomes {
				t.Error(got)
			}
			if got := s.dead(); got != c.dead {
				t.Error(got)
			}
			if at := s.watermark(0); at != 4 {
				t.Errorf("the watermark is %d", at)
			}
		})
	}
}

// G29: a dead letter is the message byte for byte, and says where it came from and why.
func TestADeadLetterIsTheWholeMessage(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (id bigint PRIMARY KEY)")
	key, value := []byte{0xff, 0, 0xfe, 'k'}, []byte("{\"id\": 1, \xc3\x28\x00")
	at := time.UnixMilli(1_767_225_600_123)
	s.produce(&kgo.Record{Value: []byte(`{"id":1}`)}, &kgo.Record{Key: key, Value: value, Timestamp: at, Headers: []kgo.RecordHeader{
		{Key: "trace", Value: []byte{0xff, 0}}, {Key: "trace", Value: []byte("again")}, {Key: "none"},
	}})
	s.run(s.route("id: {position: true}", "to: {table: s, write: insert}"))
	s.want(`SELECT concat_ws(' ', encode(key, 'hex'), encode(value, 'hex'), topic = '`+s.topic+`', partition, "offset",
		extract(epoch FROM message_time) * 1000, class, attempts, error <> '', state) FROM semel.dead_letter`,
		fmt.Sprintf("%x %x t 0 1 %d.000000 decode 1 t buried", key, value, at.UnixMilli()))
	s.want(`SELECT headers FROM semel.dead_letter`, `[{"name": "trace", "value": "/wA="}, {"name": "trace", "value": "YWdhaW4="}, {"name": "none", "value": null}]`)
	if got := s.outcomes(); got != "1 applied, 1 dead" {
		t.Error(got)
	}
}

// G53: a key of no bytes and no key are two things: in the row, in the ID, and in the dead letter.
func TestAnEmptyKeyIsNoNullKey(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (n int PRIMARY KEY, k text); CREATE TABLE ids (n int, k text)")
	s.produce(
		&kgo.Record{Key: []byte{}, Value: []byte(`{"n":1}`)}, &kgo.Record{Value: []byte(`{"n":2}`)},
		&kgo.Record{Key: []byte{}, Value: []byte(`{"n":"x"}`)}, &kgo.Record{Value: []byte(`{"n":"x"}`)},
		&kgo.Record{Key: []byte{}, Value: []byte(`{"n":3}`)},
	)
	s.run(
		s.route("id: {position: true}", "to: {table: s, write: insert, columns: {n: value.n, k: key}}"),
		s.route("name: ids", "consumer: TOPIC-ids", "id: {key: true}", "to: {table: ids, write: append, columns: {n: value.n, k: key}}"),
	)
	s.want("SELECT string_agg(n || ' ' || coalesce(quote_literal(k), 'null'), ', ' ORDER BY n) FROM s", "1 '', 2 null, 3 ''")
	s.want(`SELECT string_agg("offset" || ' ' || class || ' ' || coalesce(octet_length(key)::text, 'null'), ', ' ORDER BY "offset") FROM semel.dead_letter WHERE consumer = '`+s.topic+`'`,
		"2 value 0, 3 value null")
	// By its key the empty one has an ID, and what comes under it again is a repeat; without a key there is none. (The
	// fourth has no number either, which is seen first.)
	s.want("SELECT string_agg(n || ' ' || coalesce(quote_literal(k), 'null'), ', ' ORDER BY n) FROM ids", "1 ''")
	s.want(`SELECT string_agg("offset" || ' ' || class, ', ' ORDER BY "offset") FROM semel.dead_letter WHERE consumer = '`+s.topic+`-ids' AND key IS NULL`,
		"1 missing-id, 3 value")
}

// G30: a message that always fails has so many attempts and no more, over restarts too, and holds its partition no
// longer than they take.
func TestAFailingMessageIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2, `CREATE TABLE s (id text PRIMARY KEY); CREATE SEQUENCE tries;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 'm-1' THEN PERFORM nextval('tries'); RAISE EXCEPTION 'always' USING ERRCODE = '23514', CONSTRAINT = 'always'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION refuse()`)
	var rs []*kgo.Record
	for i := 1; i <= 21; i++ {
		rs = append(rs, &kgo.Record{Value: fmt.Appendf(nil, `{"id":"m-%d"}`, i)})
	}
	rs = append(rs, &kgo.Record{Partition: 1, Value: []byte(`{"id":"other"}`)})
	s.produce(rs...)
	route := s.route("id: {fields: [value.id]}", "to: {table: s, write: append}",
		`on_error: {attempts: 4, backoff: {initial: 500ms, max: 500ms}, limit: {in_a_row: 0, share: "0%"}}`)
	r := s.start(route)
	until(t, "it was tried, and the other partition went on", func() bool {
		return s.count("pg_sequences WHERE sequencename = 'tries' AND last_value > 0") == 1 && s.count("s WHERE id = 'other'") == 1
	})
	r.stop()
	s.run(route)
	s.want("SELECT count(*) FROM s", "21")
	if got := s.outcomes(); got != "21 applied, 1 dead" {
		t.Error(got)
	}
	if got := s.dead(); !strings.HasPrefix(got, "0/0 constraint") || strings.Contains(got, ",") {
		t.Error(got)
	}
	s.want("SELECT attempts BETWEEN 1 AND 4 FROM semel.dead_letter", "true")
	// Each attempt looks for it in a few transactions, twice over for the restart.
	s.want("SELECT last_value < 100 FROM tries", "true")
}

// G44: the wait before another attempt is measured by one clock. The database's is a day ahead of the process's, or a day
// behind: it is as long, and it ends.
func TestTheWaitBeforeAnAttemptNeedsNoSecondClock(t *testing.T) {
	t.Parallel()
	for _, shift := range []string{"1 day", "-1 day"} {
		t.Run(shift, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 1, `CREATE TABLE s (id int PRIMARY KEY);
				CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF NEW.id = 1 AND nextval('public.n') < 4 THEN RAISE EXCEPTION 'later' USING ERRCODE = '23514', CONSTRAINT = 'later'; END IF;
					RETURN NEW;
				END $$;
				CREATE SEQUENCE n; CREATE TRIGGER later BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION later();
				CREATE SCHEMA shifted`)
			for _, clock := range []string{"now", "clock_timestamp", "statement_timestamp", "transaction_timestamp"} {
				s.exec(fmt.Sprintf("CREATE FUNCTION shifted.%[1]s() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.%[1]s() + interval '%[2]s' $$", clock, shift))
			}
			s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = shifted, pg_catalog, public', current_database()); END $$")
			s.send(`{"id":0}`, `{"id":1}`, `{"id":2}`)
			began := time.Now()
			s.run(s.route("id: {position: true}", "to: {table: s, write: insert}", "batch: {messages: 1}",
				`on_error: {attempts: 9, backoff: {initial: 200ms, max: 200ms}, limit: {in_a_row: 0, share: "0%"}}`))
			if waited := time.Since(began); waited < 200*time.Millisecond { // the first attempts may be one in its batch and one alone
				t.Errorf("waits of 200 ms took %s", waited)
			}
			s.want("SELECT string_agg(id::text, ' ' ORDER BY id) FROM s", "0 1 2")
			s.want("SELECT abs(extract(epoch FROM updated_at - pg_catalog.clock_timestamp())) > 80000 FROM semel.watermark", "true") // the clock was another
			if got := s.outcomes(); got != "3 applied" {
				t.Error(got)
			}
		})
	}
}
