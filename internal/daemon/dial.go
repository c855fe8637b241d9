package daemon

import (
	"context"
	"net"
	"time"
)

// unanswered is how long what was sent to the database may stay unacknowledged
// by its kernel. A host that is gone says nothing; without a bound a statement of
// a handler or a table waits for the retransmissions to end, a quarter of an hour.
const unanswered = 30 * time.Second

// dialDatabase notices a host that is gone, idle or not.
func dialDatabase(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: unanswered / 2, Interval: unanswered / 6, Count: 3},
		Control:         boundUnanswered,
	}
	return d.DialContext(ctx, network, address)
}
