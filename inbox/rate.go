package inbox

import (
	"sync"
	"time"
)

// Rate bounds how many messages are taken from a source in a time. Inboxes that are
// given one Rate share it. Up to a second's worth may be taken at once, at least one
// message; so may each of several that poll at the same moment, and all of them wait
// the longer for it. Handling dead letters again takes nothing from it.
type Rate struct {
	perSecond float64

	mu   sync.Mutex // guards what follows
	have float64    // below zero: taken by several at once, and owed
	at   time.Time  // when have was counted; zero: not yet
}

// NewRate is so many messages in a time, both above zero.
func NewRate(messages int, per time.Duration) *Rate {
	if messages <= 0 || per <= 0 {
		panic("inbox: a Rate of nothing")
	}
	return &Rate{perSecond: float64(messages) / per.Seconds()}
}

func (r *Rate) most() float64 { return max(1, r.perSecond) }

// ready says how many messages, up to so many, may be taken now; none: after which
// time to ask again. It answers a tenth of a second's worth at least, or every batch
// would be of the one message that has just become free. A nil Rate bounds nothing.
func (r *Rate) ready(upTo int) (n int, wait time.Duration) {
	if r == nil {
		return upTo, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count()
	least := min(max(1, r.perSecond/10), float64(upTo))
	const rounding = 1e-6
	if r.have+rounding < least {
		return 0, time.Duration((least-r.have)/r.perSecond*float64(time.Second)) + time.Microsecond
	}
	return min(upTo, int(r.have+rounding)), 0
}

// took counts what was taken.
func (r *Rate) took(n int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count()
	r.have -= float64(n)
}

func (r *Rate) count() {
	now := time.Now()
	if r.at.IsZero() {
		r.have = r.most()
	} else {
		r.have = min(r.most(), r.have+now.Sub(r.at).Seconds()*r.perSecond)
	}
	r.at = now
}
