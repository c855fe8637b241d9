// Package lab makes faults and finds out what they did.
//
// A [PostgresProxy] stands in front of PostgreSQL and knows its messages, a [KafkaProxy] in front of a broker and knows
// its requests. A [Fault] names the message at which something happens, and what: the connection is cut before it, after
// it, or when it was answered; or it is held. Each counts how often it fired, so that a test can insist that it did.
//
// A [History] is what senders announced; it compares that with the effects that a consumer left, and says what was lost
// and what happened twice. It knows nothing of how consumers work, so it can judge anybody's.
package lab
