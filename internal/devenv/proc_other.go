//go:build unix && !linux

package devenv

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// A runAs says as whom PostgreSQL runs: it refuses to run as root.
type runAs struct {
	uid, gid int // the owner that the data folder must have
}

// whom decides how to run PostgreSQL: as ourselves, or for root as nobody.
func whom(context.Context, string) runAs {
	if os.Getuid() == 0 {
		return runAs{uid: 65534, gid: 65534}
	}
	return runAs{uid: os.Getuid(), gid: os.Getgid()}
}

// attr has no way here to tie a child's life to ours: what was left behind is stopped at the next start.
func (r runAs) attr(syscall.Signal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if r.uid != os.Getuid() {
		a.Credential = &syscall.Credential{Uid: uint32(r.uid), Gid: uint32(r.gid)}
	}
	return a
}

// stateOf is the letter by which ps shows what a process does; 0: there is none.
func stateOf(pid int) byte {
	out, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if s := strings.TrimSpace(string(out)); s != "" {
		return s[0]
	}
	return 0
}

// commandOf returns the arguments of a running process, or nil. A folder with spaces in its name comes apart here,
// so ps's line is returned whole as well.
func commandOf(pid int) []string {
	out, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	line := strings.TrimSpace(string(out))
	_, after, _ := strings.Cut(line, " -D ")
	dir, _, _ := strings.Cut(after, " -h 127.0.0.1")
	return append(strings.Fields(line), dir)
}

// processesOn lists the server's processes while its first, named by first, lives.
func processesOn(_ string, first int) []int {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(first)).Output()
	pids := []int{first}
	for _, s := range strings.Fields(string(out)) {
		if n, err := strconv.Atoi(s); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}
