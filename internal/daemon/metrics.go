package daemon

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// metrics are those of the contract. No label is ever an ID or a key.
type metrics struct {
	registry *prometheus.Registry

	settled     *prometheus.CounterVec
	redelivered *prometheus.CounterVec
	lost        *prometheus.CounterVec
	collisions  *prometheus.CounterVec
	errors      *prometheus.CounterVec
	fenced      *prometheus.CounterVec
	lag         *prometheus.GaugeVec
	lagSeconds  *prometheus.GaugeVec
	batchTime   *prometheus.HistogramVec
	batchSize   *prometheus.HistogramVec
	lastCommit  *prometheus.GaugeVec
	dead        *prometheus.GaugeVec
	state       *prometheus.GaugeVec
	ids         *prometheus.GaugeVec
	since       *prometheus.GaugeVec
	room        *prometheus.GaugeVec
	filters     *prometheus.GaugeVec
	window      *prometheus.GaugeVec
}

// Build is what /metrics says of the binary.
type Build struct{ Version, Commit, Go string }

func newMetrics(b Build) *metrics {
	log := []string{"route", "topic", "partition"}
	route := []string{"route"}
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "semel_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "semel_" + name, Help: help}, labels)
		m.registry.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "semel_" + name, Help: help, Buckets: buckets}, route)
		m.registry.MustRegister(h)
		return h
	}
	m.settled = counter("settled_total", "Messages settled, by outcome.", append(log, "outcome")...)
	m.redelivered = counter("redelivered_total", "Messages below the watermark that the broker delivered again.", log...)
	m.lost = counter("lost_total", "Messages that retention took before they were read, or that have no effect (at-most-once).", log...)
	m.collisions = counter("collisions_total", "Messages whose ID was known with other content.", log...)
	m.errors = counter("errors_total", "Failed transactions, by class of the error.", append(route, "class")...)
	m.fenced = counter("fenced_total", "Transactions refused because the claim or the place was not ours.", log...)
	m.lag = gauge("lag_messages", "Last stable offset minus watermark.", log...)
	m.lagSeconds = gauge("lag_seconds", "Age of the newest settled message while others wait, else 0.", log...)
	m.batchTime = histogram("batch_seconds", "Time of a transaction, from begin to commit.", prometheus.ExponentialBuckets(0.001, 2, 15))
	m.batchSize = histogram("batch_messages", "Messages settled by a transaction.", prometheus.ExponentialBuckets(1, 4, 8))
	m.lastCommit = gauge("last_commit_timestamp_seconds", "When the last transaction was committed.", route...)
	m.dead = gauge("dead_letters", "Dead letters that are buried and not discarded.", route...)
	m.state = gauge("route_state", "1 for the state that the route is in.", append(route, "state")...)
	m.ids = gauge("inbox_ids", "Message IDs remembered, by the sizes of their tables, in pages of some 128.", route...)
	m.since = gauge("inbox_since_timestamp_seconds", "What came since then is remembered.", route...)
	m.room = gauge("inbox_free_tables", "Inbox tables that are free; 0: the one in use grows until the window has passed.", route...)
	m.filters = gauge("inbox_filter_bytes", "Memory that the filters of inbox tables take in this process.")
	m.window = gauge("inbox_window_seconds", "How long the inbox remembers.", route...)
	gauge("build_info", "What this binary is.", "version", "commit", "go").WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// standing sets the state, and takes the others back.
func (m *metrics) standing(s Standing) {
	for _, other := range states {
		v := 0.0
		if other == s.State {
			v = 1
		}
		m.state.WithLabelValues(s.Route, string(other)).Set(v)
	}
}

// known makes a partition's count of lost messages begin at 0: where a series begins
// above it, increase() sees nothing.
func (m *metrics) known(route string, p semel.Partition) {
	m.lost.WithLabelValues(route, p.Topic, strconv.Itoa(int(p.Number)))
}

// observe counts what a lane of the route tells.
func (m *metrics) observe(route string, now func() time.Time) inbox.Observer {
	labels := func(p semel.Partition) []string {
		return []string{route, p.Topic, strconv.Itoa(int(p.Number))}
	}
	return inbox.Observer{
		Settled: func(p semel.Partition, a inbox.Accounts) {
			for i, o := range inbox.Outcomes {
				if n := a.Outcome[i].Count; n > 0 {
					m.settled.WithLabelValues(append(labels(p), o.String())...).Add(float64(n))
				}
			}
		},
		Moved: func(at inbox.Mark, end int64, newest time.Time) {
			lag, age := 0.0, 0.0
			if end > at.Next {
				lag = float64(end - at.Next)
				if !newest.IsZero() {
					age = max(0, now().Sub(newest).Seconds())
				}
			}
			m.lag.WithLabelValues(labels(at.Partition)...).Set(lag)
			m.lagSeconds.WithLabelValues(labels(at.Partition)...).Set(age)
		},
		Dropped: func(p semel.Partition) {
			m.lag.DeleteLabelValues(labels(p)...)
			m.lagSeconds.DeleteLabelValues(labels(p)...)
		},
		Claimed:     func(r inbox.Row) { m.known(route, r.Partition) },
		Redelivered: func(p semel.Partition, n int64) { m.redelivered.WithLabelValues(labels(p)...).Add(float64(n)) },
		Lost:        func(p semel.Partition, n int64) { m.lost.WithLabelValues(labels(p)...).Add(float64(n)) },
		Collision:   func(p semel.Partition) { m.collisions.WithLabelValues(labels(p)...).Inc() },
		Error:       func(c inbox.Class, _ error) { m.errors.WithLabelValues(route, c.String()).Inc() },
		Fenced:      func(x inbox.Mismatch) { m.fenced.WithLabelValues(labels(x.Partition)...).Inc() },
		Batch: func(n int, took time.Duration) {
			m.batchTime.WithLabelValues(route).Observe(took.Seconds())
			m.batchSize.WithLabelValues(route).Observe(float64(n))
			m.lastCommit.WithLabelValues(route).Set(float64(now().UnixMilli()) / 1000)
		},
	}
}
