package kafka_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

func TestSourceIsASource(t *testing.T) { isASource(t) }

func TestASourceWhoseCoordinatorAssignsIsASource(t *testing.T) { isASource(t, serverSide) }

func serverSide(c *kafka.SourceConfig) { c.ServerSide, c.SessionTimeout = true, 0 }

func isASource(t *testing.T, opts ...option) {
	t.Parallel()
	opts = append([]option{func(c *kafka.SourceConfig) { c.SessionTimeout = 2 * limit }}, opts...)
	inboxtest.TestSource(t, func(t *testing.T) inboxtest.SourceWorld {
		brokers, topic := testenv.Brokers(t), testenv.Topic(t, 2)
		sender, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers, Manual: true})
		must(t, err)
		t.Cleanup(sender.Close)
		return inboxtest.SourceWorld{
			Topic: topic,
			New:   func(group string) inbox.Source { return source(t, brokers, topic+"-"+group, topic, opts...) },
			Send: func(ms ...semel.Message) {
				t.Helper()
				must(t, errors.Join(sender.Send(within(t), ms)...))
			},
		}
	})
}

func TestAStuckMemberDoesNotJoinAgainBeforeItPolls(t *testing.T) {
	t.Parallel()
	brokers, topic := testenv.Brokers(t), testenv.Topic(t, 1)
	_, adm := foreign(t, brokers)
	s := source(t, brokers, topic, topic)
	r := read(t, s)
	r.until("it is assigned", 0, func() bool { return len(r.next) == 1 })
	id, _ := s.Member()
	must(t, s.Evict(within(t), []string{id}))
	members := func() int {
		gs, err := adm.DescribeGroups(within(t), topic)
		must(t, err)
		return len(gs[topic].Members)
	}
	quiet, cancel := context.WithTimeout(context.Background(), 2500*time.Millisecond)
	defer cancel()
	for quiet.Err() == nil { // two heartbeats
		time.Sleep(20 * time.Millisecond)
		if n := members(); n != 0 {
			t.Fatalf("%d members", n)
		}
	}
	r.until("it has lost it", 0, func() bool { return len(r.lost) == 1 })
	r.until("it has it again", 0, func() bool { return len(r.next) == 1 })
}
