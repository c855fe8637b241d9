package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/kafka"
	"github.com/spf13/pflag"
	"github.com/twmb/franz-go/pkg/kerr"
)

// clusterFlags say which Kafka cluster a command without a route speaks to: the
// one of the file if there is a file.
type clusterFlags struct {
	brokers string
	config  string
}

func (c *clusterFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.brokers, "brokers", "", "addresses, comma-separated (default: the file's, else KAFKA_BROKERS)")
	f.StringVar(&c.config, "config", "", "the `FILE` whose kafka section is used (default semel.yaml if it is there, or SEMEL_CONFIG)")
}

func (c *clusterFlags) kafka() (config.Kafka, error) {
	files := fileFlags{config: c.config}
	path := files.path(nil)
	if _, err := os.Stat(path); err == nil || path != "semel.yaml" {
		above := []config.Setting{config.WithDatabase("postgres://nobody@localhost/none")} // it has no part in this
		if c.brokers != "" {
			above = append(above, config.WithBrokers(c.brokers))
		}
		f, err := loadFile(path, above...)
		if err != nil {
			return config.Kafka{}, err
		}
		return f.Kafka, nil
	}
	for _, list := range []string{c.brokers, os.Getenv("KAFKA_BROKERS")} {
		if list != "" {
			return config.Kafka{Brokers: strings.Split(list, ",")}, nil
		}
	}
	return config.Kafka{}, usage(errors.New("no broker is named"), "--brokers, KAFKA_BROKERS, or a file with kafka.brokers; semel dev starts one")
}

// client sends to a topic.
type client struct {
	*kafka.Sender
	admin  *kafka.Admin
	config kafka.SenderConfig
	limit  int // of the topic, for a batch and with it for a message; 0: not known
}

// maxLimit is what a client can send at once, whatever the topic takes.
const maxLimit = 80 << 20

// open answers when the cluster has.
func (c *clusterFlags) open(ctx context.Context) (*client, error) {
	k, err := c.kafka()
	if err != nil {
		return nil, err
	}
	opts, err := daemon.KafkaOptions(k)
	if err != nil {
		return nil, failed(err)
	}
	admin, err := kafka.NewAdmin(kafka.AdminConfig{Brokers: k.Brokers, Options: opts})
	if err != nil {
		return nil, stuck(err, "")
	}
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := admin.Cluster(within); err != nil {
		admin.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, stuck(fmt.Errorf("broker %s: %w", strings.Join(k.Brokers, ","), daemon.Plain(err)), "--brokers says where it is; semel dev starts one")
	}
	return &client{admin: admin, config: kafka.SenderConfig{Brokers: k.Brokers, Manual: true, Options: opts}}, nil
}

func (c *client) Close() {
	if c.Sender != nil {
		c.Sender.Close()
	}
	c.admin.Close()
}

// widen makes room for a message, if the topic has it. Batches stay small until
// then: what reads them has to hold them. Everything handed over must have been
// answered.
func (c *client) widen(size int) error {
	if c.Sender != nil && (size <= c.config.BatchBytes || c.config.BatchBytes >= c.limit) {
		return nil
	}
	want := kafka.DefaultBatchBytes
	if size > want {
		want = c.limit
	}
	if c.limit > 0 {
		want = min(want, c.limit)
	}
	c.config.BatchBytes = want
	sender, err := kafka.NewSender(c.config)
	if err != nil {
		return stuck(err, "")
	}
	if c.Sender != nil {
		c.Sender.Close()
	}
	c.Sender = sender
	return nil
}

// ensureTopic makes the topic if that was asked for, and refuses what it can't
// take.
func (c *client) ensureTopic(ctx context.Context, topic string, create int32, settings map[string]string, partition int32) error {
	ts, err := c.admin.Topics(ctx, topic)
	var unknown *inbox.UnknownTopicError
	switch {
	case errors.As(err, &unknown) && create > 0:
		if err := c.admin.CreateTopic(ctx, topic, create, settings); err != nil && !errors.Is(err, kafka.ErrTopicExists) {
			return stuck(err, "")
		}
		ts = []kafka.Topic{{Partitions: create, Configs: settings}}
	case errors.As(err, &unknown):
		return stuck(unknown, "make it with --create N, N being the number of its partitions")
	case err != nil:
		return stuck(err, "")
	}
	if len(ts) == 1 && partition >= ts[0].Partitions {
		return usage(fmt.Errorf("--partition %d: topic %s has %d, counted from 0", partition, topic, ts[0].Partitions), "")
	}
	if len(ts) == 1 {
		n, _ := strconv.Atoi(ts[0].Configs[maxMessageBytes]) // 0 where this client may not see it
		c.limit = min(n, maxLimit)
	}
	return c.widen(0)
}

// maxMessageBytes is the topic's setting that bounds a batch.
const maxMessageBytes = "max.message.bytes"

func sendFailure(err error) error {
	hint := ""
	if errors.Is(err, kerr.MessageTooLarge) {
		hint = "the topic's " + maxMessageBytes + " bounds a message; a new topic gets another with --topic-config " + maxMessageBytes + "=N"
	}
	return stuck(err, hint)
}
