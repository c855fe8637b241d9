package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
	"github.com/semelhq/semel/registry"
)

// parts are the connections that a process has beside those of its lanes: what
// looks, and is not in anybody's way.
type parts struct {
	file   *config.File
	log    *slog.Logger
	pool   *pgxpool.Pool
	memory *postgres.Status
	rings  *postgres.Rings
	kafka  []kgo.Opt // of every client
	admin  *kafka.Admin

	registry *registry.Registry // nil: the file names none
	decoders map[string]decoders
}

// reachWithin is how long a server may take to answer at the start. Later,
// outages are waited out.
const reachWithin = 10 * time.Second

// open connects to both and finds out whether they answer.
func open(ctx context.Context, f *config.File, log *slog.Logger) (_ *parts, err error) {
	p, err := prepare(f, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := p.reachDatabase(ctx); err != nil {
		return nil, err
	}
	if err := p.reachBroker(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// prepare connects to nothing yet.
func prepare(f *config.File, log *slog.Logger) (*parts, error) {
	p := &parts{file: f, log: log}
	cfg, err := poolConfig(f)
	if err != nil {
		return nil, err
	}
	if p.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, &StartError{What: "database", Err: err}
	}
	p.memory = postgres.NewStatus(p.pool, f.Database.Schema)
	p.rings = postgres.NewRings(p.pool, postgres.RingsConfig{Schema: f.Database.Schema, Memory: cmp.Or(f.Filters, -1), Logger: log})
	if p.kafka, err = KafkaOptions(f.Kafka); err != nil {
		p.close()
		return nil, err
	}
	if p.admin, err = kafka.NewAdmin(kafka.AdminConfig{Brokers: f.Kafka.Brokers, Options: p.kafka}); err != nil {
		p.close()
		return nil, &StartError{What: "kafka", Err: err}
	}
	if err := p.formats(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *parts) close() {
	if p.registry != nil {
		p.registry.Close()
	}
	if p.admin != nil {
		p.admin.Close()
	}
	if p.rings != nil {
		p.rings.Close()
	}
	if p.pool != nil {
		p.pool.Close()
	}
}

func (p *parts) reachDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	if err := p.pool.Ping(ctx); err != nil {
		return &StartError{What: "database", Err: Plain(err), Hint: databaseHint(err)}
	}
	return nil
}

// databaseHint is what to look at: a server that answered was found.
func databaseHint(err error) string {
	const where = "database in the file, or --database, "
	var pg *pgconn.PgError
	switch errors.As(err, &pg); {
	case pg != nil && pg.Code == "3D000":
		return where + "names it after the host; semel makes tables, not databases"
	case pg != nil && strings.HasPrefix(pg.Code, "28"):
		return where + "names user and password"
	case pg != nil && pg.Code == "42704":
		return where + "has a parameter that PostgreSQL doesn't know"
	}
	return where + "says where it is, and in sslmode whether TLS is needed"
}

func (p *parts) reachBroker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	if _, err := p.admin.Cluster(ctx); err != nil {
		return &StartError{What: "broker " + brokers(p.file), Err: Plain(err), Hint: "kafka.brokers in the file, or --brokers, says where it is"}
	}
	return nil
}

// tables makes Semel's tables in a database that has none, and upgrades older
// ones if told to.
func (p *parts) tables(ctx context.Context, upgrade bool) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return &StartError{What: "database", Err: Plain(err)}
	}
	defer conn.Release()
	state, version, err := postgres.SchemaState(ctx, conn, p.file.Database.Schema)
	if err != nil {
		return &StartError{What: "database", Err: err}
	}
	switch state {
	case postgres.SchemaCurrent:
		return nil
	case postgres.SchemaMissing:
	case postgres.SchemaOlder:
		if !upgrade {
			return &StartError{What: "tables", Err: &postgres.SchemaError{Schema: p.file.Database.Schema, State: state, Version: version}, Hint: "semel migrate, or run --migrate"}
		}
	default:
		e := &postgres.SchemaError{Schema: p.file.Database.Schema, State: state, Version: version}
		return &StartError{What: "tables", Err: e, Hint: e.Hint()}
	}
	if _, err := postgres.Migrate(ctx, conn.Conn(), postgres.MigrateConfig{Schema: p.file.Database.Schema}); err != nil {
		return &StartError{What: "tables", Err: err, Hint: "semel migrate --print shows what a role with the privileges has to do"}
	}
	return nil
}

