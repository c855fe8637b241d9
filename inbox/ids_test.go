package inbox_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func TestIDOfZerosIsAnID(t *testing.T) {
	for name, batch := range map[string]int{"in one batch": 10, "in batches of one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			for range 3 {
				w.b.Send(message(0, semel.ID{}.String(), "k"))
			}
			w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Batch.Messages = batch })
			w.settledTo(3)
			w.wantOnce("k")
		})
	}
}
