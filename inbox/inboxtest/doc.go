// Package inboxtest runs handlers through repeats and crashes, and holds what
// every implementation of the seams of package inbox must do: [TestStore] and
// [TestSource] are the suites, [DB] and [Broker] are implementations in memory
// that pass them.
//
// The memory database models READ COMMITTED: a statement sees what was committed
// when it began, rows are locked until their transaction ends, and whoever meets
// a locked row waits. A serial model would hide the very faults that matter.
package inboxtest
