package main

import (
	"context"
	"errors"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/postgres"
	"github.com/spf13/cobra"
)

// pause records what a route is meant to do, for all processes.
type pause struct {
	*app
	file   fileFlags
	paused bool
	reason string
}

func (a *app) pauseCommand() *cobra.Command {
	p := &pause{app: a, paused: true}
	cmd := &cobra.Command{
		Use:     "pause ROUTE",
		GroupID: groupAct,
		Short:   "let a route stand still, in all processes",
		Long: `Records in the database that the route is to stand still. Every process that
runs it finishes its batch and sees it within seconds; it stays so over
restarts, until semel resume.`,
		Args: exactly(1, "ROUTE"),
		RunE: run(p),
	}
	cmd.Flags().StringVar(&p.reason, "reason", "", "`WHY`, for those who look at status and health")
	p.file.addConfig(cmd.Flags())
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	p := &pause{app: a}
	cmd := &cobra.Command{
		Use:     "resume ROUTE",
		GroupID: groupAct,
		Short:   "let a route go on, in all processes",
		Long: `Takes a pause back. A route that has halted tries again, if its process still
runs. One that has halted because its source's log began anew takes the new log
for its source.`,
		Args: exactly(1, "ROUTE"),
		RunE: run(p),
	}
	p.file.addConfig(cmd.Flags())
	return cmd
}

// sayIfNobodyRuns says so, and what becomes of the order then.
func (a *app) sayIfNobodyRuns(ctx context.Context, v *daemon.Viewer, r config.Route, then string) error {
	runs, err := v.Runs(ctx, r)
	if err != nil {
		return stuck(err, "")
	}
	if !runs {
		a.talk("nobody runs %s: %s", r.Name, then)
	}
	return nil
}

// Run writes the desired state.
func (p *pause) Run(ctx context.Context, args []string) error {
	v, file, err := p.look(ctx, &p.file, nil)
	if err != nil {
		return err
	}
	defer v.Close()
	r, err := route(file, args[0])
	if err != nil {
		return err
	}
	why, err := v.Halted(ctx, r)
	if err != nil {
		return stuck(err, "")
	}
	err = v.Memory().SetDesired(ctx, r.Consumer, p.paused, p.reason)
	var unknown *postgres.UnknownConsumerError
	switch {
	case errors.As(err, &unknown):
		return no(unknown, "it has never run here; restart its process, or register it with semel migrate")
	case err != nil:
		return stuck(err, "")
	}
	if p.paused {
		p.talk("route %s is to stand still", r.Name)
		return nil
	}
	p.talk("route %s is to go on", r.Name)
	if why != "" { // whoever runs it has given its claims back
		p.talk("it stands halted: who still runs it tries again within seconds, and if nobody does it goes on when somebody does")
		return nil
	}
	return p.sayIfNobodyRuns(ctx, v, r, "it goes on when somebody does")
}
