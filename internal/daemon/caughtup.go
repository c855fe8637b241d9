package daemon

import (
	"context"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/postgres"
)

// caughtUpEvery is how often the watermarks are read.
const caughtUpEvery = 100 * time.Millisecond

// target is a place that a route's watermark has to reach.
type target map[semel.Partition]int64

// marks are the dead letters that were to be handled again at the start, by route.
type marks map[string][]postgres.DeadRow

func (d *daemon) marked(ctx context.Context, routes []config.Route) (marks, error) {
	of := marks{}
	for _, r := range routes {
		letters, err := d.parts.memory.DeadLetters(ctx, postgres.DeadFilter{Consumers: []string{r.Consumer}, Marked: true})
		if err != nil {
			return nil, &StartError{What: "database", Err: Plain(err)}
		}
		of[r.Name] = letters
	}
	return of, nil
}

// numbers are those of letters whose partitions are there: of others nobody has to be
// the owner.
func (m marks) numbers(route string, there target) []int64 {
	numbers := []int64{}
	for _, l := range m[route] {
		if _, ok := there[l.Position().Log]; ok {
			numbers = append(numbers, l.Number)
		}
	}
	return numbers
}

// buriedAgain counts the letters that were marked, and are buried.
func (d *daemon) buriedAgain(ctx context.Context, m marks) (n int64) {
	for _, letters := range m {
		numbers := []int64{}
		for _, l := range letters {
			numbers = append(numbers, l.Number)
		}
		now, _ := d.parts.memory.DeadLetters(ctx, postgres.DeadFilter{Numbers: numbers})
		for _, l := range now {
			if l.State == "buried" {
				n++
			}
		}
	}
	return n
}

// caughtUp waits until each route has settled all that was in its topics when it
// was called, up to the last stable offset of every partition, and handled the dead
// letters that were marked, whoever does it. The watermarks in the database decide; but a route that has proved nothing
// yet may be about to halt, and is waited for. A halted one is not,
// nor one that is paused: those with messages left are answered by name.
func (d *daemon) caughtUp(ctx context.Context, routes []config.Route, marked marks) (paused []string, ok bool) {
	targets := map[string]target{}
	tick := time.NewTicker(caughtUpEvery)
	defer tick.Stop()
	for {
		done := true
		paused = nil
		for _, r := range routes {
			state := d.state(r.Name)
			switch state {
			case Halted:
				continue
			case Starting:
				done = false
			}
			if targets[r.Name] == nil {
				if topics, err := d.parts.topics(ctx, r); err == nil { // an outage is waited out
					targets[r.Name], _ = d.parts.stable(ctx, topics)
				}
			}
			rows, err := d.parts.memory.Watermarks(ctx, r.Consumer)
			var left []postgres.DeadRow
			if numbers := marked.numbers(r.Name, targets[r.Name]); err == nil && len(numbers) > 0 {
				left, err = d.parts.memory.DeadLetters(ctx, postgres.DeadFilter{Numbers: numbers, Marked: true})
			}
			switch {
			case err != nil, targets[r.Name] == nil:
				done = false
			case targets[r.Name].reached(rows) && len(left) == 0:
			case state == Paused:
				paused = append(paused, r.Name)
			default:
				done = false
			}
		}
		if done {
			return paused, true
		}
		select {
		case <-ctx.Done():
			return nil, false
		case <-tick.C:
		}
	}
}

// reached says whether the rows stand at the target, in every partition.
func (t target) reached(rows []postgres.WatermarkRow) bool {
	at := map[semel.Partition]int64{}
	for _, r := range rows {
		if r.Ahead == nil {
			at[r.Partition] = r.Next
		}
	}
	for p, want := range t {
		if next, ok := at[p]; !ok || next < want {
			return false
		}
	}
	return true
}

func (d *daemon) state(route string) State {
	for _, s := range d.board.standings() {
		if s.Route == route {
			return s.State
		}
	}
	return Stopped
}
