package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// later lists what the contract of names holds and this version doesn't do. It
// is refused by name, so that nobody takes silence for success.
var later = []string{"outbox", "lab", "verify", "schema"}

func laterCommands() []*cobra.Command {
	var cs []*cobra.Command
	for _, name := range later {
		cs = append(cs, notYet(name))
	}
	return cs
}

// notYet is a command that refuses, whatever its arguments.
func notYet(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return usage(errNotYet, "") },
	}
}

// errNotYet is said after the name of what isn't there.
var errNotYet = errors.New("not in this version")
