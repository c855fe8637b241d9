package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// DefaultSchema is where Semel's own tables live if nothing else is said.
const DefaultSchema = "semel"

// Version is the version of the tables that this program knows, and minVersion
// the oldest program that works on them: a program runs while the tables'
// min_version <= its own Version. A release expands, a later one contracts.
const (
	Version    = 8
	minVersion = 8
)

// schemaName is the schema of Semel's tables, as SQL in this package is rendered
// with it: statements are written with the default name.
type schemaName string

func nameOf(schema string) schemaName {
	if schema == "" {
		return DefaultSchema
	}
	return schemaName(schema)
}

func (n schemaName) quoted() string { return pgx.Identifier{string(n)}.Sanitize() }

func (n schemaName) sql(text string) string {
	if n == DefaultSchema {
		return text
	}
	literal := "'" + strings.ReplaceAll(string(n), "'", "''") + "'"
	return strings.NewReplacer("semel.", n.quoted()+".", "'semel'", literal).Replace(text)
}

// MigrateConfig says where the tables are.
type MigrateConfig struct {
	Schema string // "": DefaultSchema
}

// MigrateResult is what a migration found and left.
type MigrateResult struct {
	From, To int    // versions; From 0: there was nothing
	Database string // the database's identity
}

// Migrate makes Semel's tables or brings them up to [Version], in one
// transaction. Who migrates at the same time waits. Tables that are too new for
// this program are a [*SchemaError].
func Migrate(ctx context.Context, conn *pgx.Conn, cfg MigrateConfig) (res MigrateResult, err error) {
	n := nameOf(cfg.Schema)
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, n.sql(lockMigration)); err != nil {
			return err
		}
		state, version, err := SchemaState(ctx, tx, string(n))
		if err != nil {
			return err
		}
		if state == SchemaNewer {
			return &SchemaError{Schema: string(n), State: state, Version: version}
		}
		res.From, res.To = version, max(version, Version)
		if version < Version {
			text, err := n.steps(version)
			if err != nil {
				return err
			}
			// CREATE SCHEMA IF NOT EXISTS wants a privilege on the database even
			// where the schema exists.
			var exists bool
			if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, string(n)).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				text = "CREATE SCHEMA " + n.quoted() + ";\n" + text
			}
			if _, err := tx.Exec(ctx, text); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, n.sql(selectIdentity)).Scan(&res.Database)
	})
	if err != nil {
		return MigrateResult{}, fmt.Errorf("migrate schema %s: %w", n, err)
	}
	return res, nil
}

const (
	lockMigration  = `SELECT pg_advisory_xact_lock(hashtextextended('semel' || ' migrate', 0))`
	selectIdentity = `SELECT identity::text FROM semel.database`
)

// steps is the SQL that leads from a version to ours.
func (n schemaName) steps(from int) (string, error) {
	var b strings.Builder
	if from == 0 {
		b.WriteString(n.sql(`CREATE TABLE semel.schema_version (
    version     integer PRIMARY KEY,
    min_version integer NOT NULL,
    made_at     timestamptz NOT NULL DEFAULT now()
);
`))
	}
	for v := from + 1; v <= Version; v++ {
		text, err := schemaFiles.ReadFile(fmt.Sprintf("schema/%04d.sql", v))
		if err != nil {
			return "", err
		}
		b.WriteString(n.sql(string(text)))
	}
	b.WriteString(n.sql(fmt.Sprintf("INSERT INTO semel.schema_version (version, min_version) VALUES (%d, %d);\n", Version, minVersion)))
	return b.String(), nil
}

// MigrationSQL is what [Migrate] does to an empty database, as a script.
func MigrationSQL(schema string) string {
	n := nameOf(schema)
	steps, err := n.steps(0)
	if err != nil {
		panic(err) // the files are part of the program
	}
	return "BEGIN;\n" + n.sql(lockMigration) + ";\nCREATE SCHEMA IF NOT EXISTS " + n.quoted() + ";\n" + steps + "COMMIT;\n"
}

// GrantSQL is a script that gives a role what running routes needs: to read and
// write Semel's tables, those of consumers registered later too. Run it as the
// owner of the schema. It does not let the role register consumers that have an
// inbox (`semel migrate FILE` does that), and ending a zombie needs the zombie's
// role or pg_signal_backend.
func GrantSQL(schema, role string) string {
	n, r := nameOf(schema).quoted(), pgx.Identifier{role}.Sanitize()
	return strings.NewReplacer("SCHEMA_NAME", n, "ROLE_NAME", r).Replace(`GRANT USAGE ON SCHEMA SCHEMA_NAME TO ROLE_NAME;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA SCHEMA_NAME TO ROLE_NAME;
REVOKE INSERT, UPDATE, DELETE ON SCHEMA_NAME.schema_version, SCHEMA_NAME.database FROM ROLE_NAME;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA SCHEMA_NAME TO ROLE_NAME;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA SCHEMA_NAME TO ROLE_NAME;
ALTER DEFAULT PRIVILEGES IN SCHEMA SCHEMA_NAME GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO ROLE_NAME;
ALTER DEFAULT PRIVILEGES IN SCHEMA SCHEMA_NAME GRANT USAGE ON SEQUENCES TO ROLE_NAME;
ALTER DEFAULT PRIVILEGES IN SCHEMA SCHEMA_NAME GRANT EXECUTE ON FUNCTIONS TO ROLE_NAME;
`)
}

// NewIdentity gives the database a new identity: for a copy that must not take
// the original's acks for its own. It answers the new one.
func NewIdentity(ctx context.Context, conn *pgx.Conn, schema string) (identity string, err error) {
	err = conn.QueryRow(ctx, nameOf(schema).sql(`UPDATE semel.database SET identity = gen_random_uuid(), made_at = now() RETURNING identity::text`)).Scan(&identity)
	return identity, err
}

// State says how a database's tables stand to this program.
type State string

const (
	SchemaMissing State = "missing" // there are none
	SchemaCurrent State = "current" // this program runs on them
	SchemaOlder   State = "older"   // they must be migrated first
	SchemaNewer   State = "newer"   // this program is too old for them
)

// SchemaState says how the tables in the schema stand to this program, and
// their version (0: none). Tables of a later version that still suit this
// program are current.
func SchemaState(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, schema string,
) (State, int, error) {
	n := nameOf(schema)
	var exists bool
	err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'schema_version')`, string(n)).Scan(&exists)
	if err != nil {
		return "", 0, err
	}
	if !exists {
		return SchemaMissing, 0, nil
	}
	var version, least int
	err = db.QueryRow(ctx, n.sql(`SELECT version, min_version FROM semel.schema_version ORDER BY version DESC LIMIT 1`)).Scan(&version, &least)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return SchemaMissing, 0, nil
	case err != nil:
		return "", 0, err
	case least > Version:
		return SchemaNewer, version, nil
	case version < Version:
		return SchemaOlder, version, nil
	}
	return SchemaCurrent, version, nil
}

// SchemaError says that Semel's tables are not there or not of a version that
// this program can use.
type SchemaError struct {
	Schema  string
	State   State
	Version int
}

func (e *SchemaError) Error() string {
	if e.State == SchemaMissing {
		return fmt.Sprintf("schema %s has no tables of Semel", e.Schema)
	}
	return fmt.Sprintf("the tables in schema %s have version %d, which is %s than this program's %d", e.Schema, e.Version, e.State, Version)
}

// Hint says what helps.
func (e *SchemaError) Hint() string {
	if e.State == SchemaNewer {
		return "run a newer semel"
	}
	return "run semel migrate, or call postgres.Migrate"
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
