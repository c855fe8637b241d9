package inbox_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
)

// deadProcess names a process of this host that has ended.
func deadProcess(t *testing.T) string {
	t.Helper()
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	o := inbox.Self()
	o.PID = c.Process.Pid
	return o.Process()
}

func TestProcessIsDeadOrAliveByItsName(t *testing.T) {
	if name := inbox.Self().Process(); name == "" || inbox.DeadProcess(name) {
		t.Errorf("this process, %q, counts as dead", name)
	}
	if name := deadProcess(t); !inbox.DeadProcess(name) {
		t.Errorf("%q counts as alive", name)
	}
	elsewhere := inbox.Self()
	elsewhere.Host, elsewhere.PID = "another host", 1<<22+1
	for _, name := range []string{"", "semel", "rdkafka", "semel-1-2", "semel-x-y-z", elsewhere.Process()} {
		if inbox.DeadProcess(name) {
			t.Errorf("%q counts as dead", name)
		}
	}
}

// A process is killed after it has joined and before it has claimed anything: no
// row names its member, and the group would wait for its session.
func TestMemberThatDiedBeforeItsFirstClaimIsMadeToLeave(t *testing.T) {
	w := newWorld(t, 2)
	dead := w.b.NewSource(consumer, inboxtest.StartGroup, "t")
	dead.Process = deadProcess(t)
	if _, err := dead.Poll(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	alive := w.b.NewSource("other", inboxtest.StartGroup, "t")
	alive.Process = inbox.Self().Process()
	if _, err := alive.Poll(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	keys := append(w.send(0, 0, 5), w.send(1, 0, 5)...)
	began := time.Now()
	w.start()
	w.settledTo(5, 5)
	w.wantOnce(keys...)
	t.Logf("settled %s after the start", time.Since(began).Round(time.Millisecond))
	if m, _ := alive.Member(); m == "" {
		t.Error("a member of a living process was made to leave")
	}
}
