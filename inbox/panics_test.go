package inbox_test

import (
	"context"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func TestPanicOfAnIDRuleBuriesItsMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	keys := w.send(0, 0, 3)
	w.b.Send(message(0, "bad", "bad"))
	keys = append(keys, w.send(0, 3, 5)...)
	rule := semel.HeaderID("message-id")
	w.start(func(c *inbox.Config[*inboxtest.Tx]) {
		c.ID = semel.IDRule{
			Name: rule.Name, Sent: func(*semel.Message) string { panic("sent") },
			Of: func(m *semel.Message) (semel.ID, error) {
				if string(m.Key) == "bad" {
					panic("a message that this rule didn't think of")
				}
				return rule.Of(m)
			},
		}
	})
	w.settledTo(6)
	w.wantOnce(keys...)
	if ls := w.db.Letters(); len(ls) != 1 || ls[0].Class != inbox.DeadDecode || ls[0].Message.Offset != 3 {
		t.Errorf("dead letters: %+v", ls)
	}
}

// touchy is an effect that panics at a message, while it decodes or applies it.
type touchy struct{ decodes, applies bool }

func (e touchy) Decode(items []inbox.Item) {
	for i := range items {
		if e.decodes && string(items[i].Key) == "bad" {
			panic("a message that this effect didn't think of")
		}
	}
}

func (e touchy) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for _, it := range items {
		if e.applies && string(it.Key) == "bad" {
			panic("a message that this effect didn't think of")
		}
		if err := count(ctx, tx.DB(), it.Message); err != nil {
			return err
		}
	}
	return nil
}

func TestPanicOfAnEffectBuriesItsMessage(t *testing.T) {
	for class, effect := range map[inbox.DeadClass]touchy{inbox.DeadDecode: {decodes: true}, inbox.DeadHandler: {applies: true}} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			keys := w.send(0, 0, 3)
			w.b.Send(message(0, "bad", "bad"))
			keys = append(keys, w.send(0, 3, 5)...)
			w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Handler, c.Effect = nil, effect })
			w.settledTo(6)
			w.wantOnce(keys...)
			if ls := w.db.Letters(); len(ls) != 1 || ls[0].Class != class || ls[0].Message.Offset != 3 {
				t.Errorf("dead letters: %+v", ls)
			}
		})
	}
}
