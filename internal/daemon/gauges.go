package daemon

import (
	"context"
	"time"

	"github.com/semelhq/semel/internal/config"
)

// gaugesEvery is how often the database is asked for what no event tells.
const gaugesEvery = 15 * time.Second

// gauges keeps the metrics that only the database knows. While it can't be asked
// they stand still; that it can't is another metric's matter.
func (d *daemon) gauges(ctx context.Context, routes []config.Route) {
	tick := time.NewTicker(gaugesEvery)
	defer tick.Stop()
	for {
		for _, r := range routes {
			c, ok, err := d.parts.consumer(ctx, r.Consumer)
			if err != nil || !ok {
				continue
			}
			d.metrics.dead.WithLabelValues(r.Name).Set(float64(c.Dead))
			d.metrics.ids.WithLabelValues(r.Name).Set(float64(max(0, c.Inbox)))
			d.metrics.window.WithLabelValues(r.Name).Set(c.Window.Seconds())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
