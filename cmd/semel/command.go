package main

import (
	"context"

	"github.com/spf13/cobra"
)

// command is what each file of this package holds: its flags, and what it does.
type command interface {
	Run(ctx context.Context, args []string) error
}

func run(c command) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return c.Run(cmd.Context(), args) }
}
