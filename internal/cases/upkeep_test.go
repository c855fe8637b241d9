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

// G35, G36: old IDs go while messages come. However long a step of that takes, here until the test lets it go, no batch
// waits for it, and none locks a table.
func TestAPurgeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, "CREATE TABLE s (id int)")
	route := s.route("id: {fields: [value.id]}", "to: {table: s, write: append}", "inbox: {window: 1h}")
	r := s.start(route)
	s.send(`{"id":0}`)
	until(t, "it runs", func() bool { return s.count("s") == 1 })
	s.exec(`SELECT semel.remember('` + s.topic + `', array_agg(gen_random_uuid())) FROM generate_series(1, 20000)`)
	sent := 0
	for _, step := range []string{"both", "frozen", "dropped", "emptied", "both"} {
		s.exec("UPDATE semel.generation SET from_time = from_time - interval '2 hours', to_time = to_time - interval '2 hours'")
		turning, err := s.db.Begin(within(t))
		must(t, err)
		var got string
		must(t, turning.QueryRow(within(t), "SELECT semel.rotate(scope, name, '1 hour', now(), 5000000) FROM semel.consumer").Scan(&got))
		if got != step {
			t.Fatalf("step %q, want %q", got, step)
		}
		for range 10 { // one by one
			sent++
			s.produce(&kgo.Record{Value: fmt.Appendf(nil, `{"id":%d}`, sent)})
			until(t, "a message is in", func() bool { return s.count("s") == int64(sent)+1 })
		}
		must(t, turning.Commit(within(t)))
	}
	r.stop()
	s.want("SELECT count(*) FROM semel.inbox WHERE id NOT IN (SELECT semel.id_of(id::text) FROM s)", "0")
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
	if got := s.outcomes(); got != "51 applied" {
		t.Error(got)
	}
}
