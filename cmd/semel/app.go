package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/semelhq/semel/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// app is what all commands share: the streams and the global flags.
type app struct {
	in       io.Reader
	out, err io.Writer
	stop     *stop

	logFormat string
	logLevel  string
	quiet     bool
}

// execute runs one command line and answers its exit code.
func execute(args []string, in io.Reader, out, errs io.Writer) int {
	stop, release := catchSignals()
	defer release()
	a := &app{in: in, out: out, err: errs, stop: stop}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(stop.soft)
	return a.report(cmd, err)
}

// report prints the error and answers the exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{code: exitStuck, err: err}
	}
	if sig := a.stop.second(); sig != 0 {
		f.code = 128 + sig
	} else if sig := a.stop.first(); sig != 0 && errors.Is(err, context.Canceled) {
		f.code, f.err = 128+sig, errors.New("interrupted")
	}
	if f.err == nil {
		return f.code
	}
	var file *config.Errors
	if errors.As(f.err, &file) {
		for _, e := range file.List {
			a.say(cmd, e.Error(), e.Hint)
		}
		return f.code
	}
	// An error of several lines holds its own hint.
	what, more, _ := strings.Cut(strings.TrimSpace(f.err.Error()), "\n")
	hint := cmp.Or(f.hint, more)
	var pg *pgconn.PgError
	if hint == "" && errors.As(f.err, &pg) && pg.Code == "42501" {
		hint = "semel migrate --grant ROLE, by the owner, gives a role what Semel's own tables need"
	}
	a.say(cmd, what, hint)
	return f.code
}

// say is how every error looks: what and where, then what may help.
func (a *app) say(cmd *cobra.Command, what, hint string) {
	fmt.Fprintf(a.err, "%s: %s\n", cmd.CommandPath(), what)
	if hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", hint)
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "semel COMMAND",
		Short: "each message takes effect once",
		Long: `semel takes messages from Kafka and makes each take effect in PostgreSQL once:
through crashes, retries, rebalances, and repeats by the broker or the producer.

Routes are described in a file, semel.yaml by default. A first try:

  semel dev                 an embedded broker and PostgreSQL
  semel send TOPIC FILE     lines of a file as messages
  semel check, semel run    look at the file; run it
  semel status, semel audit what became of every message`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(unknownFlag)
	root.SetUsageTemplate(usageTemplate)
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.logFormat, "log-format", "text", "text or json")
	flags.StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "errors alone")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		_, err := a.logger()
		return err
	}

	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupAct, Title: "Act:"},
		&cobra.Group{ID: groupTry, Title: "Try:"},
	)
	for _, c := range a.commands() {
		root.AddCommand(c)
	}
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short = "what a command does, and its flags"
		}
	}
	return root
}

const (
	groupRun  = "run"
	groupLook = "look"
	groupAct  = "act"
	groupTry  = "try"
)

// commands lists them in the order of the help text.
func (a *app) commands() []*cobra.Command {
	return append([]*cobra.Command{
		a.runCommand(), a.checkCommand(), a.testCommand(),
		a.statusCommand(), a.auditCommand(), a.explainCommand(),
		a.pauseCommand(), a.resumeCommand(), a.resetCommand(), a.deadCommand(), a.migrateCommand(),
		a.demoCommand(), a.demoWorkerCommand(), a.devCommand(), a.sendCommand(),
		a.versionCommand(), a.completionCommand(),
	}, laterCommands()...)
}

// logger writes to standard error, so that standard output stays data.
func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return nil, usage(fmt.Errorf("--log-level: no level is called %q", a.logLevel), "debug, info, warn or error")
	}
	if a.quiet {
		level = max(level, slog.LevelError)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(a.err, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.err, opts)), nil
	}
	return nil, usage(fmt.Errorf("--log-format: no format is called %q", a.logFormat), "text or json")
}

// talk is for what a person wants to hear, and -q silences.
func (a *app) talk(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// progress says whether a line that is written over again is welcome.
func (a *app) progress() bool { return !a.quiet && isTerminal(a.err) }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour says whether w may be coloured.
func colour(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && isTerminal(w) }

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return usage(fmt.Errorf("unknown command %q", name), didYouMean("", name, names, cmd.CommandPath()+" --help lists them"))
}

// unknownFlag turns a flag error into one of ours.
func unknownFlag(cmd *cobra.Command, err error) error {
	var none *pflag.NotExistError
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		f := bad.GetFlag()
		needs, like := f.Value.Type(), cmd.CommandPath()+" --help lists the flags"
		switch {
		case strings.Contains(needs, "int"):
			needs = "whole number"
		case needs == "float64":
			needs = "number"
		case needs == "duration":
			like = "like 10s, 2m, 1h30m"
		case needs == "bool":
			needs = "true or false"
		}
		return usage(fmt.Errorf("--%s: %q is no %s", f.Name, bad.GetValue(), needs), like)
	}
	if !errors.As(err, &none) {
		return usage(err, cmd.CommandPath()+" --help lists the flags")
	}
	if cmd.HasSubCommands() {
		if arg := cmd.Flags().Arg(0); arg != "" { // semel statsu --json: the command is what is wrong
			return unknownCommand(cmd, arg)
		}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name := none.GetSpecifiedName()
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	return usage(fmt.Errorf("unknown flag %s%s", dashes, name), didYouMean("--", name, names, cmd.CommandPath()+" --help lists them"))
}

// noArgs, upTo and exactly refuse arguments that a command has no use for.
func noArgs(cmd *cobra.Command, args []string) error { return upTo(0)(cmd, args) }

func upTo(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usage(fmt.Errorf("%q is one argument too many", args[n]), cmd.UseLine())
		}
		return nil
	}
}

func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := atLeast(n, what)(cmd, args); err != nil {
			return err
		}
		return upTo(n)(cmd, args)
	}
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usage(fmt.Errorf("%s is missing", what), cmd.UseLine())
		}
		return nil
	}
}

const usageTemplate = `Usage:
  {{if and .HasAvailableSubCommands .HasParent}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}{{if .Aliases}}

Also called: {{range $i, $a := .Aliases}}{{if $i}}, {{end}}{{$a}}{{end}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if not .AllChildCommandsHaveGroup}}

{{if .Groups}}Besides:{{else}}Commands:{{end}}{{range $cmds}}{{if and (eq .GroupID "") (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Everywhere:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

Exit codes: 0 done; 1 it ran and the answer is no; 2 usage or file error;
3 could not go on (unreachable, halted); 130 or 143 after a second signal.
`
