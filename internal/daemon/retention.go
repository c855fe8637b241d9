package daemon

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
)

// retentionOf is how long a topic keeps a message; negative: without end.
func retentionOf(topic map[string]string) (time.Duration, error) {
	if policy, ok := topic["cleanup.policy"]; ok && !strings.Contains(policy, "delete") {
		return -1, nil
	}
	ms, err := strconv.ParseInt(topic["retention.ms"], 10, 64)
	if err != nil {
		return 0, err
	}
	if ms < 0 || ms > int64(1<<63-1)/int64(time.Millisecond) {
		return -1, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// shortWindow says in a sentence that a route's window is below what the topic
// keeps; "" if it isn't. Equal is within.
func shortWindow(r config.Route, t kafka.Topic) string {
	if r.Inbox.Window == 0 || t.Configs == nil {
		return ""
	}
	retention, err := retentionOf(t.Configs)
	if err != nil || retention >= 0 && retention <= r.Inbox.Window {
		return ""
	}
	keeps := "without end"
	if retention > 0 {
		keeps = days(retention)
	}
	return fmt.Sprintf("%s is below what topic %s keeps (%s): a consumer that reads it all again would apply old repeats again", days(r.Inbox.Window), t.Name, keeps)
}

// warnOfWindow says it in the log of a run.
func (d *daemon) warnOfWindow(ctx context.Context, r config.Route) {
	names, err := d.parts.topics(ctx, r)
	if err != nil || len(names) == 0 {
		return
	}
	ts, err := d.parts.admin.Topics(ctx, names...)
	if err != nil {
		return // whoever needs the topics will say so
	}
	for _, t := range ts {
		if short := shortWindow(r, t); short != "" {
			d.log.Warn("the window is short: "+short, "route", r.Name)
		}
	}
}
