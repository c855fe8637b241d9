package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
)

func brokers(f *config.File) string { return strings.Join(f.Kafka.Brokers, ",") }

// KafkaOptions are TLS and SASL of the file. Secrets and certificates are read
// anew for each connection.
func KafkaOptions(k config.Kafka) ([]kgo.Opt, error) {
	var t *kafka.TLS
	if k.TLS != nil {
		t = &kafka.TLS{CA: k.TLS.CA, Cert: k.TLS.Cert, Key: k.TLS.Key}
	}
	var s *kafka.SASL
	if k.SASL != nil {
		s = &kafka.SASL{Mechanism: k.SASL.Mechanism, User: k.SASL.User, Password: k.SASL.Password.Reveal}
	}
	opts, err := kafka.Security(t, s)
	if err != nil {
		return nil, &StartError{What: "kafka", Err: err, Hint: "kafka.tls and kafka.sasl name the files"}
	}
	return opts, nil
}

// Plain is what a person wants to know of a connection that failed, in one line
// and without what was tried beside.
func Plain(err error) error {
	var pg *pgconn.PgError
	var op *net.OpError
	switch {
	case errors.As(err, &pg):
		return fmt.Errorf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", reachWithin)
	case errors.As(err, &op):
		return op
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}
