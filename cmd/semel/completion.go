package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "a script for bash, zsh, fish or powershell",
		Long: `Prints a script that completes commands and flags.

  source <(semel completion bash)
  semel completion zsh > "${fpath[1]}/_semel"
  semel completion fish > ~/.config/fish/completions/semel.fish`,
		Args:      exactly(1, "SHELL"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usage(fmt.Errorf("no completion for %q", args[0]), "bash, zsh, fish or powershell")
		},
	}
}
