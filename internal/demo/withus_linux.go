package demo

import "syscall"

// withUs makes a child that dies with the thread that started it, in a group of its
// own: Ctrl-C in a terminal is ours to pass on.
func withUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
