package inbox

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Self names this process, so that whoever starts after it on the same host can
// tell whether it is dead.
func Self() Owner {
	name, _ := os.Hostname()
	pid := os.Getpid()
	return Owner{Host: host(name), Name: name, PID: pid, Started: started(pid)}
}

// Dead says whether the owner is a process of this host that no longer exists.
// false also means that it can't be known: another host, another boot.
func (o Owner) Dead() bool {
	name, _ := os.Hostname()
	if o.Host == "" || o.Host != host(name) || o.PID <= 0 || o.Started == "" {
		return false
	}
	now := started(o.PID)
	return now != o.Started
}

// Alive says whether the owner is a process of this host that still runs; false also
// means that it can't be known.
func (o Owner) Alive() bool {
	name, _ := os.Hostname()
	return o.Host != "" && o.Host == host(name) && o.PID > 0 && o.Started != "" && started(o.PID) == o.Started
}

// process says whether two owners are one process.
func (o Owner) process(p Owner) bool {
	return o.Host == p.Host && o.PID == p.PID && o.Started == p.Started
}

// processMark begins the names of processes.
const processMark = "semel"

// Process is the owner's process as a name that a group can show: of letters,
// digits and hyphens. "" where the system doesn't tell enough.
func (o Owner) Process() string {
	if o.Host == "" || o.Started == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(o.Host))
	return fmt.Sprintf("%s-%x-%d-%s", processMark, sum[:8], o.PID, o.Started)
}

// DeadProcess says whether a name that [Owner.Process] made is of a process of
// this host that no longer exists.
func DeadProcess(name string) bool {
	parts := strings.Split(name, "-")
	if len(parts) != 4 || parts[0] != processMark {
		return false
	}
	pid, err := strconv.Atoi(parts[2])
	if err != nil || pid <= 0 {
		return false
	}
	// the same process as it would be named now, were it alive
	o := Self()
	o.PID, o.Started = pid, parts[3]
	return o.Process() == name && o.Dead()
}

// host is unique per machine, boot and process namespace, where the system tells
// them; a process ID means nothing beyond these.
func host(name string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%s/%s", name, strings.TrimSpace(string(boot)), space)
}

// started is the process's start time in clock ticks since boot; "" if there is
// no such process, or only its remains.
func started(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// the command's name, in brackets, may hold anything
	s := string(b)
	if i := strings.LastIndexByte(s, ')'); i >= 0 {
		s = s[i+1:]
	}
	f := strings.Fields(s)
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}
