package postgres

import (
	"fmt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// tableSources is, by partition, the latest change that a lane has seen. Where
// versions are places in the source's log, a log that begins anew (a fail-over, a
// restored source) makes every change look stale.
type tableSources map[semel.Partition]tableSource

type tableSource struct {
	offset int64
	latest sink.Change
	millis int64 // the highest that the source's clock has shown
}

// rises compares a message with those before it. A place that falls while the
// source's clock goes on is another log's. If the clock falls too, a connector
// that was killed sends again what it had sent.
func (s tableSources) rises(it *inbox.Item, c sink.Change) error {
	log := it.Position().Log
	was, known := s[log]
	if c.IsZero() || known && it.Offset <= was.offset {
		return nil
	}
	if known && was.latest.After(c) && c.Millis > was.millis {
		return &inbox.HaltError{
			Partition: log, Kind: "source-restarted",
			Why:  fmt.Sprintf("offset %d is of %s, after %s at or before offset %d: the source's log begins anew, and its changes would be taken for old ones", it.Offset, c, was.latest, was.offset),
			Hint: "set the stored versions to null, then resume",
		}
	}
	if !known || c.After(was.latest) {
		was.latest = c
	}
	s[log] = tableSource{it.Offset, was.latest, max(was.millis, c.Millis)}
	return nil
}
