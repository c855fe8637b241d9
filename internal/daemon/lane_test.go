package daemon_test

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/semelhq/semel/internal/daemon"
)

// The limit is the process's: no test beside this one may depend on it.
func TestTheCollectorKeepsInsideTheFilesMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	const memory = 256 << 20

	t.Setenv("GOMEMLIMIT", "")
	debug.SetMemoryLimit(math.MaxInt64)
	daemon.CollectFor(memory)
	if limit := debug.SetMemoryLimit(-1); limit <= memory/2 || limit >= memory {
		t.Errorf("of %d bytes of memory the collector may use %d", memory, limit)
	}

	t.Setenv("GOMEMLIMIT", "1GiB")
	debug.SetMemoryLimit(1 << 30)
	daemon.CollectFor(memory)
	if limit := debug.SetMemoryLimit(-1); limit != 1<<30 {
		t.Errorf("GOMEMLIMIT is set, and the collector may use %d bytes", limit)
	}
}
