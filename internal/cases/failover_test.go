package cases_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

// either is a database wherever it can be written.
func either(a, b *devenv.Postgres, database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/%s?sslmode=disable&target_session_attrs=read-write", a.Port(), b.Port(), database)
}

// asks is a session on one server, whatever becomes of the others.
func asks(t *testing.T, url string) func(sql string) string {
	t.Helper()
	c, err := pgx.Connect(within(t), url)
	must(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return func(sql string) string {
		t.Helper()
		var text string
		if err := c.QueryRow(within(t), sql).Scan(&text); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return text
	}
}

// shares are how many partitions each member of the group has.
func (s *scene) shares() string {
	s.t.Helper()
	gs, err := s.adm.DescribeGroups(within(s.t), s.topic)
	if err == nil {
		err = gs.Error()
	}
	if err != nil {
		return err.Error()
	}
	var of []string
	for _, m := range gs[s.topic].Members {
		n := 0
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				n += len(t.Partitions)
			}
		}
		of = append(of, fmt.Sprint(n))
	}
	slices.Sort(of)
	return strings.Join(of, " ")
}

// deltaLoad sends deltas to partitions in turn until end is called, which answers how many.
func (s *scene) deltaLoad(partitions int) (end func() int) {
	stop := make(chan struct{})
	var sent sync.WaitGroup
	n := 0
	sent.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				rs := make([]*kgo.Record, 5)
				for i := range rs {
					rs[i] = &kgo.Record{Topic: s.topic, Partition: int32(n % partitions), Value: []byte(delta(n))}
					n++
				}
				if err := s.cl.ProduceSync(within(s.t), rs...).FirstErr(); err != nil {
					s.t.Error(err)
					return
				}
			}
		}
	})
	return sync.OnceValue(func() int { close(stop); sent.Wait(); return n })
}

// A primary dies under load whose standby, an asynchronous one, had not been sent its last commits: effects, memory and
// watermark are gone together, the group's offset is ahead, and all of it is read and made again on the new primary.
func TestAFailoverToALaggingStandbyLosesNothing(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnPostgres(t, nil)
	standby := testenv.Standby(t, primary)
	type run struct {
		way string
		*scene
		r      *running
		load   func() int
		behind func(string) string // asks the standby
		lost   string              // what it has
	}
	var runs []*run
	for way, lines := range ways {
		database := freshDatabase(t, primary.URL())
		u, err := url.Parse(database)
		must(t, err)
		name := strings.TrimPrefix(u.Path, "/")
		s := makeScene(t, testenv.Brokers(t), testenv.Topic(t, 1), either(primary, standby, name), deltas)
		if !strings.HasPrefix(way, "append") {
			s.exec("ALTER TABLE d ADD PRIMARY KEY (mid)")
		}
		v := &run{way: way, scene: s, load: s.deltaLoad(1)}
		v.r = s.start(s.route(append([]string{"batch: {messages: 50}"}, lines...)...))
		defer v.load()
		runs = append(runs, v)
		until(t, "some took effect", func() bool { return s.watermark(0) > 20 })
		until(t, "the standby has the database", func() bool {
			c, err := pgx.Connect(within(t), standby.DatabaseURL(name))
			if err == nil {
				c.Close(context.Background())
			}
			return err == nil
		})
		v.behind = asks(t, standby.DatabaseURL(name))
		until(t, "the standby has the tables", func() bool { return v.behind("SELECT (to_regclass('semel.watermark') IS NOT NULL)::text") == "true" })
		until(t, "the standby follows", func() bool {
			return v.behind("SELECT (coalesce(max(next_offset), 0) > 20)::text FROM semel.watermark") == "true"
		})
	}

	operator := asks(t, standby.URL())
	old := asks(t, primary.URL())
	c, err := pgx.Connect(within(t), standby.URL())
	must(t, err)
	defer c.Close(context.Background())
	_, err = c.Exec(within(t), "ALTER SYSTEM SET primary_conninfo = ''")
	must(t, err)
	operator("SELECT pg_reload_conf()::text")
	until(t, "the standby receives nothing", func() bool { return operator("SELECT count(*)::text FROM pg_stat_wal_receiver") == "0" })
	has := operator("SELECT pg_last_wal_receive_lsn()::text")
	until(t, "it has replayed what it had", func() bool {
		return operator(fmt.Sprintf("SELECT (pg_last_wal_replay_lsn() >= '%s')::text", has)) == "true"
	})
	for _, v := range runs {
		v.lost = v.behind("SELECT next_offset::text FROM semel.watermark")
		var at int64
		fmt.Sscan(v.lost, &at)
		until(t, "more is committed and acked that it hasn't: "+v.way, func() bool { return v.acked(0) > at+100 })
	}
	if lag := old(fmt.Sprintf("SELECT (pg_current_wal_lsn() - '%s')::bigint::text", operator("SELECT pg_last_wal_replay_lsn()::text"))); strings.HasPrefix(lag, "-") || lag == "0" {
		t.Errorf("the standby is %s bytes behind: the fault didn't fire", lag)
	}
	primary.Kill()
	for _, v := range runs {
		if is := v.behind("SELECT next_offset::text FROM semel.watermark"); is != v.lost {
			t.Errorf("%s: the standby went on from %s to %s: the fault didn't fire", v.way, v.lost, is)
		}
	}
	operator("SELECT pg_promote()::text")
	for _, v := range runs {
		at := v.acked(0)
		until(t, "it goes on past where it was: "+v.way, func() bool { return v.watermark(0) > at+20 })
		n := v.load()
		until(t, "all is settled and acked: "+v.way, func() bool { return v.acked(0) == int64(n) })
		v.r.alive()
		v.r.stop()
		v.exact(n)
		if got := v.outcomes(); got != fmt.Sprint(n, " applied") {
			t.Errorf("%s: %s", v.way, got)
		}
	}
}

