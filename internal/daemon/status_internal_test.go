package daemon

import (
	"testing"

	"github.com/semelhq/semel/inbox"
)

func TestStatusTellsWhatIsLostFromWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := settledRow(0, 5)
	r.Accounts.Lost = 3
	r.Ahead = &inbox.Ahead{From: 5, To: 7, Count: 2}
	self := inbox.Self()
	r.Owner = &self
	if got := statusOf(r).Lost; got != 1 {
		t.Errorf("its owner is at 2 of them: %d lost, want 1", got)
	}
	r.Owner = nil
	if got := statusOf(r).Lost; got != 3 {
		t.Errorf("nobody is at them: %d lost, want 3", got)
	}
}
