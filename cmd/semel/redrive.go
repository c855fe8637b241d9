package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/postgres"
	"github.com/spf13/cobra"
)

func (a *app) deadRedrive() *cobra.Command {
	d := &dead{app: a, redrives: true}
	cmd := &cobra.Command{
		Use:   "redrive [NUMBER…]",
		Short: "have dead letters handled again",
		Long: `Marks dead letters. Whoever runs their route handles them between two batches,
through the same mapping and the same memory: a message that was applied
meanwhile is closed without effect, one that fails again is buried again with
its new reason, and so is a collision: its ID is another message's. Twice is once.

Where nobody runs the route they wait until somebody does, unless --here handles
them. A route that overwrites rows and has no version could put an old value over
a newer one: that is refused without --out-of-order.`,
		Example: `  semel dead redrive 17 18 --wait
  semel dead redrive --all --class constraint --since 2h
  semel dead redrive --all --here      # nobody runs the routes`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.redrive(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	d.choose(f)
	f.BoolVar(&d.all, "all", false, "all that the other flags leave")
	f.BoolVar(&d.wait, "wait", false, "until they are handled; 1 if one is buried again")
	f.BoolVar(&d.here, "here", false, "in this process, for routes that nobody runs")
	f.BoolVar(&d.outOfOrder, "out-of-order", false, "also where an old value may be put over a newer one")
	d.file.addConfig(f)
	return cmd
}

func (d *dead) redrive(ctx context.Context, numbers []string) error {
	v, file, q, err := d.some(ctx, numbers)
	if err != nil {
		return err
	}
	defer v.Close()
	letters, err := v.Memory().DeadLetters(ctx, q)
	if err != nil {
		return stuck(err, "")
	}
	routes, err := d.routesOf(file, letters)
	if err != nil {
		return err
	}
	q.Numbers = []int64{} // what was looked at, not what came since
	for _, l := range letters {
		q.Numbers = append(q.Numbers, l.Number)
	}
	marked, err := v.Memory().Redrive(ctx, q)
	if err != nil {
		return stuck(err, "")
	}
	missed := d.missed(numbers, int64(len(marked)))
	if len(marked) == 0 {
		if d.all {
			d.talk("no dead letter is open there")
		}
		return missed
	}
	if d.here {
		log, err := d.logger()
		if err != nil {
			return err
		}
		if err := daemon.Redrive(ctx, daemon.Config{File: file, Routes: names(routes), Logger: log}); err != nil {
			return failed(err)
		}
		return cmp.Or(d.watch(ctx, v.Memory(), marked), missed)
	}
	if err := d.sayWhoRuns(ctx, v, routes); err != nil {
		return err
	}
	if !d.wait {
		fmt.Fprintln(d.out, "marked "+plural(int64(len(marked)), "dead letter"))
		return missed
	}
	d.talk("waiting for who runs %s", strings.Join(names(routes), ", "))
	return cmp.Or(d.watch(ctx, v.Memory(), marked), missed)
}

// sayWhoRuns names the routes that nobody runs: what is marked there waits.
func (d *dead) sayWhoRuns(ctx context.Context, v *daemon.Viewer, routes []config.Route) error {
	for _, r := range routes {
		if err := d.sayIfNobodyRuns(ctx, v, r, "what is marked there is handled when somebody does; --here handles it now"); err != nil {
			return err
		}
	}
	return nil
}

func names(routes []config.Route) (names []string) {
	for _, r := range routes {
		names = append(names, r.Name)
	}
	return names
}

// routesOf are the letters' routes. Each must be in the file, and take messages late.
func (d *dead) routesOf(file *config.File, letters []postgres.DeadRow) (routes []config.Route, err error) {
	for _, l := range letters {
		i := slices.IndexFunc(file.Routes, func(r config.Route) bool { return r.Consumer == l.Consumer })
		if i < 0 {
			return nil, d.foreign(l)
		}
		r := file.Routes[i]
		if !daemon.InOrder(r) && !d.outOfOrder {
			return nil, no(fmt.Errorf("route %s overwrites rows and has no version: dead letter %d could put an old value over a newer one", r.Name, l.Number),
				"--out-of-order does it all the same")
		}
		if !slices.ContainsFunc(routes, func(o config.Route) bool { return o.Name == r.Name }) {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// watch waits until no letter is marked any more, and says what they came to. A
// redrive in this process leaves those that somebody else holds.
func (d *dead) watch(ctx context.Context, m *postgres.Status, marked []int64) error {
	for {
		rows, err := m.DeadLetters(ctx, postgres.DeadFilter{Numbers: marked, Closed: true})
		if err != nil {
			return stuck(err, "")
		}
		counts := map[string]int64{}
		for _, r := range rows {
			counts[stateOf(r)]++
		}
		if waiting := counts["redrive"]; waiting == 0 || d.here {
			var parts []string
			for _, state := range []string{"redriven: applied", "redriven: duplicate", "redriven: stale", "redriven: skipped", "discarded", "redrive", "buried"} {
				if n := counts[state]; n > 0 {
					name := strings.TrimPrefix(state, "redriven: ")
					name = map[string]string{"buried": "buried again", "redrive": "still marked"}[name] + strings.TrimPrefix(name, state)
					parts = append(parts, fmt.Sprintf("%s %s", thousands(n), name))
				}
			}
			fmt.Fprintf(d.out, "%s: %s\n", plural(int64(len(marked)), "dead letter"), strings.Join(parts, ", "))
			if n := counts["buried"] + waiting; n > 0 {
				return no(fmt.Errorf("%s not redriven", plural(n, "dead letter")), "semel dead list shows why")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
