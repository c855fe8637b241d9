-- For people with a loop of their own: IDs of several parts, batches of IDs as they were sent, forgetting without a
-- daemon, and the watermark inside a transaction of theirs.

-- The message ID of several parts, by the same rule as semel.IDOf in Go: each counts with its length, so that
-- ('a', 'bc') and ('ab', 'c') differ. A part that is null: no ID.
CREATE FUNCTION semel.id_of(VARIADIC parts text[]) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE cardinality(parts)
        WHEN 1 THEN semel.id_of(parts[array_lower(parts, 1)])
        ELSE (SELECT CASE WHEN bool_and(u IS NOT NULL) THEN
                  encode(substr(sha256(string_agg(int8send(octet_length(convert_to(u, 'UTF8'))) || convert_to(u, 'UTF8'), '' ORDER BY n)), 1, 16), 'hex')::uuid
              END FROM unnest(parts) WITH ORDINALITY p(u, n))
    END
$$;

-- Null is no message ID, and as an argument it is nearly always a mistake: a header that isn't there.
CREATE OR REPLACE FUNCTION semel.admit(consumer text, id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    n integer;
BEGIN
    IF admit.id IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no message ID',
            HINT = 'take what identifies the message: a header, fields, or topic, partition and offset';
    END IF;
    EXECUTE format('INSERT INTO %s (id) VALUES ($1) ON CONFLICT DO NOTHING', semel.inbox_of(admit.consumer))
        USING admit.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n = 1;
END
$$;

CREATE OR REPLACE FUNCTION semel.admit_batch(consumer text, ids uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    IF array_position(admit_batch.ids, NULL) IS NOT NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no message ID',
            DETAIL = format('number %s of the batch', array_position(admit_batch.ids, NULL));
    END IF;
    RETURN QUERY EXECUTE format(
        'INSERT INTO %s (id) SELECT DISTINCT u FROM unnest($1) u ORDER BY u ON CONFLICT DO NOTHING RETURNING id',
        semel.inbox_of(admit_batch.consumer)) USING admit_batch.ids;
END
$$;

-- The same for IDs as they were sent; answers the fresh ones, each once, in the order given.
CREATE FUNCTION semel.admit_batch(consumer text, ids text[]) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT s.sent
    FROM (SELECT DISTINCT ON (semel.id_of(u)) semel.id_of(u) AS id, u AS sent, n
          FROM unnest($2) WITH ORDINALITY x(u, n) ORDER BY semel.id_of(u), n) s
    JOIN semel.admit_batch($1, ARRAY(SELECT semel.id_of(u) FROM unnest($2) WITH ORDINALITY x(u, n) ORDER BY n)) fresh ON fresh = s.id
    ORDER BY s.n
$$;

CREATE OR REPLACE FUNCTION semel.inbox_of(consumer text) RETURNS regclass LANGUAGE plpgsql AS $$
DECLARE
    hot regclass;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'SM001',
            MESSAGE = format('the inbox refuses isolation level %s', current_setting('transaction_isolation')),
            HINT = 'begin the transaction as READ COMMITTED';
    END IF;
    IF inbox_of.consumer IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no consumer';
    END IF;
    FOR i IN 1..2 LOOP
        SELECT g.relation INTO hot
            FROM semel.consumer c JOIN semel.generation g ON g.scope = c.scope AND g.state = 'hot'
            WHERE c.name = inbox_of.consumer;
        IF FOUND THEN
            RETURN hot;
        END IF;
        PERFORM semel.register(inbox_of.consumer);
    END LOOP;
    RAISE EXCEPTION 'consumer % has no inbox after it was registered', inbox_of.consumer;
END
$$;

-- Removes IDs that are older than keep (by default the window that a run recorded, else 7 days), counted back from
-- where the consumer last moved: one that stands still forgets nothing. IDs of dead letters that are still open stay.
-- It walks the table in small transactions of its own, so it can't be called inside one.
CREATE PROCEDURE semel.forget(consumer text, keep interval DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
    step    constant bigint := 64; -- pages: about 8,000 IDs
    inbox   regclass;
    of_ring integer;
    kept    interval;
    cutoff  timestamptz;
    page    bigint := 0;
    pages   bigint;
BEGIN
    SELECT g.relation, g.scope, coalesce(forget.keep, nullif(c.inbox_window, '0'), '7 days') INTO inbox, of_ring, kept
        FROM semel.consumer c JOIN semel.generation g ON g.scope = c.scope AND g.state = 'hot'
        WHERE c.name = forget.consumer;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('consumer %s has no inbox', coalesce(forget.consumer, 'null'));
    END IF;
    IF kept < '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('IDs can''t be kept for %s', kept);
    END IF;
    EXECUTE format('SELECT max(i.at), pg_relation_size($1) / current_setting(''block_size'')::bigint FROM %s i', inbox)
        INTO cutoff, pages USING inbox;
    cutoff := least(now(), greatest(cutoff, (SELECT max(w.updated_at) FROM semel.watermark w WHERE w.consumer = forget.consumer))) - kept;
    WHILE page < pages LOOP
        IF NOT pg_try_advisory_xact_lock(hashtextextended('semel' || ' forget ' || forget.consumer, 0)) THEN
            RAISE NOTICE 'somebody else is removing IDs of consumer %', forget.consumer;
            RETURN;
        END IF;
        EXECUTE format('DELETE FROM %s i WHERE i.ctid >= (''('' || $1 || '',0)'')::tid AND i.ctid < (''('' || $2 || '',0)'')::tid'
            || ' AND i.at < $3 AND NOT (i.how = ''d'' AND EXISTS (SELECT FROM %I.dead_letter d'
            || ' WHERE d.consumer = $4 AND d.id = i.id AND d.state IN (''buried'', ''redrive'')))', inbox, 'semel')
            USING page, page + step, cutoff, forget.consumer;
        page := page + step;
        COMMIT;
    END LOOP;
    UPDATE semel.generation g SET from_time = greatest(g.from_time, cutoff) WHERE g.scope = of_ring AND g.relation = inbox;
END
$$;