// The old primary comes back and takes writes while a process still talks to it: two databases of one identity take
// turns in a group. Neither is told of the other; each is exact in itself as far as it came, and when the old one is
// fenced the new one reads again what was settled there.
func TestAnOldPrimaryThatComesBackTakesNothingFromTheNew(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnPostgres(t, nil)
	database := freshDatabase(t, primary.URL())
	standby := testenv.Standby(t, primary)
	name := database[strings.LastIndex(database, "/")+1:]
	s := makeScene(t, testenv.Brokers(t), testenv.Topic(t, 2), either(primary, standby, name), deltas)
	route := s.route(append([]string{quick}, ways["append, by inbox"]...)...)
	n := 0
	more := func() {
		rs := make([]*kgo.Record, 40)
		for i := range rs {
			rs[i] = &kgo.Record{Partition: int32(i % 2), Value: []byte(delta(n))}
			n++
		}
		s.produce(rs...)
	}
	right := s.start(route)
	more()
	until(t, "the first ones took effect and were acked", func() bool { return s.acked(0)+s.acked(1) == 40 })
	operator := asks(t, standby.URL())
	primary.Kill()
	operator("SELECT pg_promote()::text")
	s.url = standby.DatabaseURL(name)
	s.via = s.url
	right.stop() // an operator moves it to the new primary
	s.db.Close()
	was := s
	s = makeScene(t, s.brokers, s.topic, s.url, "SELECT")
	right = s.start(route)
	until(t, "the new one goes on", func() bool { return s.count("semel.watermark WHERE owner IS NOT NULL") == 2 })

	must(t, primary.Start(within(t)))
	was.url, was.via = primary.DatabaseURL(name), primary.DatabaseURL(name)
	wrong := was.start(route)
	old := asks(t, was.url)
	until(t, "each has a partition", func() bool {
		return old("SELECT count(*)::text FROM semel.watermark WHERE generation > 1") == "1" && s.shares() == "1 1"
	})
	more()
	until(t, "both are acked", func() bool { return s.acked(0)+s.acked(1) == int64(n) })
	until(t, "half is in the old one", func() bool { return old("SELECT count(*)::text FROM d") == "60" })
	if got := s.count("d"); got != 60 {
		t.Errorf("%d effects in the new one, 60 of %d were its own: the fault didn't fire", got, n)
	}
	right.alive()
	wrong.alive()
	wrong.stop()
	until(t, "the new one has read again what went to the old", func() bool { return s.count("d") == int64(n) })
	more()
	until(t, "and goes on", func() bool { return s.acked(0)+s.acked(1) == int64(n) && s.count("d") == int64(n) })
	right.stop()
	s.exact(n)
}
