// Package ringmodel is a model of the ring of inbox tables, of which each state in small
// scope is looked at: the steps of postgres/schema/0008.sql, and of what in postgres works
// by its lists, in every order, with transactions lost at any step, a database that goes
// back to an earlier state, filters of any age, and callers under old snapshots.
//
// Whoever changes one of those steps changes it here first. A step is a statement, for each
// has a snapshot of its own; what a transaction writes is its own until it commits, and who
// needs what another holds waits. The rules of the ring stand in rule, each with a
// mutation: the model without it, which must be found to fail.
//
// It runs alone, so the race detector has nothing to find and takes its minutes: with that
// there are no tests here. Larger scopes are looked at if RINGMODEL is set.
//
// Not in it: the clocks and sizes that decide when a step is due (here it may be due at any
// time, which is more), COPY (its conflict is a transaction that is lost), digests, more
// than three tables, and the tables of one consumer beside those of another.
package ringmodel
