package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/spf13/cobra"
)

// dev is the embedded broker and PostgreSQL for development.
type dev struct {
	*app
	devFlags
	json bool
}

// devFlags say where the embedded services live.
type devFlags struct {
	dir          string
	kafkaPort    int
	postgresPort int
}

func (a *app) devCommand() *cobra.Command {
	d := &dev{app: a}
	cmd := &cobra.Command{
		Use:     "dev",
		GroupID: groupTry,
		Short:   "an embedded Kafka broker and PostgreSQL, until interrupted",
		Long: `Starts an embedded Kafka broker (one node, for development) and a real
PostgreSQL on 127.0.0.1, prints where they are, and keeps them until it is
interrupted. What was acknowledged or committed is there again at the next
start in the same folder.`,
		Example: `  semel dev
  semel dev --kafka-port 9092 --postgres-port 5433`,
		Args: noArgs,
		RunE: run(d),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&d.dir, "dir", ".semel", "the folder that keeps everything")
	f.IntVar(&d.kafkaPort, "kafka-port", 0, "port of the broker; 0 takes a free one")
	f.IntVar(&d.postgresPort, "postgres-port", 0, "port of PostgreSQL; 0 takes a free one")
	f.BoolVar(&d.json, "json", false, "print a JSON object")
	return cmd
}

// Run keeps both services until ctx ends or one of them does.
func (d *dev) Run(ctx context.Context, _ []string) error {
	env, err := d.start(ctx, d.app)
	if err != nil {
		return err
	}
	if d.json {
		err = json.NewEncoder(d.out).Encode(map[string]string{
			"KAFKA_BROKERS": env.Brokers(), "DATABASE_URL": env.DatabaseURL(), "dir": d.dir,
		})
	} else {
		_, err = fmt.Fprintf(d.out, "KAFKA_BROKERS=%s\nDATABASE_URL=%s\n", env.Brokers(), env.DatabaseURL())
	}
	if err != nil {
		return errors.Join(err, env.Close())
	}
	d.talk("running in %s until interrupted", d.dir)
	select {
	case <-ctx.Done():
		if err := env.Close(); err != nil {
			return stuck(err, "")
		}
		return nil
	case <-env.Postgres().Done():
		env.Close()
		return stuck(errors.New("PostgreSQL ended"), "its log: "+env.Postgres().LogFile())
	}
}

func (d *devFlags) start(ctx context.Context, a *app) (*devenv.Env, error) {
	for _, p := range []struct {
		flag string
		port int
	}{{"--kafka-port", d.kafkaPort}, {"--postgres-port", d.postgresPort}} {
		if p.port < 0 || p.port > 65535 {
			return nil, usage(fmt.Errorf("%s: %d is no port", p.flag, p.port), "1 to 65535, or 0 for a free one")
		}
	}
	env, err := devenv.Start(ctx, devenv.Config{
		Dir: d.dir, KafkaPort: d.kafkaPort, PostgresPort: d.postgresPort, Talk: a.err,
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err() // what failed failed for that
	case err != nil:
		return nil, devFailure(err)
	}
	return env, nil
}

func devFailure(err error) error {
	var used *devenv.InUseError
	var taken *devenv.PortTakenError
	var none *devenv.NoPostgresError
	var path *fs.PathError
	switch {
	case errors.As(err, &used):
		return stuck(used, "end that process, or choose another folder with --dir")
	case errors.As(err, &taken):
		return stuck(fmt.Errorf("%s port %d is taken", taken.Service, taken.Port), "choose another with "+portFlag(taken.Service)+", or 0 for a free one")
	case errors.As(err, &none):
		return stuck(none, "")
	case errors.As(err, &path):
		return stuck(err, "choose another folder with --dir")
	}
	return stuck(err, "")
}

func portFlag(service string) string {
	if service == "Kafka" {
		return "--kafka-port"
	}
	return "--postgres-port"
}
