package devenv

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"
)

// Config says where both services live.
type Config struct {
	Dir          string    // holds kafka/ and postgres/; required
	KafkaPort    int       // on 127.0.0.1; 0 takes a free one
	PostgresPort int       // on 127.0.0.1; 0 takes a free one
	Talk         io.Writer // as in [PostgresConfig]
}

// Env is both services, running.
type Env struct {
	broker   *Broker
	postgres *Postgres
}

// Start starts the broker and PostgreSQL side by side, and returns when both can be used. If one can't start, the
// other is stopped again. It prints nothing.
func Start(ctx context.Context, cfg Config) (*Env, error) {
	if cfg.Dir == "" {
		return nil, errors.New("devenv: Config.Dir is empty")
	}
	e := &Env{}
	if _, err := makeDir(cfg.Dir); err != nil { // or both would say so
		return nil, err
	}
	failed := make(chan error, 1)
	go func() {
		var err error
		e.postgres, err = StartPostgres(ctx, PostgresConfig{Dir: filepath.Join(cfg.Dir, "postgres"), Port: cfg.PostgresPort, Talk: cfg.Talk})
		failed <- err
	}()
	var err error
	e.broker, err = StartBroker(ctx, BrokerConfig{Dir: filepath.Join(cfg.Dir, "kafka"), Port: cfg.KafkaPort})
	if err = errors.Join(err, <-failed); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Brokers is what Kafka clients are to be given.
func (e *Env) Brokers() string { return e.broker.Addr() }

// DatabaseURL is what PostgreSQL's clients are to be given.
func (e *Env) DatabaseURL() string { return e.postgres.URL() }

// Broker is the embedded broker.
func (e *Env) Broker() *Broker { return e.broker }

// Postgres is the PostgreSQL server.
func (e *Env) Postgres() *Postgres { return e.postgres }

// Close stops both, PostgreSQL cleanly if that takes no longer than ten seconds.
func (e *Env) Close() error {
	if e.broker != nil {
		e.broker.Close()
	}
	if e.postgres == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return e.postgres.Stop(ctx)
}
