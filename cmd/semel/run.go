package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// runRoutes runs the routes of a file.
type runRoutes struct {
	*app
	file          fileFlags
	dev           bool
	devAt         devFlags
	routes        []string
	untilCaughtUp bool
	migrate       bool
	dryRun        bool
	n             int
	acceptChange  bool
}

func (a *app) runCommand() *cobra.Command {
	r := &runRoutes{app: a}
	cmd := &cobra.Command{
		Use:     "run [FILE]",
		GroupID: groupRun,
		Short:   "run the routes of a file",
		Long: `Runs the routes of the file until it is interrupted: then what is in flight is
finished, claims are released, and nothing is delivered again. A second signal
drops what is in flight. Outages are waited out; a route that halts stays red
in /health, and the process ends with 3 once every route has halted.

SIGHUP says what changed in the file since the start; secrets and certificates
are read anew for each connection without it.`,
		Example: `  semel run
  semel run orders.yaml --route orders
  semel run --until-caught-up       # settle what is there now, and say what became of it
  semel run --dev                   # with an embedded broker and PostgreSQL`,
		Args: upTo(1),
		RunE: run(r),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&r.untilCaughtUp, "until-caught-up", false, "end when all that was in the topics at the start is settled, and what was marked for redrive handled; 1 if something was buried, 3 if something halted")
	f.StringArrayVar(&r.routes, "route", nil, "run this route `NAME` alone (may be repeated)")
	f.BoolVar(&r.dev, "dev", false, "with the embedded broker and PostgreSQL of semel dev")
	f.StringVar(&r.devAt.dir, "dev-dir", ".semel", "their folder")
	f.BoolVar(&r.migrate, "migrate", false, "upgrade Semel's own tables if they are older")
	f.BoolVar(&r.dryRun, "dry-run", false, "take one batch, print rows and outcomes, roll back")
	f.IntVarP(&r.n, "messages", "n", 20, "at most so many messages in a dry run")
	f.BoolVar(&r.acceptChange, "accept-change", false, "go on though ID rule, target, cluster or topics are not what the consumer recorded")
	r.file.add(f)
	return cmd
}

// Run runs until it is told to stop, or has nothing more to do.
func (r *runRoutes) Run(ctx context.Context, args []string) error {
	log, err := r.logger()
	if err != nil {
		return err
	}
	if r.dev {
		if path := r.file.path(args); !exists(path) {
			return noFile(path) // before anything is started; the rest of it needs the addresses
		}
		env, err := r.devAt.start(ctx, r.app)
		if err != nil {
			return err
		}
		defer env.Close()
		os.Setenv("KAFKA_BROKERS", env.Brokers())
		os.Setenv("DATABASE_URL", env.DatabaseURL())
		r.talk("KAFKA_BROKERS=%s\nDATABASE_URL=%s", env.Brokers(), env.DatabaseURL())
	}
	file, err := r.file.load(args)
	if err != nil {
		return err
	}
	stopReload := r.onHangup(func() {
		now, err := r.file.load(args)
		switch {
		case err != nil:
			log.Error("the file was read again and is not right; nothing changes", "error", err)
		case daemon.Changed(file, now):
			log.Warn("the file has changed; routes and connections change at the next start")
		default:
			log.Info("the file was read again; secrets and certificates are read for each connection")
		}
	})
	defer stopReload()

	b := thisBuild()
	cfg := daemon.Config{
		File: file, Routes: r.routes, UntilCaughtUp: r.untilCaughtUp, AcceptChange: r.acceptChange,
		Migrate: r.migrate || r.dev, Logger: log,
		Build: daemon.Build{Version: b.Version, Commit: b.Commit, Go: b.Go},
	}
	if r.dryRun {
		return r.try(ctx, cfg)
	}
	daemon.CollectFor(cfg.File.Memory)
	result, err := daemon.Run(r.stop.hard, ctx, cfg)
	if err != nil {
		return failed(err)
	}
	return r.verdict(result)
}

// try prints what the next messages would do.
func (r *runRoutes) try(ctx context.Context, cfg daemon.Config) error {
	tried, err := daemon.DryRun(ctx, cfg, r.n)
	if err != nil {
		return failed(err)
	}
	for _, t := range tried {
		fmt.Fprintf(r.out, "route %s: %s\n", t.Route, plural(int64(len(t.Items)), "message"))
		for _, it := range t.Items {
			why := ""
			if it.Err != nil {
				why = fmt.Sprintf(", %s: %s", it.Class, it.Err)
			}
			fmt.Fprintf(r.out, "  %s  %s%s\n", it.Position(), it.Outcome, why)
		}
		for _, row := range t.Rows {
			fmt.Fprintf(r.out, "  row  %s\n", row)
		}
	}
	r.talk("rolled back: nothing was kept")
	return nil
}

// verdict prints what the run did, and chooses the exit code.
func (r *runRoutes) verdict(result daemon.Result) error {
	for _, t := range result.Tallies {
		switch {
		case r.untilCaughtUp:
			fmt.Fprintln(r.out, summary(t))
		case t.Accounts.Lost > 0:
			r.talk("%s: %s lost", t.Route, plural(t.Accounts.Lost, "message"))
		}
	}
	switch {
	case len(result.Halted) > 0:
		var each []string
		for _, h := range result.Halted {
			each = append(each, h.Route+": "+h.Reason)
		}
		return stuck(fmt.Errorf("halted: %s", strings.Join(each, "; ")),
			"semel status shows where, semel check what stands against it; a restart tries again")
	case len(result.Paused) > 0:
		return stuck(fmt.Errorf("paused, with messages left: %s", strings.Join(result.Paused, ", ")), "semel resume "+result.Paused[0])
	case result.Aborted:
		return stuck(errors.New("shutdown_grace was over: what was in flight was rolled back and will be delivered again"), "")
	case r.stop.second() != 0:
		return stuck(errors.New("aborted: what was in flight was rolled back and will be delivered again"), "")
	case r.untilCaughtUp && r.stop.first() != 0:
		return stuck(errors.New("interrupted before all was settled"), "")
	case r.untilCaughtUp && result.Buried()+result.Reburied > 0:
		return no(fmt.Errorf("%s buried", plural(result.Buried()+result.Reburied, "message")), "semel dead list shows them")
	}
	return nil
}

// summary is a route's accounts in one line.
func summary(t daemon.Tally) string {
	parts := []string{}
	for i, o := range inbox.Outcomes {
		if n := t.Accounts.Outcome[i].Count; n > 0 || o == inbox.Applied {
			parts = append(parts, thousands(n)+" "+o.String())
		}
	}
	s := fmt.Sprintf("%s: %s settled: %s", t.Route, thousands(t.Accounts.Settled.Count), strings.Join(parts, ", "))
	if t.Accounts.Lost > 0 {
		s += fmt.Sprintf("; %s lost", thousands(t.Accounts.Lost))
	}
	if t.UnknownFields > 0 {
		s += fmt.Sprintf("; %s without a column", plural(t.UnknownFields, "field"))
	}
	return s
}

// onHangup calls f for each SIGHUP until the answer is called.
func (a *app) onHangup(f func()) func() {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-hup:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(done)
		<-ended
	}
}
