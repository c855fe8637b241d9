package lab

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Effect is what a consumer left of one message: a row that says whose it is, and an amount that also went into a sum.
type Effect struct {
	ID     string
	Amount int64
}

// History is what was sent: each message ID once, however often its sender repeated it. It may be used by many
// goroutines.
type History struct {
	mu   sync.Mutex
	sent map[string]int64
}

// Sent announces a message. Announcing it again changes nothing.
func (h *History) Sent(id string, amount int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent == nil {
		h.sent = map[string]int64{}
	}
	h.sent[id] = amount
}

// Verdict is what effects say about a history.
type Verdict struct {
	Sent    int
	Lost    []string // sent, and without effect
	Twice   []string // with more than one effect
	Strange []string // with an effect of another amount, or never sent
	// Want is the sum of what was sent, Sum the one that the consumer kept beside its rows.
	Want, Sum int64
}

// Once says whether everything took effect once.
func (v Verdict) Once() bool {
	return len(v.Lost) == 0 && len(v.Twice) == 0 && len(v.Strange) == 0 && v.Want == v.Sum
}

// String is one line.
func (v Verdict) String() string {
	if v.Once() {
		return fmt.Sprintf("%d messages took effect once", v.Sent)
	}
	return fmt.Sprintf("of %d messages %d lost%s, %d twice%s, %d strange%s; the sum is %d instead of %d", v.Sent,
		len(v.Lost), some(v.Lost), len(v.Twice), some(v.Twice), len(v.Strange), some(v.Strange), v.Sum, v.Want)
}

func some(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	more := ""
	if len(ids) > 5 {
		ids, more = ids[:5], ", …"
	}
	return " (" + strings.Join(ids, ", ") + more + ")"
}

// Judge compares all effects there are, and the consumer's own sum, with what was sent.
func (h *History) Judge(effects []Effect, sum int64) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := Verdict{Sent: len(h.sent), Sum: sum}
	times := map[string]int{}
	for _, e := range effects {
		times[e.ID]++
		if amount, sent := h.sent[e.ID]; !sent || amount != e.Amount {
			v.Strange = append(v.Strange, e.ID)
		}
		if times[e.ID] == 2 {
			v.Twice = append(v.Twice, e.ID)
		}
	}
	for id, amount := range h.sent {
		v.Want += amount
		if times[id] == 0 {
			v.Lost = append(v.Lost, id)
		}
	}
	for _, ids := range [][]string{v.Lost, v.Twice, v.Strange} {
		slices.Sort(ids)
	}
	return v
}
