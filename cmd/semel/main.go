// Command semel takes messages from Kafka and makes each take effect in
// PostgreSQL once.
//
// This package parses flags, prints, and chooses exit codes; a command is a
// file. Data goes to standard output, talk to standard error. An error is one
// line that says what and where, then a line with a hint if there is one.
package main

import "os"

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
