package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build says what this binary is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// thisBuild reads what the go command recorded in the binary.
func thisBuild() build {
	b := build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) String() string {
	s := "semel " + b.Version
	if b.Commit != "" {
		s += " (" + b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return fmt.Sprintf("%s %s %s/%s", s, b.Go, b.OS, b.Arch)
}

type version struct {
	*app
	json bool
}

func (a *app) versionCommand() *cobra.Command {
	v := &version{app: a}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "what this binary is",
		Args:  noArgs,
		RunE:  run(v),
	}
	cmd.Flags().BoolVar(&v.json, "json", false, "as a JSON object")
	return cmd
}

func (v *version) Run(context.Context, []string) error {
	if v.json {
		return json.NewEncoder(v.out).Encode(thisBuild())
	}
	fmt.Fprintln(v.out, thisBuild())
	return nil
}
