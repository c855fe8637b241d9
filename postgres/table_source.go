package postgres

import (
	"encoding/json"
	"fmt"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/sink"
)

// sourcePlace is the latest change that a partition has brought, where versions
// are places in the source's log: a log that begins anew (a fail-over, a restored
// source) makes every change look stale. It stands in the partition's row and is
// written with the watermark, so that neither a restart nor another owner hides
// that the log has changed.
type sourcePlace struct {
	Offset int64       `json:"offset"` // of the last message that was compared
	Latest sink.Change `json:"latest"` // zero: none yet
	Millis int64       `json:"millis"` // the highest that the source's clock has shown
}

// rises compares a message with those before it. A place that falls while the
// source's clock goes on is another log's. If the clock falls too, a connector
// that was killed sends again what it had sent.
func (t *inboxTx) rises(it *inbox.Item, c sink.Change) error {
	log := it.Position().Log
	row, ok := t.rows[log]
	if !ok || c.IsZero() || it.Offset < row.Next {
		return nil // a letter that is redriven is older than what came after it
	}
	was := row.source
	if was == nil {
		was = &sourcePlace{Offset: -1}
	}
	if it.Offset <= was.Offset {
		return nil
	}
	known := !was.Latest.IsZero()
	if known && was.Latest.After(c) && c.Millis > was.Millis {
		return &inbox.HaltError{
			Partition: log, Kind: haltSource,
			Why:  fmt.Sprintf("offset %d is of %s, after %s at or before offset %d: the source's log begins anew, and its changes would be taken for old ones", it.Offset, c, was.Latest, was.Offset),
			Hint: "set the stored versions to null, then semel resume",
		}
	}
	is := &sourcePlace{it.Offset, was.Latest, max(was.Millis, c.Millis)}
	if !c.Snapshot && (!known || c.After(was.Latest)) {
		is.Latest = c
	}
	row.source = is
	t.rows[log] = row
	return nil
}

// haltSource is the kind of a halt that [Status.SetDesired] takes back.
const haltSource = "source-restarted"

func (p *sourcePlace) json() any {
	if p == nil {
		return nil
	}
	return string(marshal(p))
}

// scanSource reads what came before next. Where the partition is read again from
// further back, or its topic was made anew, nothing did.
func scanSource(data []byte, next int64) (*sourcePlace, error) {
	if data == nil {
		return nil, nil
	}
	p := new(sourcePlace)
	if err := json.Unmarshal(data, p); err != nil || p.Offset >= next {
		return nil, err
	}
	return p, nil
}
