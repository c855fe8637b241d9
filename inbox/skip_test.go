package inbox_test

import (
	"context"
	"testing"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// pickyEffect is not meant for messages whose value is "no".
type pickyEffect struct{}

func (pickyEffect) Decode(items []inbox.Item) {
	for i := range items {
		if it := &items[i]; string(it.Value) == "no" {
			it.Skip, it.Err, it.Class = true, nil, ""
		}
	}
}

func (pickyEffect) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for _, it := range items {
		if err := tx.DB().Add(ctx, string(it.Key), 1); err != nil {
			return err
		}
	}
	return nil
}

func TestASkippedMessageAsksNoMemory(t *testing.T) {
	w := newWorld(t, 1)
	no := message(0, "a", "x")
	no.Value = []byte("no")
	bare := no
	bare.Headers = nil // an ID that is missing is none of its trouble
	w.b.Send(no, bare, message(0, "a", "a"), no, message(0, "b", "b"), bare)
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Handler, c.Effect = nil, pickyEffect{} })
	w.settledTo(6)
	w.wantOnce("a", "b")
	a := w.db.Rows(consumer)[0].Accounts
	if a.Outcome[inbox.Skipped].Count != 4 || a.Outcome[inbox.Applied].Count != 2 {
		t.Errorf("%+v", a)
	}
	p.stop(t)
}
