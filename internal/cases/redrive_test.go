package cases_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/semelhq/semel/lab"
)

// redriveSteps watches what a process sends to the database from the lock of a letter on, until the letter is closed or
// buried again.
type redriveSteps struct {
	inside map[int]bool // by connection: in a redrive
	writes map[int]bool // its next COMMIT changes the letter
	sent   []string
	over   bool
}

func watchRedrive() *redriveSteps {
	return &redriveSteps{inside: map[int]bool{}, writes: map[int]bool{}}
}

// step says whether a frame is one of them, and whether it is the COMMIT at the end.
func (r *redriveSteps) step(f lab.Frame) (one, last bool) {
	if r.over || f.Answer || !slices.Contains([]string{"Query", "Execute", "CopyData", "CopyDone"}, f.Kind) {
		return false, false
	}
	switch {
	case strings.Contains(f.SQL, "FOR UPDATE OF d SKIP LOCKED"):
		r.inside[f.Conn] = true
	case strings.Contains(f.SQL, "dead_letter SET state"):
		r.writes[f.Conn] = r.inside[f.Conn]
	}
	if !r.inside[f.Conn] {
		return false, false
	}
	r.over = r.writes[f.Conn] && lab.IsCommit(f)
	r.sent = append(r.sent, strings.TrimSpace(f.Kind+" "+strings.Join(strings.Fields(f.SQL), " ")))
	return true, r.over
}

// A command is killed before each message that it sends to the database in a redrive, and behind the last: the effect is
// made once, the letter is closed once, and the memory knows. So it is for the owner and for --here; and a letter that is
// refused again is buried again.
func TestCommandsAreKilledAtEveryStepOfARedrive(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, table, to string
		here, refused   bool
	}{
		{name: "inbox", table: "id text, v int", to: "{table: s, write: append}"},
		{name: "target", table: "id text PRIMARY KEY, v int", to: "{table: s, write: insert}"},
		{name: "here", table: "id int PRIMARY KEY, v int", to: "{table: s, write: upsert, columns: {id: value.v, v: value.v}, combine: {v: add}}", here: true},
		{name: "refused", table: "id text, v int", to: "{table: s, write: append}", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const letters = 40
			s := newScene(t, 1, "CREATE TABLE s ("+c.table+", CONSTRAINT mended CHECK (v < 0))")
			values := numbered(letters, func(i int) string { return fmt.Sprintf(`{"id":"m-%d","v":1}`, i) })
			s.send(values...)
			route := s.route("id: {fields: [value.id]}", "to: "+c.to)
			s.run(route)
			s.want("SELECT count(*) FROM semel.dead_letter WHERE state = 'buried' AND class = 'constraint'", strconv.Itoa(letters))
			s.exec(`CREATE TABLE closing (number bigint);
				CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.closing VALUES (NEW.number); RETURN NULL; END $$;
				CREATE TRIGGER note AFTER UPDATE ON semel.dead_letter FOR EACH ROW WHEN (NEW.closed_at IS NOT NULL) EXECUTE FUNCTION note()`)
			if !c.refused {
				s.exec("ALTER TABLE s DROP CONSTRAINT mended")
			}
			heir := s.text(route)
			proxy := s.proxied()
			victim := s.text(route)

			handled := 0
			number := func() string { return s.ask(fmt.Sprintf("SELECT min(number) + %d FROM semel.dead_letter", handled)) }
			redrive := func(text string) *process {
				t.Helper()
				if c.here {
					return s.command(nil, text, "dead", "redrive", number(), "--here", "--config", "FILE")
				}
				s.exec("UPDATE semel.dead_letter SET state = 'redrive' WHERE number = " + number())
				return s.spawn(nil, nil, text)
			}
			// want compares everything that a redrive leaves with so many of them; next: how the letter behind these stands.
			want := func(next string) {
				t.Helper()
				n := handled
				if c.refused {
					n = 0
				}
				s.want(`SELECT concat_ws(' ', count(*) FILTER (WHERE state = 'redriven' AND outcome = 'applied'), (SELECT count(*) FROM closing),
					(SELECT sum(redriven) FROM semel.watermark), (SELECT coalesce(sum(v), 0) FROM s)) FROM semel.dead_letter`, fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", n))
				s.want("SELECT state FROM semel.dead_letter WHERE number = "+number(), next)
			}
			// ends lets a process handle what is marked.
			ends := func(p *process) {
				t.Helper()
				if c.here && p.cmd.Args[1] == "dead" {
					p.wait()
				}
				until(t, "no letter is marked", func() bool { return s.count("semel.dead_letter WHERE state = 'redrive'") == 0 })
				p.kill()
			}

			all := watchRedrive()
			i := proxy.Inject(lab.Fault{At: func(f lab.Frame) bool { all.step(f); return false }, Times: -1})
			ends(redrive(victim))
			i.Remove()
			handled++
			want("buried")
			for _, l := range all.sent {
				t.Logf("%.100s", l)
			}
			if !all.over || len(all.sent) > letters-2 {
				t.Fatalf("%d steps, seen to the end: %v", len(all.sent), all.over)
			}
			for k := range len(all.sent) + 1 {
				w, do := watchRedrive(), lab.Hold
				at := func(f lab.Frame) bool { one, _ := w.step(f); return one && len(w.sent) == k+1 }
				if k == len(all.sent) {
					do, at = lab.HoldAnswer, func(f lab.Frame) bool { _, last := w.step(f); return last }
				}
				i := proxy.Inject(lab.Fault{At: at, Do: do})
				p := redrive(victim)
				must(t, i.Wait(within(t), 1))
				p.kill()
				proxy.Cut() // what is on its way goes with the process
				i.Remove()
				until(t, "its sessions have ended", func() bool {
					return s.count("pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'scene'") == 0
				})
				if do == lab.HoldAnswer {
					handled++
					want("buried")
					s.run(route) // which finds nothing to do
				} else {
					want("redrive")
					ends(redrive(heir))
					handled++
				}
				want("buried")
				if t.Failed() {
					t.Fatalf("killed at step %d of %d", k+1, len(all.sent))
				}
			}
			// The memory knows.
			s.send(values[:handled]...)
			s.run(route)
			want("buried")
		})
	}
}
