package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// check finds out what can be known before a run.
type check struct {
	*app
	file    fileFlags
	offline bool
	plan    bool
	json    bool
}

func (a *app) checkCommand() *cobra.Command {
	c := &check{app: a}
	cmd := &cobra.Command{
		Use:     "check [FILE]",
		GroupID: groupRun,
		Short:   "look at the file, the table, the topics and the servers before a run",
		Long: `Looks at all that can be known before a run: the file, strictly; topics,
columns, types, constraints, keys; whether message IDs suit the target;
privileges, connections, clocks; whether the window covers the topic's
retention; and settings of broker and server that weaken the promise.

Exit code 1 if a route would halt or not do what it promises, 2 if the file
itself is wrong. What merely weakens the promise is said and changes nothing.`,
		Args: upTo(1),
		RunE: run(c),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&c.offline, "offline", false, "the file alone")
	f.BoolVar(&c.plan, "plan", false, "print the SQL that Semel's own tables need, and what routes' tables lack by their schemas")
	f.BoolVar(&c.json, "json", false, "as JSON, an object a line")
	c.file.add(f)
	return cmd
}

// Run prints what it finds.
func (c *check) Run(ctx context.Context, args []string) error {
	log, err := c.logger()
	if err != nil {
		return err
	}
	file, err := c.file.load(args)
	if err != nil {
		return err
	}
	switch {
	case c.plan:
		sql, err := daemon.Plan(ctx, file)
		if err != nil {
			return failed(err)
		}
		fmt.Fprint(c.out, sql)
		return nil
	case c.offline:
		c.talk("%s: the file is right; table, topics and servers were not looked at", file.Name)
		return nil
	}
	found, err := daemon.Check(ctx, file, log)
	if err != nil {
		return failed(err)
	}
	wrong := int64(0)
	for _, f := range found {
		if f.Wrong {
			wrong++
		}
		if c.json {
			if err := json.NewEncoder(c.out).Encode(f); err != nil {
				return err
			}
			continue
		}
		kind := "note"
		if f.Wrong {
			kind = "wrong"
		}
		fmt.Fprintf(c.out, "%s: %s\n", kind, f.What)
		if f.Hint != "" {
			fmt.Fprintf(c.out, "  hint: %s\n", f.Hint)
		}
	}
	if wrong > 0 {
		return no(errors.New(plural(wrong, "thing")+" to put right"), "")
	}
	c.talk("%s: nothing stands against a run", file.Name)
	return nil
}
