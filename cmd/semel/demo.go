package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/semelhq/semel/internal/demo"
)

// demoCmd shows the promise beside two consumers that can't keep it.
type demoCmd struct {
	*app
	cfg demo.Config
}

// demoWorker is the command of a consumer's process.
const demoWorker = "demo-worker"

func (a *app) demoCommand() *cobra.Command {
	d := &demoCmd{app: a}
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: groupTry,
		Short:   "watch kills and repeats do no harm",
		Long: `Payments flow through an embedded Kafka broker into balances in a real
PostgreSQL. Some are sent twice by the producer, and the process that books them
is killed with SIGKILL every few seconds and started again. Beside semel two
rivals book the same stream and are killed as often: one acknowledges before it
works, one after. At the end every balance is held against what was sent.

Everything happens in a temporary folder and is gone afterwards. Exits with 0
only if every message took effect once in semel's table.`,
		Example: `  semel demo
  semel demo --for 2m --rate 5000
  semel demo --kills=false --repeats 0     all three are right then
  semel demo --json | tail -1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("messages") && !cmd.Flags().Changed("for") {
				d.cfg.For = 0
			}
			return d.Run(cmd.Context(), args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.DurationVar(&d.cfg.For, "for", 30*time.Second, "how long the stream flows")
	f.IntVar(&d.cfg.Messages, "messages", 0, "end after so many messages; alone, however long it takes")
	f.IntVar(&d.cfg.Rate, "rate", 1000, "messages a second")
	f.Float64Var(&d.cfg.Repeats, "repeats", 0.1, "share of messages that the producer sends twice")
	f.BoolVar(&d.cfg.Kills, "kills", true, "kill the consumers")
	f.Uint64Var(&d.cfg.Seed, "seed", 0, "of payments, repeats and kills; 0 takes one")
	f.BoolVar(&d.cfg.JSON, "json", false, "print a JSON object a line, the verdict last")
	return cmd
}

// Run shows it, on a terminal as a picture.
func (d *demoCmd) Run(ctx context.Context, _ []string) error {
	self, err := os.Executable()
	if err != nil {
		return stuck(fmt.Errorf("find this program, to start it again: %w", err), "")
	}
	d.cfg.Worker = []string{self, demoWorker}
	d.cfg.Out, d.cfg.Talk = d.out, d.err
	d.cfg.Terminal, d.cfg.Colour = isTerminal(d.out) && os.Getenv("TERM") != "dumb", colour(d.out)
	d.cfg.Size = func() (columns, rows int) {
		if f, ok := d.out.(*os.File); ok {
			if columns, rows, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
				return columns, rows
			}
		}
		return 80, 24
	}
	verdict, err := demo.Run(ctx, d.cfg)
	var wrong *demo.UsageError
	switch {
	case errors.As(err, &wrong):
		return usage(wrong, "semel demo --help lists the flags")
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return devFailure(err)
	case !verdict.Exact:
		return &failure{code: exitNo} // the verdict says it
	}
	return nil
}

// demoWorkerCommand is for the demo alone.
func (a *app) demoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoWorker,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return demo.Work(a.in, a.out) },
	}
}
