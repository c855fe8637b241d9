// Package inbox settles messages once: it takes runs from a [Source], and in one
// transaction of a [Store] moves the watermark, remembers message IDs and makes
// the effect; then it acks.
//
// A duplicate has two sources. What the broker delivers again lies below the
// watermark, a row per consumer and partition. What a producer sends again
// carries a message ID that the inbox knows. Both memories are written in the
// transaction of the effect, so that they can't disagree with it.
//
// The package knows no broker and no database: kafka implements Source,
// postgres implements Store, and package inboxtest has both in memory together
// with the suites that every implementation passes.
package inbox
