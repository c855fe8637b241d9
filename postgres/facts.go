package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Facts are what a server says of itself, as far as they bear on the promise.
type Facts struct {
	Version           int // 150004
	Recovery          bool
	SynchronousCommit string
	FSync             string
	FullPageWrites    string
	Encoding          string
	Role              string
	Connections       int // that ordinary roles may open
	Used              int
	Now               time.Time
	// Pooled: what we are connected to is not the server itself.
	Pooled bool
}

// ReadFacts asks the server behind a connection.
func ReadFacts(ctx context.Context, conn *pgx.Conn) (f Facts, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, `
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('synchronous_commit'),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('server_encoding'), current_user,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(), pg_backend_pid()`).Scan(
		&f.Version, &f.Recovery, &f.SynchronousCommit, &f.FSync, &f.FullPageWrites, &f.Encoding, &f.Role,
		&f.Connections, &f.Used, &f.Now, &pid)
	f.Pooled = pid != conn.PgConn().PID()
	return f, err
}

// MissingPrivileges says what the role lacks to write to the table in that way,
// and to use Semel's tables if they are there.
func MissingPrivileges(ctx context.Context, db Querier, schema string, table TableName, write WriteMode) ([]string, error) {
	need := map[WriteMode][]string{
		WriteAppend: {"INSERT"},
		WriteInsert: {"INSERT", "SELECT"},
		WriteUpsert: {"INSERT", "SELECT", "UPDATE"},
	}[write]
	rows, err := db.Query(ctx, nameOf(schema).sql(`
SELECT format('%s on table %s', p, $1::text)
FROM unnest($2::text[]) p WHERE to_regclass($1) IS NOT NULL AND NOT has_table_privilege(to_regclass($1), p)
UNION ALL
SELECT format('%s on table %s', p, c.oid::regclass)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) p
WHERE n.nspname = 'semel' AND c.relname IN ('consumer', 'watermark', 'dead_letter', 'event')
  AND has_schema_privilege(n.oid, 'USAGE') AND NOT has_table_privilege(c.oid, p)
UNION ALL
SELECT format('USAGE on schema %I', n.nspname) FROM pg_namespace n
WHERE n.nspname = 'semel' AND NOT has_schema_privilege(n.oid, 'USAGE')`), table.sql(), need)
	if err != nil {
		return nil, err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("privileges: %w", err)
	}
	return missing, nil
}

// Register makes the memory of a consumer, so that a role that may not make
// tables can run it. It does nothing if it is there.
func Register(ctx context.Context, conn *pgx.Conn, schema, consumer string) error {
	_, err := conn.Exec(ctx, nameOf(schema).sql(`SELECT semel.register($1)`), consumer)
	return err
}
