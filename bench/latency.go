package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// latencies are from the producer's acknowledgement of a message to COMMIT's
// answer about its row, on one clock. The row is visible a little before that.
type latencies struct {
	Messages                int
	P50, P90, P99, Most     time.Duration
	Rate                    float64 // messages a second
	Batches                 int
	ProducedP50, Produced99 time.Duration // to the acknowledgement
}

// latency sends messages one by one, evenly.
func (e *env) latency(ctx context.Context, s *stream, rate int) (latencies, error) {
	topic := e.name("latency")
	if err := e.topic(ctx, topic, make([][]semel.Message, partitions)); err != nil {
		return latencies{}, err
	}
	logs := s.logs(topic)
	var mu sync.Mutex // guards what follows
	acked, seen := make([][]time.Time, partitions), make([][]time.Time, partitions)
	for p := range logs {
		acked[p], seen[p] = make([]time.Time, len(logs[p])), make([]time.Time, len(logs[p]))
	}
	at := make([]int64, partitions)
	batches := 0

	table, err := postgres.NewTable(ctx, e.pool, fused.table)
	if err != nil {
		return latencies{}, err
	}
	source, err := kafka.NewSource(kafka.SourceConfig{Brokers: e.brokers, Topics: []string{topic}, Group: topic, Start: kafka.StartEarliest()})
	if err != nil {
		return latencies{}, err
	}
	claimed, all := make(chan struct{}, partitions), make(chan struct{})
	left := len(s.orders)
	in, err := inbox.New(inbox.Config[pgx.Tx]{
		Consumer: topic, Source: source, Store: postgres.NewInboxStore(e.pool, postgres.InboxConfig{Table: table}),
		ID: semel.IDRule{Name: table.IDName(), Sent: table.SentID}, OwnIDs: true, Memory: table.Memory(), Effect: table,
		Observe: inbox.Observer{
			Claimed: func(inbox.Row) { claimed <- struct{}{} },
			Batch:   func(int, time.Duration) { batches++ },
			Moved: func(m inbox.Mark, _ int64, newest time.Time) {
				if newest.IsZero() {
					return // claimed
				}
				now := time.Now()
				mu.Lock()
				defer mu.Unlock()
				for ; at[m.Number] < m.Next; at[m.Number]++ {
					seen[m.Number][at[m.Number]] = now
					if left--; left == 0 {
						close(all)
					}
				}
			},
		},
	})
	if err != nil {
		return latencies{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	for range partitions {
		select {
		case <-claimed:
		case <-ctx.Done():
			return latencies{}, ctx.Err()
		}
	}

	var produced []time.Duration
	next := make([]int, partitions)
	begin := time.Now()
	for i := range s.orders {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		p := s.orders[i].partition()
		m := &logs[p][next[p]]
		next[p]++
		sent := time.Now()
		e.kafka.Produce(ctx, record(topic, p, m), func(r *kgo.Record, err error) {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				acked[p][r.Offset] = now
				produced = append(produced, now.Sub(sent))
			}
		})
	}
	took := time.Since(begin)
	if err := e.kafka.Flush(ctx); err != nil {
		return latencies{}, err
	}
	select {
	case <-all:
	case <-ctx.Done():
		return latencies{}, ctx.Err()
	}
	in.Drain()
	if err := <-ended; err != nil {
		return latencies{}, err
	}
	var ds []time.Duration
	for p := range acked {
		for i := range acked[p] {
			ds = append(ds, seen[p][i].Sub(acked[p][i]))
		}
	}
	slices.Sort(ds)
	slices.Sort(produced)
	of := func(ds []time.Duration, share float64) time.Duration {
		return ds[min(int(float64(len(ds))*share), len(ds)-1)]
	}
	return latencies{
		Messages: len(ds), P50: of(ds, .5), P90: of(ds, .9), P99: of(ds, .99), Most: ds[len(ds)-1],
		Rate: float64(len(ds)) / took.Seconds(), Batches: batches,
		ProducedP50: of(produced, .5), Produced99: of(produced, .99),
	}, nil
}
