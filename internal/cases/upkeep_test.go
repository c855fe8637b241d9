package cases_test

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// G34: ten days without traffic need no upkeep: nothing is made for a new day, nothing falls beside the place for it, and
// what came last before the pause is still known after it.
func TestTenIdleDaysNeedNoUpkeep(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (id int, v text)")
	route := s.route("id: {fields: [value.id]}", "to: {table: s, write: append}", "inbox: {window: 7d}", "batch: {messages: 100}")
	message := func(i int) string { return fmt.Sprintf(`{"id":%d,"v":"x"}`, i) }
	s.send(numbered(500, message)...)
	s.run(route)
	tables := s.ask("SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'semel'::regnamespace")
	// as if it had been ten days ago
	s.exec(`UPDATE semel.inbox_all SET at = at - interval '10 days'; UPDATE semel.generation SET from_time = from_time - interval '10 days';
		UPDATE semel.watermark SET updated_at = updated_at - interval '10 days'`)
	s.send(numbered(600, message)...) // the producer sends what it isn't sure of again
	s.run(route)
	s.want("SELECT count(*) || ' ' || count(DISTINCT id) FROM s", "600 600")
	if got := s.outcomes(); got != "600 applied, 500 duplicate" {
		t.Error(got)
	}
	s.want("SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'semel'::regnamespace", tables)
	s.want("SELECT count(*) FROM ONLY semel.inbox_all", "0")
}

// G35, G36: old IDs go while messages come. However long a piece of that takes, here until the test lets it go, no batch
// waits for it, and none locks a table.
func TestAPurgeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (id int)")
	route := s.route("id: {fields: [value.id]}", "to: {table: s, write: append}", "inbox: {window: 1h}")
	r := s.start(route)
	s.send(`{"id":0}`)
	until(t, "it runs", func() bool { return s.count("s") == 1 })
	s.exec(`SELECT semel.remember('` + s.topic + `', array_agg(gen_random_uuid())) FROM generate_series(1, 20000)`)
	s.exec(`UPDATE semel.inbox_all SET at = now() - interval '3 hours' WHERE id NOT IN (SELECT id FROM semel.inbox_all ORDER BY at LIMIT 1);
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN OLD; END $$`)
	s.exec(`DO $$ BEGIN EXECUTE format('CREATE TRIGGER wait BEFORE DELETE ON %s FOR EACH ROW EXECUTE FUNCTION wait()', (SELECT relation FROM semel.generation)); END $$`)

	hold, err := s.db.Acquire(within(t))
	must(t, err)
	_, err = hold.Exec(within(t), "SELECT pg_advisory_lock(42)")
	must(t, err)
	purged := make(chan error, 1)
	go func() {
		_, err := s.db.Exec(within(t), "CALL semel.forget('"+s.topic+"')")
		purged <- err
	}()
	until(t, "the purge is in the middle of a piece", func() bool {
		return s.ask("SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 42") == "true"
	})
	for i := 1; i <= 50; i++ { // one by one
		s.produce(&kgo.Record{Value: fmt.Appendf(nil, `{"id":%d}`, i)})
		until(t, "a message is in", func() bool { return s.count("s") == int64(i)+1 })
	}
	select {
	case err := <-purged:
		t.Fatalf("the purge was over: %v", err)
	default:
	}
	_, err = hold.Exec(within(t), "SELECT pg_advisory_unlock(42)")
	must(t, err)
	hold.Release()
	must(t, <-purged)
	r.stop()
	s.want("SELECT count(*) FROM semel.inbox WHERE at < now() - interval '1 hour'", "0")
	s.want("SELECT count(*) BETWEEN 51 AND 52 FROM semel.inbox", "true")
	// its pieces were transactions of their own
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	if got := s.outcomes(); got != "51 applied" {
		t.Error(got)
	}
}
