// Package demo shows the promise on one terminal: a stream of payments, a part of
// which the producer sends twice, is booked by three consumers at once, and each is
// killed with SIGKILL every few seconds. One is semel. The others are the two loops
// that textbooks offer: acknowledge and then work, or work and then acknowledge.
// At the end every booking in PostgreSQL is held against what was sent.
//
// Nothing is staged but the moment of a kill. The broker is the embedded one,
// PostgreSQL is real and durable, the consumers are processes of their own, on the
// same client, with the same batches and the same effect; a kill is SIGKILL to such a
// process, which was told at which step of its loop to stand still for it. Without
// kills and without repeats all three are exact.
package demo
