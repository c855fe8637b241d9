package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// status shows where routes are, from database and broker; no daemon is asked.
type status struct {
	*app
	file  fileFlags
	json  bool
	watch time.Duration
}

func (a *app) statusCommand() *cobra.Command {
	s := &status{app: a}
	cmd := &cobra.Command{
		Use:     "status [FILE]",
		GroupID: groupLook,
		Short:   "where each route and partition is",
		Long: `Shows a row for each route and partition: owner, watermark, lag, and what
became of the messages. It reads the database and asks the broker; it works
with the daemon down, and without the broker shows what the database knows.`,
		Args: upTo(1),
		RunE: run(s),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&s.json, "json", false, "as JSON; with --watch an object a line")
	f.DurationVar(&s.watch, "watch", 0, "again every so often, with rates, until interrupted")
	f.Lookup("watch").NoOptDefVal = "2s"
	s.file.add(f)
	return cmd
}

// Run prints once, or again and again.
func (s *status) Run(ctx context.Context, args []string) error {
	v, file, err := s.look(ctx, &s.file, args)
	if err != nil {
		return err
	}
	defer v.Close()
	var before *snapshot
	for {
		routes, broker, err := v.Status(ctx, file.Routes)
		if err != nil {
			return stuck(err, "")
		}
		now := &snapshot{Routes: routes, At: time.Now()}
		if broker != nil {
			now.Broker = broker.Error()
		}
		if s.watch > 0 && isTerminal(s.out) && !s.json {
			fmt.Fprint(s.out, "\x1b[H\x1b[2J")
		}
		if err := s.print(now, before); err != nil {
			return err
		}
		before = now
		if s.watch == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.watch):
		}
	}
}

// snapshot is what one look saw.
type snapshot struct {
	Routes []daemon.RouteStatus `json:"routes"`
	Broker string               `json:"broker_error,omitempty"`
	At     time.Time            `json:"at"`
}

func (s *status) print(now, before *snapshot) error {
	if s.json {
		return json.NewEncoder(s.out).Encode(now)
	}
	if now.Broker != "" {
		s.talk("%s; ends and lag are unknown", now.Broker)
	}
	for i, r := range now.Routes {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		s.printRoute(r, now.rates(before, r.Route))
	}
	return nil
}

// rates are messages a second since the last look, by partition.
func (n *snapshot) rates(before *snapshot, route string) map[string]float64 {
	if before == nil {
		return nil
	}
	settled := func(s *snapshot, each func(at string, n int64)) {
		for _, r := range s.Routes {
			if r.Route == route {
				for _, p := range r.Partitions {
					each(p.Topic+"/"+strconv.Itoa(int(p.Partition)), p.Settled)
				}
			}
		}
	}
	was, rates := map[string]int64{}, map[string]float64{}
	settled(before, func(at string, n int64) { was[at] = n })
	settled(n, func(at string, now int64) {
		rates[at] = max(0, float64(now-was[at])/n.At.Sub(before.At).Seconds())
	})
	return rates
}

func (s *status) printRoute(r daemon.RouteStatus, rates map[string]float64) {
	head := "route " + r.Route + ": " + s.colour(r.State)
	if r.Reason != "" {
		head += " (" + r.Reason + ")"
	}
	if r.Consumer != r.Route {
		head += ", consumer " + r.Consumer
	}
	if r.Buried > 0 {
		head += ", " + plural(r.Buried, "dead letter")
	}
	fmt.Fprintln(s.out, head)
	if len(r.Partitions) == 0 {
		fmt.Fprintln(s.out, "  nothing was ever claimed")
		return
	}
	columns := []string{"partition", "owner", "watermark", "lag", "waits", "settled"}
	if rates != nil {
		columns = append(columns, "a second")
	}
	shown := shownOutcomes(r)
	for _, o := range shown {
		columns = append(columns, o.String())
	}
	lost := slices.ContainsFunc(r.Partitions, func(p daemon.PartitionStatus) bool { return p.Lost > 0 })
	if lost {
		columns = append(columns, "lost")
	}
	t := table{columns}
	for _, p := range r.Partitions {
		at := p.Topic + "/" + strconv.Itoa(int(p.Partition))
		row := []string{at, orDash(p.Owner), thousands(p.Watermark), known(p.Lag), waits(p.LagSeconds), thousands(p.Settled)}
		if rates != nil {
			row = append(row, thousands(int64(rates[at])))
		}
		for _, o := range shown {
			row = append(row, thousands(p.Outcomes[o.String()]))
		}
		if lost {
			row = append(row, thousands(p.Lost))
		}
		t = append(t, row)
	}
	t.print(s.out, "  ", 2)
	for _, w := range r.LockWaits {
		fmt.Fprintf(s.out, "  a session %s\n", w)
	}
}

// shownOutcomes are those that happened, and the three that everybody asks for.
func shownOutcomes(r daemon.RouteStatus) []inbox.Outcome {
	var shown []inbox.Outcome
	for _, o := range inbox.Outcomes {
		n := int64(0)
		for _, p := range r.Partitions {
			n += p.Outcomes[o.String()]
		}
		if n > 0 || o == inbox.Applied || o == inbox.DuplicateID || o == inbox.Dead {
			shown = append(shown, o)
		}
	}
	return shown
}

func (s *status) colour(state string) string {
	code := map[string]string{"running": "32", "paused": "33", "stopped": "33", "halted": "31"}[state]
	if code == "" || !colour(s.out) {
		return state
	}
	return "\x1b[" + code + "m" + state + "\x1b[0m"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func known(n *int64) string {
	if n == nil {
		return "?"
	}
	return thousands(*n)
}

func waits(seconds *float64) string {
	switch {
	case seconds == nil:
		return "?"
	case *seconds == 0:
		return "-"
	}
	return time.Duration(*seconds * float64(time.Second)).Round(time.Second).String()
}

// table is rows of cells; the first row is the heading. The first columns stand
// left, the numbers after them right.
type table [][]string

func (t table) print(w io.Writer, indent string, left int) {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, c := range row {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	for _, row := range t {
		var b strings.Builder
		b.WriteString(indent)
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(c)))
			if i >= left {
				b.WriteString(pad + c)
			} else {
				b.WriteString(c + pad)
			}
			b.WriteString("  ")
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}
