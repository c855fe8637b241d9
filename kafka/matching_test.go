package kafka_test

import (
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/kafka"
)

func TestTopicsThatMatchAreReadAlsoThoseThatAppearLater(t *testing.T) {
	t.Parallel()
	brokers, base := testenv.Brokers(t), testenv.Topic(t, 1)
	_, adm := foreign(t, brokers)
	name := func(s string) string { return base + "." + s }
	make1 := func(topic string) {
		if _, err := adm.CreateTopic(within(t), 1, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	make1(name("a"))
	make1(name("a.more")) // the expression takes whole names
	fill(t, brokers, name("a"), 2, 0)
	fill(t, brokers, name("a.more"), 1, 0)
	s, err := kafka.NewSource(kafka.SourceConfig{Brokers: brokers, Matching: `\Q` + base + `.\E[a-z]+`, Group: base, Logger: logger(t)})
	must(t, err)
	t.Cleanup(s.Close)
	if got := s.Topics(); len(got) != 1 || got[0] != `/\Q`+base+`.\E[a-z]+/` {
		t.Error(got)
	}
	r := read(t, s)
	r.until("the first topic is read", 10, func() bool { return len(r.values()) == 2 })
	make1(name("b"))
	fill(t, brokers, name("b"), 3, 0)
	r.until("the new topic is read", 10, func() bool { return len(r.values()) == 5 })
	if _, err := adm.DeleteTopic(within(t), name("a")); err != nil {
		t.Fatal(err)
	}
	r.until("the deleted topic is given up", 10, func() bool {
		_, held := r.next[semel.Partition{Topic: name("a")}]
		return !held
	})
	fill(t, brokers, name("b"), 1, 0)
	r.until("the other one is still read", 10, func() bool { return len(r.values()) == 6 })
}
