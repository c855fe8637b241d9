package cases_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// G51: a backlog far above the bound and a database that stands still: what waits in memory is bounded, as
// docs/operate.md says. A few messages that are large, many that are small, and what compresses well are the same.
func TestABacklogStaysOutsideOfMemory(t *testing.T) {
	t.Parallel()
	const bound = 8 << 20 // memory in the file
	for _, c := range []struct {
		name          string
		n, size       int
		compress, all bool
	}{{"many small", 100_000, 1 << 10, false, true}, {"compressed to nothing", 200_000, 1 << 10, true, false}, {"large", 150, 900 << 10, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 4, "CREATE TABLE d (id int, pad text)")
			codec, pad := kgo.NoCompression(), strings.Repeat("x", c.size)
			if c.compress {
				codec = kgo.ZstdCompression()
			}
			cl, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.MaxBufferedRecords(20_000))
			must(t, err)
			defer cl.Close()
			for from := 0; from < c.n; from += 10_000 {
				var rs []*kgo.Record
				for i := from; i < min(c.n, from+10_000); i++ {
					rs = append(rs, &kgo.Record{Topic: s.topic, Partition: int32(i % 4), Value: fmt.Appendf(nil, `{"id":%d,"pad":"%s"}`, i, pad[rand.IntN(10):])})
				}
				must(t, cl.ProduceSync(within(t), rs...).FirstErr())
			}
			ctx := within(t)
			stranger, err := s.db.Begin(ctx)
			must(t, err)
			defer stranger.Rollback(ctx)
			_, err = stranger.Exec(ctx, "LOCK TABLE d IN SHARE MODE")
			must(t, err)
			text := "memory: 8MiB\n" + s.text(s.route("id: {position: true}", "to: {table: d, write: append}"))
			child := s.spawn([]string{"GOMEMLIMIT=", "GOGC="}, []string{"--until-caught-up"}, text)
			until(t, "it waits for the database", func() bool {
				return s.count("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
			})
			// What is fetched ahead has come when the process needs no more for a while.
			last, same := 0, 0
			until(t, "it has fetched all it may", func() bool {
				now := resident(t, child, "VmRSS")
				if same++; now > last+1<<20 {
					last, same = now, 0
				}
				return same > 100
			})
			must(t, stranger.Rollback(ctx))
			if c.all {
				if code := child.wait(); code != 0 {
					t.Errorf("exit %d", code)
				}
				s.want("SELECT count(*) FROM d", fmt.Sprint(c.n))
			} else {
				until(t, "much is settled", func() bool { return s.count("d") > 40_000 })
			}
			// The program itself; the bound; the rows being written; and as much again for garbage not yet collected.
			peak := last
			if !c.all {
				peak = max(peak, resident(t, child, "VmHWM"))
			}
			t.Logf("%d MiB resident at most, of a backlog of %d MiB", peak>>20, c.n*c.size>>20)
			if most := 48<<20 + 6*bound; peak > most {
				t.Errorf("%d MiB resident, at most %d are allowed", peak>>20, most>>20)
			}
		})
	}
}

// resident is a line of the process's status, in bytes.
func resident(t *testing.T, p *process, line string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(t, err)
	_, rest, ok := strings.Cut(string(b), line+":")
	var kb int
	if _, err := fmt.Sscan(rest, &kb); !ok || err != nil {
		t.Fatalf("no %s: %v", line, err)
	}
	return kb << 10
}
