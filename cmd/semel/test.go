package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// test runs the tests of the file.
type test struct {
	*app
	file fileFlags
	json bool
}

func (a *app) testCommand() *cobra.Command {
	t := &test{app: a}
	cmd := &cobra.Command{
		Use:     "test [FILE]",
		GroupID: groupRun,
		Short:   "run the tests of the file: messages in, rows or outcomes out",
		Long: `Runs the tests of the file. Each gets empty copies of what its route touches: its
table or what its SQL uses, tables that these refer to, triggers and what they write
to. They live in a transaction that may write to nothing else and is rolled back:
everything in the database stays as it is, and no broker is asked. Triggers do run;
what they do outside of the database they do.

Exit code 1 if a test fails.`,
		Args: upTo(1),
		RunE: run(t),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&t.json, "json", false, "as JSON, an object a line")
	t.file.add(f)
	return cmd
}

// Run prints a line for each test, and what differs.
func (t *test) Run(ctx context.Context, args []string) error {
	log, err := t.logger()
	if err != nil {
		return err
	}
	file, err := t.file.load(args)
	if err != nil {
		return err
	}
	if len(file.Tests) == 0 {
		return no(fmt.Errorf("%s has no tests", file.Name), "tests: [{name: …, messages: [{value: {…}}], rows: [{…}]}]")
	}
	all, err := daemon.Test(ctx, file, log)
	if err != nil {
		return failed(err)
	}
	failures, lacks := 0, []string{}
	for _, got := range all {
		lacks = append(lacks, got.Lacks...)
		if !got.OK {
			failures++
		}
		if t.json {
			if err := json.NewEncoder(t.out).Encode(got); err != nil {
				return err
			}
			continue
		}
		t.print(got)
	}
	if slices.Sort(lacks); len(lacks) > 0 && !t.json {
		fmt.Fprintf(t.out, "note: copies have no %s\n", strings.Join(slices.Compact(lacks), ", "))
	}
	if failures > 0 {
		return no(errors.New(plural(int64(failures), "test")+" of "+thousands(int64(len(all)))+" failed"), "")
	}
	t.talk("%s passed", plural(int64(len(all)), "test"))
	return nil
}

func (t *test) print(got daemon.Tested) {
	if got.OK {
		fmt.Fprintf(t.out, "ok    %s\n", got.Test)
		return
	}
	fmt.Fprintf(t.out, "FAIL  %s (%s)\n", got.Test, got.At)
	for _, w := range got.Wrong {
		fmt.Fprintf(t.out, "      %s\n", w)
	}
	for _, row := range got.Missing {
		fmt.Fprintf(t.out, "    - %s\n", row)
	}
	for _, row := range got.Extra {
		fmt.Fprintf(t.out, "    + %s\n", row)
	}
}
