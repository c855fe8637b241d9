package daemon

import (
	"testing"
	"time"
)

func TestClocksThatAgreeAreNotWorthAWord(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		took, apart, want time.Duration
	}{
		{0, 4 * time.Second, 0},
		{0, 6 * time.Second, 6 * time.Second},
		{0, -90 * time.Minute, 90 * time.Minute},
		{10 * time.Second, 12 * time.Second, 0}, // the answer was long on its way
	} {
		if got := skewOf(now, c.took, now.Add(c.took/2).Add(c.apart)); got != c.want {
			t.Errorf("%s apart, asked for %s: %s, want %s", c.apart, c.took, got, c.want)
		}
	}
}
