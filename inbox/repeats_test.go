package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/semelhq/semel"
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

// rememberingTarget has a row for each ID; it alone knows what is in them.
type rememberingTarget struct{ rows map[semel.ID]string }

func (rememberingTarget) Decode([]inbox.Item) {}

func (r rememberingTarget) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	for _, it := range items {
		switch value, there := r.rows[it.ID]; {
		case !there:
			r.rows[it.ID] = string(it.Value)
			if err := tx.DB().Add(ctx, string(it.Value), 1); err != nil {
				return err
			}
		case value == string(it.Value):
			it.Outcome = inbox.DuplicateID
		default:
			it.Err, it.Class = errors.New("another row"), inbox.DeadCollision
		}
	}
	return nil
}

// The target may hold a row from before, which the first message of a batch with
// that ID doesn't equal: an honest repeat behind it would be judged by the wrong one.
func TestRepeatsAreTheTargetsToJudgeWhereItIsTheMemory(t *testing.T) {
	for batch := 1; batch <= 6; batch++ {
		t.Run(fmt.Sprint("batches of ", batch), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			for _, m := range []semel.Message{
				message(0, "old", "other"), message(0, "old", "other"), message(0, "old", "row"), message(0, "new", "new"), message(0, "new", "new"),
			} {
				m.Value = m.Key
				w.b.Send(m)
			}
			target := rememberingTarget{map[semel.ID]string{semel.IDOf([]byte("old")): "row"}}
			p := w.start(func(c *inbox.Config[*inboxtest.Tx]) {
				c.Handler, c.Effect, c.Memory, c.Batch.Messages = nil, target, inbox.MemoryTarget, batch
			})
			w.settledTo(5)
			w.wantOnce("new")
			if got := w.db.Rows(consumer)[0].Accounts.Outcome; got[inbox.Applied].Count != 1 || got[inbox.DuplicateID].Count != 2 || got[inbox.Dead].Count != 2 {
				t.Errorf("%+v", got)
			}
			p.stop(t)
		})
	}
}

// firstOnly lets in the first message of each value; one named bad fails the batch.
type firstOnly struct{}

func (firstOnly) Decode([]inbox.Item) {}

func (firstOnly) Apply(ctx context.Context, tx inbox.Tx[*inboxtest.Tx], items []*inbox.Item) error {
	seen := map[string]bool{}
	bad := false
	for _, it := range items {
		if seen[string(it.Value)] {
			it.Err, it.Class = errors.New("it is there"), inbox.DeadConstraint
			continue
		}
		seen[string(it.Value)] = true
		bad = bad || string(it.Key) == "bad"
		if err := tx.DB().Add(ctx, string(it.Value), 1); err != nil {
			return err
		}
	}
	if bad {
		return tx.DB().Refuse()
	}
	return nil
}

// The first message of a value is refused with its batch: that a later one was
// turned away for it counts no more than the batch.
func TestVerdictsOfAnApplyThatFailedAreForgotten(t *testing.T) {
	w := newWorld(t, 1)
	for i, key := range []string{"bad", "good"} {
		m := message(0, fmt.Sprint(i), key)
		m.Value = []byte("value")
		w.b.Send(m)
	}
	p := w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Handler, c.Effect = nil, firstOnly{} })
	w.settledTo(2)
	w.wantOnce("value")
	if letters := w.db.Letters(); len(letters) != 1 || string(letters[0].Message.Key) != "bad" {
		t.Errorf("%+v", letters)
	}
	p.stop(t)
}
