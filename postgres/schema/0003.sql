-- The watermark inside a transaction of one's own: a claim for each assignment, then an advance first in each
-- transaction. What a route or inbox.Inbox does by itself, for people with a loop of their own.

-- How sessions of a consumer name themselves while they hold its rows, before the claim's token: application_name takes
-- 63 bytes, and long names end in a hash, so that two of them differ.
CREATE FUNCTION semel.session_of(consumer text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT 'semel/' || CASE WHEN octet_length(plain) > 20 OR plain <> $1
        THEN left(plain, 11) || '~' || encode(substr(sha256(convert_to($1, 'UTF8')), 1, 4), 'hex') ELSE plain END || '/'
    FROM regexp_replace($1, '[^!-.0-~]', '_', 'g') plain
$$;

-- Takes the partition: answers a new token, and where to seek. start is where a consumer without a row begins; say the
-- same every time, such as the log's beginning, for a database that is put back to before the first claim asks again.
-- topic_id, where the client knows it, tells a topic that was deleted and made again.
--
-- Whoever still holds the row after two seconds does so under an older claim: its session is ended, for a stopped
-- process would never let go. Sessions of other roles need pg_signal_backend.
CREATE FUNCTION semel.claim(consumer text, topic text, partition integer, start bigint, topic_id uuid DEFAULT NULL)
RETURNS TABLE (token uuid, next_offset bigint, generation bigint) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    known uuid;
    ended integer;
BEGIN
    IF claim.consumer IS NULL OR claim.topic IS NULL OR claim.partition IS NULL OR claim.start IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'a claim needs consumer, topic, partition and start';
    END IF;
    IF EXISTS (SELECT FROM semel.consumer c WHERE c.name = claim.consumer AND c.memory IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'SM005',
            MESSAGE = format('consumer %s is run by a route or by inbox.Inbox', claim.consumer),
            HINT = 'give a loop of your own a consumer of its own';
    END IF;
    FOR try IN 1..3 LOOP
        BEGIN
            INSERT INTO semel.watermark AS w (consumer, topic, partition, topic_id, start_offset, next_offset, generation, claim_token, owner)
            VALUES (claim.consumer, claim.topic, claim.partition, claim.topic_id, claim.start, claim.start, 1, gen_random_uuid(),
                jsonb_build_object('name', coalesce(nullif(current_setting('application_name'), ''), session_user::text), 'at', now()))
            ON CONFLICT (consumer, topic, partition) DO UPDATE SET
                generation = w.generation + 1, claim_token = excluded.claim_token, owner = excluded.owner,
                topic_id = coalesce(w.topic_id, excluded.topic_id), updated_at = clock_timestamp()
            RETURNING w.claim_token, w.next_offset, w.generation, w.topic_id
            INTO claim.token, claim.next_offset, claim.generation, known;
            IF known <> claim.topic_id THEN
                RAISE EXCEPTION USING ERRCODE = 'SM005',
                    MESSAGE = format('topic %s was made again: the row knows it as %s, the broker as %s', claim.topic, known, claim.topic_id),
                    HINT = 'to begin anew, take another name for the consumer, or delete its rows of this topic from the table watermark';
            END IF;
            RETURN NEXT;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            -- Nobody waits any more, so pg_blocking_pids would say nothing; the row's xmax is who holds it. Unless that
            -- advanced under a savepoint, whose own lock is gone: then the session is the one that has the row's token.
            SELECT count(pg_terminate_backend(a.pid, 1000)) INTO ended
                FROM semel.watermark w
                JOIN pg_stat_activity a
                  ON a.pid IN (SELECT l.pid FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid = w.xmax)
                  OR a.backend_xid IS NOT NULL AND a.application_name = semel.session_of(claim.consumer) || w.claim_token
                WHERE w.consumer = claim.consumer AND w.topic = claim.topic AND w.partition = claim.partition
                  AND a.pid <> pg_backend_pid() AND starts_with(a.application_name, semel.session_of(claim.consumer));
            IF ended = 0 OR try = 3 THEN
                RAISE;
            END IF;
            INSERT INTO semel.event (consumer, topic, partition, kind)
                VALUES (claim.consumer, claim.topic, claim.partition, 'zombie-ended');
        END;
    END LOOP;
END
$$;

-- Moves the partition's watermark from one offset to another, if the claim still holds and the row still stands where
-- this run of messages began; else SM004, and with it this transaction is lost; so is it by 55P03, if another session
-- holds the row for two seconds, perhaps a dead one of one's own. Call it first in the transaction, before any effect. from_offset is where the last one ended or what the claim answered, not the first message's offset: logs
-- have holes. Any isolation level.
CREATE FUNCTION semel.advance(consumer text, topic text, partition integer, token uuid, from_offset bigint, to_offset bigint)
RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    what text;
BEGIN
    IF (advance.to_offset >= advance.from_offset AND advance.token IS NOT NULL) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('can''t advance from %s to %s', coalesce(advance.from_offset::text, 'null'), coalesce(advance.to_offset::text, 'null'));
    END IF;
    PERFORM set_config('application_name', semel.session_of(advance.consumer) || advance.token, true);
    -- Not under a savepoint: claim finds who holds a row by its xmax.
    UPDATE semel.watermark w SET next_offset = advance.to_offset, updated_at = clock_timestamp()
        WHERE w.consumer = advance.consumer AND w.topic = advance.topic AND w.partition = advance.partition
          AND w.claim_token = advance.token AND w.next_offset = advance.from_offset;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT CASE
            WHEN w.claim_token IS DISTINCT FROM advance.token THEN 'fenced by a later claim'
            WHEN w.next_offset < advance.from_offset THEN format('the database went back to %s', w.next_offset)
            ELSE format('it is settled up to %s', w.next_offset) END
        INTO what
        FROM semel.watermark w
        WHERE w.consumer = advance.consumer AND w.topic = advance.topic AND w.partition = advance.partition;
    RAISE EXCEPTION USING ERRCODE = 'SM004',
        MESSAGE = format('the claim on %s/%s does not hold at %s: %s', advance.topic, advance.partition, advance.from_offset,
            coalesce(what, 'its row is gone')),
        HINT = 'roll back; if the partition is still yours claim it again, and go on where the claim says';
END
$$;
