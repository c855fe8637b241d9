package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// reset moves a route to another place in its topics.
type reset struct {
	*app
	file     fileFlags
	to       daemon.ResetTo
	datetime string
	offsets  []string
	execute  bool
	json     bool
}

func (a *app) resetCommand() *cobra.Command {
	r := &reset{app: a}
	cmd := &cobra.Command{
		Use:     "reset ROUTE",
		GroupID: groupAct,
		Short:   "let a route read on from another place",
		Long: `Moves a stopped or paused route to another place in its topics, or lets it
forget message IDs, and shows what comes of it: which messages are read again or
skipped, and what the memory does with those that it knows. Nothing changes
without --execute.

The place is kept in the database; moving the group's offset with the broker's
tools does nothing. Whoever still works under an older claim is fenced.`,
		Example: `  semel pause orders
  semel reset orders --to-datetime 2026-01-02T03:04:05Z
  semel reset orders --to-datetime 2026-01-02T03:04:05Z --execute
  semel resume orders`,
		Args: exactly(1, "ROUTE"),
		RunE: run(r),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&r.to.Earliest, "to-earliest", false, "the first messages that the broker has")
	f.BoolVar(&r.to.Latest, "to-latest", false, "behind the last ones")
	f.StringVar(&r.datetime, "to-datetime", "", "the first messages of a `TIME` or later, or of so long ago (2h)")
	f.Int64Var(&r.to.Shift, "shift-by", 0, "`N` offsets further in each partition; back with a minus")
	f.StringArrayVar(&r.offsets, "to-offset", nil, "`P:N`: offset N in partition P, or TOPIC/P:N; again for further partitions, others stay")
	f.BoolVar(&r.to.Forget, "forget-ids", false, "the inbox knows no old message ID any more")
	f.BoolVar(&r.execute, "execute", false, "do it")
	f.BoolVar(&r.json, "json", false, "as JSON")
	r.file.addConfig(f)
	return cmd
}

// Run shows what would come of it, or does it.
func (r *reset) Run(ctx context.Context, args []string) error {
	if err := r.place(); err != nil {
		return err
	}
	v, file, err := r.look(ctx, &r.file, nil)
	if err != nil {
		return err
	}
	defer v.Close()
	route, err := route(file, args[0])
	if err != nil {
		return err
	}
	for p := range r.to.Offsets {
		if p.Topic == "" && route.From.Several() {
			return usage(fmt.Errorf("--to-offset: route %s has several topics", route.Name), "like TOPIC/0:100")
		}
	}
	plan, err := v.Reset(ctx, route, r.to, r.execute)
	var refused *daemon.ResetError
	var halt *inbox.HaltError
	switch {
	case errors.As(err, &refused) && refused.Usage:
		return usage(refused, refused.Hint)
	case errors.As(err, &refused):
		return no(refused, refused.Hint)
	case errors.As(err, &halt):
		return no(fmt.Errorf("%s: %s", halt.Partition, halt.Why), halt.Hint)
	case err != nil && plan.Done:
		return stuck(fmt.Errorf("the route was moved, and its offsets could not be signed at the broker: %w", err), "its next claim does so")
	case err != nil:
		return failed(err)
	}
	return r.print(plan)
}

// place reads the flags.
func (r *reset) place() error {
	places := 0
	for _, said := range []bool{r.to.Earliest, r.to.Latest, r.datetime != "", r.to.Shift != 0, len(r.offsets) > 0} {
		if said {
			places++
		}
	}
	const ways = "one of --to-earliest, --to-latest, --to-datetime, --shift-by, --to-offset; or --forget-ids"
	switch {
	case places > 1:
		return usage(errors.New("several places at once"), ways)
	case places == 0 && !r.to.Forget:
		return usage(errors.New("where to?"), ways)
	}
	var err error
	if r.to.Time, err = moment("--to-datetime", r.datetime); err != nil {
		return err
	}
	r.to.Offsets = map[semel.Partition]int64{}
	for _, text := range r.offsets {
		p, at, err := placeOf(text)
		if err != nil {
			return usage(fmt.Errorf("--to-offset: %q is no PARTITION:OFFSET", text), "like 0:1200, or orders/0:1200")
		}
		r.to.Offsets[p] = at
	}
	return nil
}

// placeOf reads P:N and TOPIC/P:N.
func placeOf(text string) (p semel.Partition, at int64, err error) {
	where, offset, ok := strings.Cut(text, ":")
	if i := strings.LastIndexByte(where, '/'); i >= 0 {
		p.Topic, where = where[:i], where[i+1:]
	}
	n, err := strconv.ParseInt(where, 10, 32)
	p.Number = int32(n)
	if err == nil {
		at, err = strconv.ParseInt(offset, 10, 64)
	}
	if !ok || n < 0 || at < 0 {
		err = errors.New("no place")
	}
	return p, at, err
}

func (r *reset) print(plan daemon.ResetPlan) error {
	if r.json {
		return json.NewEncoder(r.out).Encode(plan)
	}
	fmt.Fprintf(r.out, "route %s: %s\n", plan.Route, plan.State)
	t := table{{"partition", "from", "to", "again", "skipped"}}
	for _, m := range plan.Moves {
		t = append(t, []string{
			m.Topic + "/" + strconv.Itoa(int(m.Partition)), thousands(m.From), thousands(m.To), thousands(m.Again), thousands(m.Skipped),
		})
	}
	t.print(r.out, "  ", 1)
	for _, s := range plan.Says {
		for _, line := range wrap(s, 76) {
			fmt.Fprintln(r.out, line)
		}
	}
	switch {
	case !plan.Done:
		r.talk("nothing was changed; --execute does it")
	case plan.Unsigned:
		r.talk("done; the group has members, and the broker's offsets follow when the route goes on: semel resume %s", plan.Route)
	case plan.State == "paused":
		r.talk("done; semel resume %s lets it go on", plan.Route)
	default:
		r.talk("done")
	}
	return nil
}
