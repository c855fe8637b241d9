package inboxtest_test

import (
	"context"
	"testing"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func TestMemoryStore(t *testing.T) {
	inboxtest.TestStore(t, func(t *testing.T) inboxtest.StoreWorld[*inboxtest.Tx] {
		db := inboxtest.NewDB()
		return inboxtest.StoreWorld[*inboxtest.Tx]{
			New:        func() inbox.Store[*inboxtest.Tx] { return db.NewStore() },
			Effect:     func(ctx context.Context, tx *inboxtest.Tx, key string) error { return tx.Add(ctx, key, 1) },
			Refuse:     func(_ context.Context, tx *inboxtest.Tx) error { return tx.Refuse() },
			RefuseLate: func(_ context.Context, tx *inboxtest.Tx) error { tx.RefuseLate(); return nil },
			Effects: func() (keys []string) {
				for k, n := range db.Values() {
					for range n {
						keys = append(keys, k)
					}
				}
				return keys
			},
			Letters: func() int { return len(db.Letters()) },
			Mark:    db.Mark, LetterStates: db.LetterStates,
		}
	})
}

func TestMemorySource(t *testing.T) {
	inboxtest.TestSource(t, func(t *testing.T) inboxtest.SourceWorld {
		b := inboxtest.NewBroker()
		b.CreateTopic("t", 2)
		return inboxtest.SourceWorld{
			Topic: "t",
			New:   func(group string) inbox.Source { return b.NewSource(group, inboxtest.StartGroup, "t") },
			Send:  b.Send,
		}
	})
}
