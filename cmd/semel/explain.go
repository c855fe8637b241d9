package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// explain says in plain words what the routes promise.
type explain struct {
	*app
	file    fileFlags
	offline bool
}

func (a *app) explainCommand() *cobra.Command {
	e := &explain{app: a}
	cmd := &cobra.Command{
		Use:     "explain [FILE]",
		GroupID: groupLook,
		Short:   "the guarantee of each route, in plain words",
		Long: `Says what each route promises: which memory recognises a repeat and for how
long, what a crash at each step does, and where the promise ends. The table
decides a part of it and is asked; if the database is out of reach, or with
--offline, the file alone speaks.`,
		Args: upTo(1),
		RunE: run(e),
	}
	cmd.Flags().BoolVar(&e.offline, "offline", false, "from the file alone")
	e.file.add(cmd.Flags())
	return cmd
}

// Run prints a paragraph for each route.
func (e *explain) Run(ctx context.Context, args []string) error {
	file, err := e.file.load(args)
	if err != nil {
		return err
	}
	routes, unasked := daemon.Explain(ctx, file, e.offline)
	for i, r := range routes {
		if i > 0 {
			fmt.Fprintln(e.out)
		}
		fmt.Fprintln(e.out, r.Title)
		for _, p := range r.Parts {
			for j, line := range wrap(p.Text, 66) {
				name := ""
				if j == 0 {
					name = p.Name
				}
				fmt.Fprintln(e.out, strings.TrimRight(fmt.Sprintf("  %-10s %s", name, line), " "))
			}
		}
	}
	if unasked != nil {
		e.talk("the database was not asked: %s", unasked)
	}
	return nil
}

// wrap breaks a text into lines of at most so many letters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
