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
	var purged time.Time
	for {
		for _, r := range routes {
			rows, _ := d.parts.memory.Watermarks(ctx, r.Consumer)
			for _, w := range rows {
				d.metrics.known(r.Name, w.Partition)
			}
			c, ok, err := d.parts.consumer(ctx, r.Consumer)
			if err != nil || !ok {
				continue
			}
			d.metrics.dead.WithLabelValues(r.Name).Set(float64(c.Dead))
			d.metrics.ids.WithLabelValues(r.Name).Set(float64(max(0, c.Inbox)))
			if !c.Since.IsZero() {
				d.metrics.since.WithLabelValues(r.Name).Set(float64(c.Since.Unix()))
				d.metrics.room.WithLabelValues(r.Name).Set(float64(c.Room))
			}
			d.metrics.window.WithLabelValues(r.Name).Set(c.Window.Seconds())
		}
		d.metrics.filters.WithLabelValues().Set(float64(d.parts.rings.Bytes()))
		if time.Since(purged) >= purgeEvery {
			d.purge(ctx, routes)
			purged = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// purgeEvery is how often dead letters are looked for that have been kept long
// enough.
const purgeEvery = time.Hour

// purge removes what dead_letters.keep no longer covers.
func (d *daemon) purge(ctx context.Context, routes []config.Route) {
	for _, r := range routes {
		if r.DeadLetters.Keep == 0 {
			continue
		}
		var all int64
		for {
			n, err := d.parts.memory.PurgeDead(ctx, r.Consumer, time.Now().Add(-r.DeadLetters.Keep))
			if all += n; err != nil || n == 0 {
				break
			}
		}
		if all > 0 {
			d.log.Info("dead letters are no longer kept", "route", r.Name, "letters", all, "keep", r.DeadLetters.Keep)
		}
	}
}
