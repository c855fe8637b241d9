package devenv

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A runAs says as whom PostgreSQL runs: it refuses to run as root.
type runAs struct {
	namespace bool // in a user namespace where root is seen as an ordinary user; files stay root's
	uid, gid  int  // the owner that the data folder must have
}

// withoutNamespaces plays a container that refuses them; for tests.
var withoutNamespaces bool

// whom decides how to run PostgreSQL. Root prefers a user namespace: no second user is needed, and a folder under
// root's closed home works. Hardened containers refuse them; there it is the user nobody.
func whom(ctx context.Context, bin string) runAs {
	me := runAs{uid: os.Getuid(), gid: os.Getgid()}
	if me.uid != 0 {
		return me
	}
	me.namespace = true
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version")
	cmd.SysProcAttr = me.attr(syscall.SIGKILL)
	if !withoutNamespaces && cmd.Run() == nil {
		return me
	}
	return runAs{uid: 65534, gid: 65534}
}

// attr makes a child that gets the signal when the thread that started it ends, so that it can't outlive us.
func (r runAs) attr(whenWeDie syscall.Signal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: whenWeDie} // its own group: Ctrl-C in a terminal is ours to pass on
	switch {
	case r.namespace:
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getgid(), Size: 1}}
	case r.uid != os.Getuid():
		a.Credential = &syscall.Credential{Uid: uint32(r.uid), Gid: uint32(r.gid)}
	}
	return a
}

// stateOf is the letter by which ps shows what a process does; 0: there is none.
func stateOf(pid int) byte {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) { // the command's name, in brackets, may hold anything
		return b[i+2]
	}
	return 0
}

// commandOf returns the arguments of a running process, or nil.
func commandOf(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 { // empty: a zombie
		return nil
	}
	return strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
}

// processesOn lists the server's processes, its first among them if it lives: all work in the data folder, and only
// the first has the folder in its arguments.
func processesOn(data string, _ int) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	var pids []int
	for _, l := range links {
		if at, err := os.Readlink(l); err != nil || at != data {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
