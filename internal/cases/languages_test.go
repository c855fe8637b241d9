//go:build languages

package cases_test

import (
	"fmt"
	"testing"
)

// A server that calls a fatal error ВАЖНО ends a session by command in the hands of a file's route: that is known by its
// code, so that ten sessions, and not three, are needed to blame the message.
func TestLanguageOfTheServerBlamesNoMessage(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, `CREATE TABLE s (id int PRIMARY KEY);
		CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 3 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF; RETURN NEW; END $$;
		CREATE TRIGGER leave BEFORE INSERT ON s FOR EACH ROW EXECUTE FUNCTION leave();
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lc_messages = ''ru_RU.UTF-8''', current_database()); END $$`)
	s.send(numbered(10, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })...)
	s.run(s.route("id: {position: true}", "to: {table: s, write: insert}"))
	s.want("SELECT class || ' ' || attempts FROM semel.dead_letter", "crash 10")
	s.want("SELECT count(*) FROM s", "9")
}
