// Package inbox settles messages once: it takes runs from a [Source], and in one
// transaction of a [Store] moves the watermark, remembers message IDs and makes
// the effect; then it acks.
//
// # A consumer
//
// What to do with a message is a handler. It writes with the transaction that it
// is given, and with nothing else:
//
//	func pay(ctx context.Context, tx pgx.Tx, m semel.Message) error {
//		p, err := parse(m.Value)
//		if err != nil {
//			return semel.Permanent(err) // no attempt will cure it: a dead letter
//		}
//		_, err = tx.Exec(ctx, `UPDATE account SET balance = balance + $2 WHERE id = $1`, p.Account, p.Amount)
//		return err // tried again, with back-off
//	}
//
// A consumer is a source, a store and a handler under a name. The name is the
// scope of the memory: under another one the same messages take effect again.
//
//	billing, err := inbox.New(inbox.Config[pgx.Tx]{
//		Consumer: "billing",
//		Source:   source, // kafka.NewSource
//		Store:    store,  // postgres.NewInboxStore
//		ID:       semel.HeaderID("message-id"),
//		Handler:  pay,
//	})
//
// Run works until it is told to stop. It waits out what passes by itself (a
// broker, a database, a rebalance), buries what is wrong with one message, and
// returns a [HaltError] or a [ChangedError] where a person has to decide:
//
//	context.AfterFunc(signals, billing.Drain) // finish the batch, ack, leave: Run returns nil
//	err = billing.Run(ctx)                    // the end of ctx rolls back instead
//
// The handler may be called many times for one message; exactly one call commits.
// Whatever it does beside tx (a mail, another database) can happen each time.
// More consumers of the same name share the partitions: one lane is one member of
// the group with one connection, and settles one batch at a time.
//
// # Why it is once
//
// A duplicate has two sources. What the broker delivers again lies below the
// watermark, a row per consumer and partition. What a producer sends again
// carries a message ID that the inbox knows. Both memories are written in the
// transaction of the effect, so that they can't disagree with it.
//
// An assignment by the broker is advice; a [Claim] is a row in the database, and
// whoever writes compares it first. So a process that lost its partition without
// noticing is refused before its first effect. After any doubt (a lost answer to
// COMMIT, a database restored from yesterday) there is one way on: claim again, and
// read from where the row stands.
//
// # Reading the code
//
// A turn of the loop is lane.go: poll, look, prove, settle. claim.go proves
// partitions, by the rules of prove.go. settle.go takes a delivery apart into
// batches, attempt.go is the one transaction of a batch, and isolate.go what follows
// if it fails. outage.go waits out what passes by itself. The seams are in seams.go.
//
// The package knows no broker and no database: kafka implements Source, postgres
// implements Store, and package inboxtest has both in memory, the suites that
// every implementation passes, and a way to try your handler.
package inbox
