package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// An attempt is a call: a handler that calls others is not called twice for one.
func TestAttemptsAreCallsOfTheHandler(t *testing.T) {
	for name, before := range map[string]int{"first of its batch": 0, "after others": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, before)
			w.b.Send(message(0, "bad", "bad"))
			keys = append(keys, w.send(0, before, before+2)...)
			calls := 0
			p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
				c.OnError.Attempts = 4
				c.Handler = func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
					if string(m.Key) == "bad" {
						calls++
						return errors.New("no")
					}
					return count(ctx, tx, m)
				}
			})
			w.settledTo(int64(before + 3))
			p.stop(t)
			w.wantOnce(keys...)
			if ls := w.db.Letters(); calls != 4 || len(ls) != 1 || ls[0].Attempts != 4 {
				t.Errorf("%d calls, of 4 attempts; dead: %+v", calls, ls)
			}
		})
	}
}
