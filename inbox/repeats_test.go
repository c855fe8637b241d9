package inbox_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

type digesting struct{ touchy }

func (digesting) Decode(items []inbox.Item) {
	for i := range items {
		copy(items[i].Digest[:], items[i].Value)
	}
}

func TestRepeatsOfAKnownIDAreJudgedByWhatIsKnown(t *testing.T) {
	for name, batch := range map[string]int{"in one batch": 10, "in batches of one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			says := func(key, value string) {
				m := message(0, "x", key)
				m.Value = []byte(value)
				w.b.Send(m)
			}
			opts := func(c *inbox.Config[*inboxtest.Tx]) {
				c.Handler, c.Effect, c.Batch.Messages = nil, digesting{}, batch
			}
			says("a", "one")
			p := w.start(opts)
			w.settledTo(1)
			p.stop(t)
			says("b", "two")
			says("c", "one")
			says("d", "two")
			w.start(opts)
			w.settledTo(4)
			w.wantOnce("a")
			var dead []int64
			for _, l := range w.db.Letters() {
				dead = append(dead, l.Message.Offset)
			}
			if fmt.Sprint(dead) != "[1 3]" {
				t.Errorf("dead are %v; 1 and 3 say something else under a known ID", dead)
			}
		})
	}
}
