package inbox

import "fmt"

// limitWindow is how many of the last messages the share is taken of.
const limitWindow = 1000

// limit bounds how many messages are buried: a bad deploy must not bury a topic.
// The share is judged over a full window, so that a few bad messages at the
// beginning don't halt.
type limit struct {
	inARow int     // negative: no bound
	share  float64 // negative: no bound

	row  int
	ring [limitWindow]bool
	at   int
	dead int
}

func newLimit(inARow int, share float64) limit { return limit{inARow: inARow, share: share} }

// settle counts one message. An error says that burying it goes too far; then
// nothing was counted.
func (l *limit) settle(dead bool) error {
	row, sum := 0, l.dead
	if dead {
		row = l.row + 1
	}
	if l.ring[l.at] {
		sum--
	}
	if dead {
		sum++
	}
	switch {
	case dead && l.inARow >= 0 && row > l.inARow:
		return fmt.Errorf("%d messages in a row would be buried", row)
	case dead && l.share >= 0 && float64(sum) > l.share*limitWindow:
		return fmt.Errorf("%d of the last %d messages would be buried", sum, limitWindow)
	}
	l.row, l.dead = row, sum
	l.ring[l.at] = dead
	l.at = (l.at + 1) % limitWindow
	return nil
}
