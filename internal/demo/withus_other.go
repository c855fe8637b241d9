//go:build !linux

package demo

import "syscall"

// withUs makes a child in a group of its own: Ctrl-C in a terminal is ours to pass
// on. That it dies with us is left to the end of its standard input.
func withUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
