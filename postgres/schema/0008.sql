-- The inbox of a consumer becomes a ring of tables, all made when it is registered: new IDs go into the hot one, frozen
-- ones are asked, the oldest is emptied by TRUNCATE. Turning it blocks nobody: docs/design.md has the steps and the
-- interleaving that each prevents.
--
-- A program of before would write to its one table whatever the list says. So that one gets another name: who still runs
-- halts for a table that isn't there, and forgets nothing.

-- number is a table's place in the list, ascending with age of the youngest ID; null: unlisted. In both, the last two are hot.
ALTER TABLE semel.generation ADD COLUMN number bigint;

-- seen is how much time has passed since the list's version changed, by the clocks of the processes that turn the ring: the
-- database's own may jump. rotator is the one of them that does it now, and tried_at when it called last.
ALTER TABLE semel.ring ADD COLUMN seen interval NOT NULL DEFAULT '0', ADD COLUMN rotator uuid, ADD COLUMN tried_at timestamptz;

-- The record time of the newest message that was settled, by which a window in log time is measured.
ALTER TABLE semel.watermark ADD COLUMN record_time timestamptz;

-- The lock of a list's version is held, shared, by every transaction that works by that list.
CREATE FUNCTION semel.hold_ring(of_scope integer, version bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock_shared(hashtext('semel' || ' ring ' || $1::text), ($2 & 2147483647)::integer)
$$;
CREATE FUNCTION semel.test_ring(of_scope integer, version bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(hashtext('semel' || ' ring ' || $1::text), ($2 & 2147483647)::integer)
$$;

-- Makes the inbox tables of a scope, once. Only the owner of the schema may; afterwards no run needs DDL.
CREATE OR REPLACE FUNCTION semel.make_inbox(of_scope integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slots constant integer := 8;
    name  text;
BEGIN
    FOR n IN 1..slots LOOP
        CONTINUE WHEN EXISTS (SELECT FROM semel.generation g WHERE g.scope = of_scope AND g.slot = n);
        name := format('inbox_%s_%s', of_scope, n);
        EXECUTE format('CREATE TABLE %I.%I (PRIMARY KEY (id)) INHERITS (%I.inbox_all)', 'semel', name, 'semel');
        INSERT INTO semel.generation (scope, slot, state, relation)
            VALUES (of_scope, n, 'unlisted', to_regclass(format('%I.%I', 'semel', name)));
    END LOOP;
    INSERT INTO semel.ring (scope) VALUES (of_scope) ON CONFLICT DO NOTHING;
    UPDATE semel.generation g SET state = 'hot', number = 1, from_time = now()
        WHERE g.scope = of_scope AND g.slot = 1
          AND NOT EXISTS (SELECT FROM semel.generation l WHERE l.scope = of_scope AND l.number IS NOT NULL);
END
$$;

DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT * FROM semel.generation LOOP
        EXECUTE format('ALTER TABLE %s RENAME TO %I', g.relation, format('inbox_%s_1', g.scope));
        UPDATE semel.generation o SET slot = 1, number = 1 WHERE o.scope = g.scope;
        PERFORM semel.make_inbox(g.scope);
    END LOOP;
END
$$;
ALTER TABLE semel.generation ADD CONSTRAINT listed CHECK ((number IS NULL) = (state = 'unlisted'));

CREATE OR REPLACE VIEW semel.inbox AS
SELECT c.name AS consumer, g.scope, g.slot, i.id,
       CASE i.how WHEN 'a' THEN 'applied' ELSE 'dead' END AS how, i.digest, i.at
FROM semel.inbox_all i
JOIN semel.generation g ON g.relation::oid = i.tableoid AND g.number IS NOT NULL
LEFT JOIN semel.consumer c ON c.scope = g.scope;

-- The list by which this transaction works, its lock held until the end: frozen tables to ask, and hot ones to insert into,
-- the older first. Lock and list are read in every call, for ROLLBACK TO gives a lock back. The list is read after the lock
-- was tried, in a statement of its own: whoever tests the lock and finds it free has changed the list before.
CREATE FUNCTION semel.ring_of(consumer text, OUT frozen regclass[], OUT hot regclass[]) LANGUAGE plpgsql AS $$
DECLARE
    of_scope integer;
    known    bigint;
    held     boolean;
    listed   bigint;
BEGIN
    -- Under a snapshot older than the statement a list, and a row, that others committed in between would be missed.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'SM001',
            MESSAGE = format('the inbox refuses isolation level %s', current_setting('transaction_isolation')),
            HINT = 'begin the transaction as READ COMMITTED';
    END IF;
    IF ring_of.consumer IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no consumer';
    END IF;
    FOR i IN 1..2 LOOP
        SELECT r.scope, r.version INTO of_scope, known
            FROM semel.consumer c JOIN semel.ring r ON r.scope = c.scope WHERE c.name = ring_of.consumer;
        EXIT WHEN FOUND;
        PERFORM semel.register(ring_of.consumer);
    END LOOP;
    FOR i IN 1..10 LOOP
        held := semel.hold_ring(of_scope, known);
        SELECT r.version,
               coalesce(array_agg(g.relation ORDER BY g.number) FILTER (WHERE g.state = 'frozen'), '{}'),
               array_agg(g.relation ORDER BY g.number) FILTER (WHERE g.state = 'hot')
            INTO listed, frozen, hot
            FROM semel.ring r JOIN semel.generation g ON g.scope = r.scope AND g.number IS NOT NULL
            WHERE r.scope = of_scope GROUP BY r.version;
        IF held AND listed = known THEN
            RETURN;
        END IF;
        known := listed;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = format('the inbox of consumer %s has changed under every look', ring_of.consumer);
END
$$;

-- Records an ID and says whether it is fresh. A transaction that holds the same ID is waited for. Frozen tables are asked
-- before anything is inserted: else this and the turning of the ring could wait for one another.
CREATE OR REPLACE FUNCTION semel.admit(consumer text, id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    ring record;
    t    regclass;
    n    integer;
BEGIN
    IF admit.id IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no message ID',
            HINT = 'take what identifies the message: a header, fields, or topic, partition and offset';
    END IF;
    ring := semel.ring_of(admit.consumer);
    FOREACH t IN ARRAY ring.frozen LOOP
        EXECUTE format('SELECT FROM %s i WHERE i.id = $1', t) USING admit.id;
        GET DIAGNOSTICS n = ROW_COUNT;
        IF n > 0 THEN
            RETURN false;
        END IF;
    END LOOP;
    FOREACH t IN ARRAY ring.hot LOOP
        EXECUTE format('INSERT INTO %s (id) VALUES ($1) ON CONFLICT DO NOTHING', t) USING admit.id;
        GET DIAGNOSTICS n = ROW_COUNT;
        IF n = 0 THEN
            IF t <> ring.hot[1] THEN -- somebody who works by the next list was faster: what he made of it is in his row
                EXECUTE format('UPDATE %s i SET how = ''d'' WHERE i.id = $1', ring.hot[1]) USING admit.id;
            END IF;
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END
$$;

-- The same for many; answers the fresh ones. Inserted in order, so that two transactions can't wait for each other.
CREATE OR REPLACE FUNCTION semel.admit_batch(consumer text, ids uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
DECLARE
    ring  record;
    fresh uuid[];
    tried uuid[];
    t     regclass;
BEGIN
    IF array_position(admit_batch.ids, NULL) IS NOT NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'null is no message ID',
            DETAIL = format('number %s of the batch', array_position(admit_batch.ids, NULL));
    END IF;
    ring := semel.ring_of(admit_batch.consumer);
    fresh := ARRAY(SELECT DISTINCT u FROM unnest(admit_batch.ids) u);
    FOREACH t IN ARRAY ring.frozen LOOP -- one look-up for each: a join might read the table whole
        EXECUTE format('SELECT ARRAY(SELECT u FROM unnest($1) u'
            || ' LEFT JOIN LATERAL (SELECT i.id FROM %s i WHERE i.id = u LIMIT 1) k ON true WHERE k.id IS NULL)', t) INTO fresh USING fresh;
    END LOOP;
    FOREACH t IN ARRAY ring.hot LOOP
        tried := fresh;
        EXECUTE format('WITH n AS (INSERT INTO %s (id) SELECT u FROM unnest($1) u ORDER BY u ON CONFLICT DO NOTHING RETURNING id)'
            || ' SELECT ARRAY(SELECT id FROM n)', t) INTO fresh USING fresh;
        IF t <> ring.hot[1] AND cardinality(fresh) < cardinality(tried) THEN
            EXECUTE format('UPDATE %s i SET how = ''d'' WHERE i.id = ANY ($1) AND i.id <> ALL ($2)', ring.hot[1]) USING tried, fresh;
        END IF;
    END LOOP;
    RETURN QUERY SELECT u FROM unnest(fresh) u;
END
$$;

DROP PROCEDURE semel.forget(text, interval);
DROP FUNCTION semel.inbox_of(text);

-- Empties a table that no list names and that no transaction of an earlier list can name, unless somebody reads it. With
-- the rights of the schema's owner, for a role that runs routes has no right to TRUNCATE.
CREATE FUNCTION semel.empty_slot(of_scope integer, of_slot integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t regclass;
BEGIN
    PERFORM FROM semel.ring r WHERE r.scope = of_scope FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR NOT semel.test_ring(of_scope, (SELECT r.version - 1 FROM semel.ring r WHERE r.scope = of_scope)) THEN
        RETURN false;
    END IF;
    SELECT g.relation INTO t FROM semel.generation g
        WHERE g.scope = of_scope AND g.slot = of_slot AND g.number IS NULL FOR SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', t);
    EXECUTE format('TRUNCATE ONLY %s', t);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Turns the ring by one step at most, and says which: emptied, both (a second table is hot), frozen, dropped; busy
-- (somebody else is at it, or a transaction works by an older list), held (somebody reads what would be emptied), or null,
-- nothing is due. Each step wants a transaction of its own, READ COMMITTED.
--
-- keep is the window. log_time is the record time that the slowest partition has come to: a consumer that stands still, or
-- reads what is old, forgets nothing; null: unknown. size: IDs after which a table is full. me and since: who calls, and how
-- much time its own clock has seen since it called last; null: the database's clock is trusted.
CREATE FUNCTION semel.rotate(of_scope integer, consumer text, keep interval, log_time timestamptz, size bigint,
                             me uuid DEFAULT NULL, since interval DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    per_id  constant integer := 64; -- bytes: 60 without a digest, 76 with one
    ring    semel.ring;
    oldest  semel.generation; -- in the list
    hot     semel.generation; -- the older hot one
    newer   semel.generation; -- the newer hot one
    slot    semel.generation; -- in no list
    free    semel.generation; -- the one of these that is empty
    held    boolean := false; -- one of these could not be emptied
    place   timestamptz := CASE WHEN log_time IS NOT NULL THEN least(log_time, now()) END;
    share   interval;
    trusted boolean;
    locked  bigint[];
    carried uuid[];
    missed  bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'SM001',
            MESSAGE = format('the inbox refuses isolation level %s', current_setting('transaction_isolation')),
            HINT = 'begin the transaction as READ COMMITTED';
    END IF;
    SELECT * INTO ring FROM semel.ring r WHERE r.scope = of_scope FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 'busy';
    END IF;
    IF rotate.me IS NOT NULL THEN
        -- One process at a time, or the time that several see would count several times. Another takes over, from nothing, where
        -- that one has been silent for some calls.
        IF ring.rotator <> rotate.me
           AND ring.tried_at BETWEEN now() - least(interval '10 minutes', greatest(keep / 12, interval '10 seconds')) AND now() THEN
            RETURN 'busy';
        END IF;
        ring.seen := ring.seen + CASE WHEN ring.rotator = rotate.me THEN greatest(since, '0') ELSE '0' END;
        UPDATE semel.ring r SET seen = ring.seen, rotator = rotate.me, tried_at = now() WHERE r.scope = of_scope;
    END IF;
    IF NOT semel.test_ring(of_scope, ring.version - 1) THEN
        RETURN 'busy';
    END IF;

    SELECT * INTO oldest FROM semel.generation g WHERE g.scope = of_scope AND g.number IS NOT NULL ORDER BY g.number LIMIT 1;
    SELECT * INTO hot FROM semel.generation g WHERE g.scope = of_scope AND g.state = 'hot' ORDER BY g.number LIMIT 1;
    SELECT * INTO newer FROM semel.generation g WHERE g.scope = of_scope AND g.state = 'hot' AND g.number > hot.number;
    IF FOUND THEN
        -- Who writes to the older one alone can't be met any more by one who writes to the newer one alone.
        UPDATE semel.generation g SET state = 'frozen', token = gen_random_uuid(), to_time = now(),
               ids = pg_relation_size(g.relation) / per_id
            WHERE g.scope = of_scope AND g.slot = hot.slot;
        UPDATE semel.ring r SET version = ring.version + 1, seen = '0' WHERE r.scope = of_scope;
        RETURN 'frozen';
    END IF;

    FOR slot IN SELECT * FROM semel.generation g WHERE g.scope = of_scope AND g.number IS NULL ORDER BY g.slot LOOP
        IF pg_relation_size(slot.relation) = 0 THEN
            free := slot;
        ELSIF semel.empty_slot(of_scope, slot.slot) THEN
            RETURN 'emptied';
        ELSE
            held := true;
        END IF;
    END LOOP;

    SELECT keep / greatest(count(*) - 2, 1) INTO share FROM semel.generation g WHERE g.scope = of_scope;
    trusted := rotate.me IS NULL OR ring.seen >= share / 2;

    IF oldest.state = 'frozen' AND trusted AND place - keep >= oldest.to_time THEN
        -- The IDs of dead letters stay as long as these. Who handles one of them again has locked it: not now, then.
        EXECUTE format('SELECT array_agg(l.number), array_agg(l.id) FROM (SELECT d.number, d.id FROM %I.dead_letter d'
            || ' WHERE d.consumer = $1 AND d.state IN (''buried'', ''redrive'') AND EXISTS (SELECT FROM %s i WHERE i.id = d.id)'
            || ' FOR UPDATE SKIP LOCKED) l', 'semel', oldest.relation) INTO locked, carried USING rotate.consumer;
        EXECUTE format('SELECT count(*) FROM %I.dead_letter d'
            || ' WHERE d.consumer = $1 AND d.state IN (''buried'', ''redrive'') AND EXISTS (SELECT FROM %s i WHERE i.id = d.id)'
            || ' AND d.number <> ALL ($2)', 'semel', oldest.relation) INTO missed USING rotate.consumer, coalesce(locked, '{}');
        IF missed > 0 THEN
            RETURN 'busy';
        END IF;
        EXECUTE format('INSERT INTO %s (at, id, digest, how) SELECT i.at, i.id, i.digest, i.how FROM unnest($1) u'
            || ' JOIN LATERAL (SELECT * FROM %s i WHERE i.id = u LIMIT 1) i ON true ORDER BY i.id ON CONFLICT DO NOTHING',
            hot.relation, oldest.relation) USING ARRAY(SELECT DISTINCT u FROM unnest(carried) u);
        UPDATE semel.generation g SET state = 'unlisted', number = NULL, token = NULL, from_time = NULL, to_time = NULL, ids = NULL
            WHERE g.scope = of_scope AND g.slot = oldest.slot;
        UPDATE semel.ring r SET version = ring.version + 1, seen = '0' WHERE r.scope = of_scope;
        RETURN 'dropped';
    END IF;

    IF free.slot IS NOT NULL AND pg_relation_size(hot.relation) > 0
       AND (trusted AND place - share >= hot.from_time OR pg_relation_size(hot.relation) / per_id >= size) THEN
        UPDATE semel.generation g SET state = 'hot', number = hot.number + 1, from_time = now()
            WHERE g.scope = of_scope AND g.slot = free.slot;
        UPDATE semel.ring r SET version = ring.version + 1, seen = '0' WHERE r.scope = of_scope;
        RETURN 'both';
    END IF;
    RETURN CASE WHEN held THEN 'held' END;
END
$$;

-- Forgets what is older than keep (by default the window that a run recorded, else 7 days), counted back from where the
-- consumer last moved: one that stands still forgets nothing. IDs go with their table, which holds a sixth of the window:
-- call it that often at least. It works in small transactions of its own, so it can't be called inside one.
CREATE PROCEDURE semel.forget(consumer text, keep interval DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
    of_ring integer;
    kept    interval;
    moved   timestamptz;
    young   timestamptz;
    t       regclass;
    step    text;
BEGIN
    SELECT c.scope, coalesce(forget.keep, nullif(c.inbox_window, '0'), '7 days') INTO of_ring, kept
        FROM semel.consumer c JOIN semel.ring r ON r.scope = c.scope WHERE c.name = forget.consumer;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('consumer %s has no inbox', coalesce(forget.consumer, 'null'));
    END IF;
    IF kept < '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('IDs can''t be kept for %s', kept);
    END IF;
    SELECT max(w.updated_at) INTO moved FROM semel.watermark w WHERE w.consumer = forget.consumer;
    FOR t IN SELECT g.relation FROM semel.generation g WHERE g.scope = of_ring AND g.state = 'hot' LOOP
        EXECUTE format('SELECT max(i.at) FROM %s i', t) INTO young;
        moved := greatest(moved, young);
    END LOOP;
    FOR i IN 1..20 LOOP
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        step := semel.rotate(of_ring, forget.consumer, kept, moved, 5000000);
        COMMIT;
        IF step = 'busy' THEN
            RAISE NOTICE 'the inbox of consumer % is in use: not all that is due was done', forget.consumer;
        END IF;
        EXIT WHEN step IS NULL OR step IN ('busy', 'held');
    END LOOP;
END
$$;
