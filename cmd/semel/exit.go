package main

import (
	"fmt"

	"github.com/semelhq/semel/internal/nearest"
)

// Exit codes are part of the contract with scripts.
const (
	exitDone  = 0
	exitNo    = 1 // it ran and the answer is no
	exitUsage = 2 // of the command line or the file
	exitStuck = 3 // it could not go on: unreachable, halted
)

// failure is an error with its exit code and what may help. A nil err with a
// code means that everything was said already.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit %d", f.code)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func usage(err error, hint string) error { return &failure{exitUsage, err, hint} }
func no(err error, hint string) error    { return &failure{exitNo, err, hint} }
func stuck(err error, hint string) error { return &failure{exitStuck, err, hint} }

// didYouMean is the hint with the nearest right name, or otherwise.
func didYouMean(prefix, name string, names []string, otherwise string) string {
	if near := nearest.Name(name, names); near != "" {
		return "did you mean " + prefix + near + "?"
	}
	return otherwise
}