// consumer is what is recorded of a consumer; ok says whether there is any.
func (p *parts) consumer(ctx context.Context, name string) (c postgres.ConsumerRow, ok bool, err error) {
	all, err := p.memory.Consumers(ctx)
	for _, c := range all {
		if c.Name == name {
			return c, true, nil
		}
	}
	return c, false, err
}

// renamed answers a halt where a new consumer looks like one of another name: without
// a group's place to take over it would take every message again.
func (p *parts) renamed(ctx context.Context, r config.Route) error {
	if r.From.Start.Mode != config.StartGroup {
		return nil
	}
	lives := func(consumer string) bool { // an error is met by the lane as well, which waits
		rows, err := p.memory.Watermarks(ctx, consumer)
		return err != nil || len(rows) > 0
	}
	all, err := p.memory.Consumers(ctx)
	if err != nil || lives(r.Consumer) {
		return nil
	}
	was := ""
	for _, c := range all {
		same := c.Target == targetName(r) && slices.Equal(slices.Sorted(slices.Values(c.Topics)), recordedTopics(r))
		named := slices.ContainsFunc(p.file.Routes, func(o config.Route) bool { return o.Consumer == c.Name })
		if same && !named && lives(c.Name) {
			was = c.Name
		}
	}
	if was == "" {
		return nil
	}
	if acked, err := p.acked(ctx, r.From.Group); err != nil || len(acked) > 0 {
		return nil // its signature says whose it is
	}
	return &inbox.HaltError{
		Kind: "renamed", Why: fmt.Sprintf("consumer %s is new, and %s, which this file doesn't have, recorded the same topics and target: it would take effect again from the beginning", r.Consumer, was),
		Hint: fmt.Sprintf("consumer: %s goes on with its memory; start: earliest, latest or a time says that a new one begins, and so does --accept-change once", was),
	}
}

// recordedTopics are those of the route as its consumer records them.
func recordedTopics(r config.Route) []string {
	if r.From.Matching != "" {
		return []string{kafka.MatchingName(r.From.Matching)}
	}
	return slices.Sorted(slices.Values(r.From.Topics))
}

// stable is the last stable offset of every partition of the topics.
func (p *parts) stable(ctx context.Context, topics []string) (target, error) {
	logs, err := p.admin.Logs(ctx, topics...)
	if err != nil {
		return nil, err
	}
	t := target{}
	for _, l := range logs {
		t[l.Partition] = l.Stable
	}
	return t, nil
}

// poolExtra is how many connections are needed beside one a lane: to look, and to
// build filters.
const poolExtra = 4

// poolConfig is the file's database, with its secrets read anew for each
// connection.
func poolConfig(f *config.File) (*pgxpool.Config, error) {
	db := f.Database
	url, err := db.URL.Reveal()
	if err != nil {
		return nil, &StartError{What: "database", Err: err}
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, &StartError{What: "database", Err: ErrBadURL, Hint: "like postgres://user@host:5432/name"}
	}
	cfg.MaxConns = int32(lanesOf(f.Routes)) + poolExtra
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "semel"
	}
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // a role or a database may have another
	cfg.ConnConfig.DialFunc = dialDatabase
	cfg.ConnConfig.OnPgError = postgres.CloseOnFatal
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = reachWithin
	}
	if cfg.PingTimeout == 0 {
		// The pool pings what was idle, for as long as it takes; a server that
		// says nothing would keep the process from ending.
		cfg.PingTimeout = 5 * time.Second
	}
	if db.Password.IsSet() {
		cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) (err error) {
			c.Password, err = db.Password.Reveal()
			return err
		}
	}
	return cfg, nil
}

// ErrBadURL says that the file, or a flag, names no database at all.
var ErrBadURL = errors.New("neither a URL nor key=value words that PostgreSQL knows")
