package inbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// rowTo is a row that has read from start to next, in two epochs.
func rowTo(start, next int64) inbox.Row {
	r := inbox.Row{Start: start, Next: next, Adopted: -1}
	r.Partition, r.TopicID = semel.Partition{Topic: "t"}, semel.TopicID{1}
	r.Epochs = []inbox.Epoch{{Number: 1, First: start}, {Number: 2, First: start + 5}}
	for o := start; o < next; o++ {
		h := inbox.Hash(r.TopicID, o)
		r.Accounts.Settled.Add(h)
		r.Accounts.Outcome[inbox.Applied].Add(h)
	}
	return r
}

func TestResetKeepsAccountsThatAddUp(t *testing.T) {
	t.Parallel()
	was := rowTo(10, 20)
	for to := int64(0); to <= 30; to++ {
		r, events, err := inbox.Reset("db", "c", was, inbox.Witness{Partition: was.Partition, TopicID: was.TopicID, Acked: 20}, to)
		if err != nil {
			t.Fatal(err)
		}
		a := r.Accounts
		if _, ok := a.Check(); !ok || r.Next-r.Start != a.Settled.Count+a.Holes+a.Lost {
			t.Errorf("to %d: %d to %d, accounts %+v", to, r.Start, r.Next, a)
		}
		if r.Next != to || r.Start != min(was.Start, to) || r.Adopted != 20 {
			t.Errorf("to %d: row %+v", to, r)
		}
		for _, e := range r.Epochs {
			if e.First >= to && to != was.Next || to > was.Next {
				t.Errorf("to %d: epoch %+v wasn't read up to there", to, e)
			}
		}
		if last := events[len(events)-1]; last.Kind != inbox.EventClaim || last.Detail["next"] != to {
			t.Errorf("to %d: no border in %v", to, events)
		}
	}
}

func TestResetOfATopicMadeAnewFollowsTheNewOne(t *testing.T) {
	t.Parallel()
	was := rowTo(10, 20)
	r, _, err := inbox.Reset("db", "c", was, inbox.Witness{Partition: was.Partition, TopicID: semel.TopicID{2}, Acked: -1}, 3)
	if err != nil || r.TopicID != (semel.TopicID{2}) || r.Start != 3 || r.Next != 3 || r.Epochs != nil {
		t.Errorf("row %+v, error %v", r, err)
	}
}

// Two databases that both move the group would take turns.
func TestResetIsRefusedWhereAnotherDatabaseSigned(t *testing.T) {
	t.Parallel()
	was := rowTo(10, 20)
	theirs := inbox.SignedAck("other", "c", was)
	_, _, err := inbox.Reset("db", "c", was, inbox.Witness{Partition: was.Partition, TopicID: was.TopicID, Acked: theirs.Next, Note: theirs.Note}, 0)
	var halt *inbox.HaltError
	if !errors.As(err, &halt) || halt.Kind != "other-database" {
		t.Errorf("error %v", err)
	}
}

// heldStore refuses every Begin while it is held.
type heldStore struct {
	*inboxtest.Store
	held *atomic.Bool
}

func (s heldStore) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*inboxtest.Tx], error) {
	if s.held.Load() {
		return nil, &inbox.FencedError{Mismatches: []inbox.Mismatch{{Partition: spans[0].Partition, From: spans[0].From}}}
	}
	return s.Store.Begin(ctx, spans)
}

// Where the group has members they alone may commit: the claim after a reset puts the
// group's offset back, before anything is settled.
func TestClaimAfterAResetSignsItsPlace(t *testing.T) {
	w := newWorld(t, 1)
	w.send(0, 0, 5)
	held := new(atomic.Bool)
	w.start(func(c *inbox.Config[*inboxtest.Tx]) { c.Store = heldStore{w.db.NewStore(), held} })
	w.settledTo(5)
	p := semel.Partition{Topic: "t"}
	at := func() int64 { n, _ := w.b.Committed(consumer, p); return n }
	until(t, "the group's offset follows", func() bool { return at() == 5 })

	held.Store(true)
	operator := w.db.NewStore()
	reg, err := operator.Open(t.Context(), inbox.Record{Name: consumer, AcceptChange: true, Topics: []string{"t"}, IDRule: "header message-id", Memory: inbox.MemoryInbox, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	acked, note := w.b.Committed(consumer, p)
	_, err = operator.Claim(t.Context(), p, inbox.Owner{}, func(r inbox.Row) (inbox.Row, []inbox.Event, error) {
		return inbox.Reset(reg.Database, consumer, r, inbox.Witness{Partition: p, TopicID: r.TopicID, Acked: acked, Note: note}, 2)
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the group's offset is the reset's place", func() bool { return at() == 2 })
	held.Store(false)
	w.settledTo(5)
	until(t, "the group's offset follows", func() bool { return at() == 5 })
}
