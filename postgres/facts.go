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
	// ReadOnly: transactions of this role begin as read only.
	ReadOnly bool
	// Async are the standbys that no COMMIT waits for, as far as this role sees them.
	Async int
	// Waits: COMMIT is meant to wait for standbys (synchronous_standby_names).
	Waits bool
}

// ReadFacts asks the server behind a connection.
func ReadFacts(ctx context.Context, conn *pgx.Conn) (f Facts, err error) {
	var pid uint32
	err = conn.QueryRow(ctx, `
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('synchronous_commit'),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('server_encoding'), current_user,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(), pg_backend_pid(),
       current_setting('default_transaction_read_only')::boolean, current_setting('synchronous_standby_names') <> '',
       (SELECT count(*) FROM pg_stat_replication r WHERE coalesce(r.sync_state, 'async') = 'async'
        AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))`).Scan(
		&f.Version, &f.Recovery, &f.SynchronousCommit, &f.FSync, &f.FullPageWrites, &f.Encoding, &f.Role,
		&f.Connections, &f.Used, &f.Now, &pid, &f.ReadOnly, &f.Waits, &f.Async)
	f.Pooled = pid != conn.PgConn().PID()
	return f, err
}

// TableFacts are what the catalog says of a target, as far as it bears on the promise.
type TableFacts struct {
	// Unlogged: a crash of the server empties it, or a partition of it.
	Unlogged bool
	// Foreign: it, or a partition of it, lies on another server, and outside the
	// transaction.
	Foreign bool
	// Subscriptions write to it too. Publications copy it without its memory.
	Subscriptions, Publications []string
}

// ReadTableFacts asks the catalog; a table that isn't there has none.
func ReadTableFacts(ctx context.Context, db Querier, schema string, table TableName) (f TableFacts, err error) {
	rows, err := db.Query(ctx, nameOf(schema).sql(`
WITH target AS (SELECT to_regclass($1)::oid AS oid),
     parts AS (SELECT c.* FROM pg_class c, target t
               WHERE c.oid = t.oid OR t.oid IS NOT NULL AND c.oid IN (SELECT relid FROM pg_partition_tree(t.oid)))
SELECT coalesce((SELECT bool_or(relpersistence = 'u') FROM parts), false), coalesce((SELECT bool_or(relkind = 'f') FROM parts), false),
       ARRAY(SELECT DISTINCT s.subname::text FROM pg_subscription s JOIN pg_subscription_rel r ON r.srsubid = s.oid JOIN parts p ON p.oid = r.srrelid ORDER BY 1),
       ARRAY(SELECT DISTINCT t.pubname::text FROM pg_publication_tables t, parts p JOIN pg_namespace n ON n.oid = p.relnamespace
             WHERE t.schemaname = n.nspname AND t.tablename = p.relname AND NOT EXISTS (
                 SELECT FROM pg_publication_tables m WHERE m.pubname = t.pubname AND m.schemaname = 'semel' AND m.tablename = 'watermark') ORDER BY 1)`),
		table.sql())
	if err != nil {
		return f, err
	}
	_, err = pgx.ForEachRow(rows, []any{&f.Unlogged, &f.Foreign, &f.Subscriptions, &f.Publications}, func() error { return nil })
	return f, err
}

// UnloggedMemory are Semel's own tables that a crash of the server would empty.
func UnloggedMemory(ctx context.Context, db Querier, schema string) ([]string, error) {
	rows, err := db.Query(ctx, nameOf(schema).sql(`
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'semel' AND c.relpersistence = 'u' AND c.relkind = 'r'
  AND (c.relname IN ('consumer', 'watermark', 'dead_letter', 'ring', 'generation') OR c.relname LIKE 'inbox\_%') ORDER BY 1`))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// MissingPrivileges says what the role lacks to write to the table in that way,
// and to use Semel's tables if they are there.
func MissingPrivileges(ctx context.Context, db Querier, schema string, table TableName, write WriteMode) ([]string, error) {
	need := map[WriteMode][]string{
		WriteAppend: {"INSERT"},
		WriteInsert: {"INSERT", "SELECT"},
		WriteUpsert: {"INSERT", "SELECT", "UPDATE"},
		WriteMirror: {"INSERT", "SELECT", "UPDATE", "DELETE"},
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
