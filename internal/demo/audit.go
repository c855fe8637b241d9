package demo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// Verdict is what the audit found: all of it read again from PostgreSQL and the
// broker, with every consumer stopped.
type Verdict struct {
	Exact     bool      `json:"exact"` // semel: every message took effect once
	Seed      uint64    `json:"seed"`
	Seconds   float64   `json:"seconds"`
	Messages  int64     `json:"messages"` // sent, each counted once
	Repeats   int64     `json:"repeats"`  // sent again by the producer
	Records   int64     `json:"records"`  // in the topic
	Sum       int64     `json:"sum"`      // of the amounts of all messages
	Consumers []Finding `json:"consumers"`
	Equation  Equation  `json:"equation"`
}

// Finding is the audit of one consumer's books.
type Finding struct {
	ConsumerProgress
	Exact    bool         `json:"exact"`
	Sum      int64        `json:"sum"`                  // of all balances
	Wrong    int          `json:"wrong_balances"`       // accounts whose balance isn't what was sent
	Balances []int64      `json:"balances"`             // by account
	Steps    map[Step]int `json:"killed_at,omitempty"`  // kills by step
	Slowest  float64      `json:"back_seconds_slowest"` // from SIGKILL to the next commit
}

// Equation is semel's own account of every record: settled = applied + duplicate +
// stale + superseded + dead + skipped, in each partition, up to the end of the log.
type Equation struct {
	Holds    bool             `json:"holds"`
	Settled  int64            `json:"settled"`
	Outcomes map[string]int64 `json:"outcomes"`
	Behind   int64            `json:"behind"` // records beyond the watermarks
}

func (s *show) audit(ctx context.Context) (*Verdict, error) {
	v := &Verdict{Seed: s.cfg.Seed, Seconds: s.elapsed().Seconds()}
	v.Messages, v.Repeats, _ = s.stream.sent()
	for _, sum := range s.stream.sums {
		v.Sum += sum
	}
	for _, c := range s.consumers {
		f, err := s.examine(ctx, c, v.Messages)
		if err != nil {
			return nil, err
		}
		v.Consumers = append(v.Consumers, f)
	}
	logs, err := s.admin.Logs(ctx, topic)
	if err != nil {
		return nil, err
	}
	for _, l := range logs {
		v.Records += l.End - l.Start
	}
	if v.Equation, err = s.equation(ctx, v.Records); err != nil {
		return nil, err
	}
	semel := &v.Consumers[0]
	semel.Duplicate = v.Equation.Outcomes[inbox.DuplicateID.String()]
	v.Exact = semel.Exact && v.Equation.Holds && v.Records == v.Messages+v.Repeats
	return v, nil
}

// examine holds one consumer's books against what was sent.
func (s *show) examine(ctx context.Context, c *consumer, sent int64) (Finding, error) {
	f := Finding{ConsumerProgress: ConsumerProgress{Kind: c.kind}, Steps: c.steps}
	f.Kills, f.Back, f.Redelivered = c.life()
	for _, took := range c.back {
		f.Slowest = max(f.Slowest, took.Seconds())
	}
	var unsent, entries, places int64
	err := s.pool.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*) FILTER (WHERE payment < $1), count(*) FILTER (WHERE payment >= $1),
		       count(*) FILTER (WHERE times = 1), coalesce(sum(times), 0)::bigint, coalesce(sum(places), 0)::bigint
		FROM (SELECT payment, count(*) AS times, count(DISTINCT (partition, "offset")) AS places FROM %s GROUP BY payment) p`,
		c.kind.table("journal")), sent).Scan(&f.Lost, &unsent, &f.Once, &entries, &places)
	if err != nil {
		return f, err
	}
	booked := f.Lost
	f.Lost = sent - booked
	f.Redone = entries - places           // the same record again
	f.Repeated = places - booked - unsent // another record of the same message
	rows, err := s.pool.Query(ctx, fmt.Sprintf(`SELECT balance FROM %s ORDER BY account`, c.kind.table("balance")))
	if err != nil {
		return f, err
	}
	if f.Balances, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return f, err
	}
	if len(f.Balances) != accounts {
		return f, fmt.Errorf("%d accounts of %s, and not %d", len(f.Balances), c.kind.Title(), accounts)
	}
	for i, b := range f.Balances {
		f.Sum += b
		if b != s.stream.sums[i] {
			f.Wrong++
		}
	}
	f.Exact = f.Once == sent && unsent == 0 && f.Wrong == 0
	return f, nil
}

func (s *show) equation(ctx context.Context, records int64) (Equation, error) {
	e := Equation{Holds: true, Outcomes: map[string]int64{}, Behind: records}
	rows, err := s.watermarks(ctx)
	for _, r := range rows {
		_, ok := r.Accounts.Check() // counts, and checksums of what was counted
		e.Holds = e.Holds && ok
		e.Settled += r.Accounts.Settled.Count
		e.Behind -= r.Next - r.Start
		for i, o := range inbox.Outcomes {
			e.Outcomes[o.String()] += r.Accounts.Outcome[i].Count
		}
	}
	e.Holds = e.Holds && e.Behind == 0 && e.Settled == records
	return e, err
}

// watermarks are semel's places in the topic.
func (s *show) watermarks(ctx context.Context) ([]postgres.WatermarkRow, error) {
	return postgres.NewStatus(s.pool, "").Watermarks(ctx, string(Semel))
}
