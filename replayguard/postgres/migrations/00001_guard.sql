-- +goose Up

-- Reservations of the replay guard, in a schema of their own, beside whatever else the database holds. All times are whole
-- seconds since 1970, as the contract counts them.
--
-- Locks, in the order in which they are taken; that there is one order is why nothing deadlocks:
--   1. the client's row: one client's calls come one after the other;
--   2. the pool's row: reservations are added and removed, and holdings changed, only by who has it;
--   3. rows of reservations.
-- Time is read after the lock that a decision depends on, so that a call that waited does not decide by the time before.

-- +goose StatementBegin
CREATE FUNCTION replayguard.now_seconds() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()))::bigint
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.now_seconds() IS 'The only clock: this database''s. Tests replace it.';

CREATE SEQUENCE replayguard.token;
COMMENT ON SEQUENCE replayguard.token IS 'Fencing tokens. They are drawn under the lock on the pool''s row, so a later reservation has a greater one.';

CREATE TABLE replayguard.pool (
    singleton boolean NOT NULL DEFAULT true CHECK (singleton),
    retained  bigint  NOT NULL,
    horizon   bigint  NOT NULL,
    lapsed    bigint  NOT NULL,
    PRIMARY KEY (singleton)
) WITH (fillfactor = 20);
INSERT INTO replayguard.pool (retained, horizon, lapsed) VALUES (0, -9223372036854775808, 0);
COMMENT ON TABLE replayguard.pool IS 'One row: what holds for all reservations together. It is locked by whoever adds or removes any.';
COMMENT ON COLUMN replayguard.pool.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN replayguard.pool.retained IS 'Number of rows in reservation, expired ones included.';
COMMENT ON COLUMN replayguard.pool.horizon IS 'The second after the greatest expiry that was forgotten. While the clock is before it, no new id is admitted: it could be a forgotten one.';
COMMENT ON COLUMN replayguard.pool.lapsed IS 'How many reservations were forgotten unsettled, ever.';

CREATE TABLE replayguard.client (
    name           text   COLLATE "C" NOT NULL,
    units          bigint NOT NULL,
    filled_at      bigint NOT NULL,
    lapses_charged bigint NOT NULL,
    PRIMARY KEY (name)
) WITH (fillfactor = 50);
COMMENT ON TABLE replayguard.client IS 'Rate and standing of each client that has reserved lately. Its row is locked first by each of its calls.';
COMMENT ON COLUMN replayguard.client.name IS 'The authenticated client.';
COMMENT ON COLUMN replayguard.client.units IS 'What it may reserve at once, in sixtieths of a reservation; negative is debt.';
COMMENT ON COLUMN replayguard.client.filled_at IS 'When units were last brought up to date.';
COMMENT ON COLUMN replayguard.client.lapses_charged IS 'Up to which count of holding.lapses it has paid, those that will be counted there once they are forgotten included.';

CREATE TABLE replayguard.holding (
    client text   COLLATE "C" NOT NULL,
    live   bigint NOT NULL CHECK (live >= 0),
    lapses bigint NOT NULL,
    PRIMARY KEY (client)
) WITH (fillfactor = 50);
COMMENT ON TABLE replayguard.holding IS 'What each client holds. It is apart from client because it changes under the pool''s lock, also by calls of other clients.';
COMMENT ON COLUMN replayguard.holding.client IS 'The client.';
COMMENT ON COLUMN replayguard.holding.live IS 'Number of its rows in reservation.';
COMMENT ON COLUMN replayguard.holding.lapses IS 'How many of its reservations were forgotten unsettled, since it is known.';

CREATE TABLE replayguard.reservation (
    id          bytea    NOT NULL CHECK (length(id) = 32),
    client      text     COLLATE "C" NOT NULL,
    key         bytea    CHECK (length(key) = 32),
    token       bigint   NOT NULL,
    reserved_at bigint   NOT NULL,
    expires_at  bigint   NOT NULL,
    outcome     smallint NOT NULL CHECK (outcome BETWEEN 0 AND 2),
    PRIMARY KEY (id)
);
CREATE INDEX reservation_expiry ON replayguard.reservation (expires_at);
CREATE INDEX reservation_client_expiry ON replayguard.reservation (client, expires_at);
COMMENT ON TABLE replayguard.reservation IS 'The ids that are reserved, and expired ones until they are forgotten.';
COMMENT ON COLUMN replayguard.reservation.id IS 'The id.';
COMMENT ON COLUMN replayguard.reservation.client IS 'Who holds it.';
COMMENT ON COLUMN replayguard.reservation.key IS 'The holder''s idempotency key, hashed; null without one.';
COMMENT ON COLUMN replayguard.reservation.token IS 'Its fencing token.';
COMMENT ON COLUMN replayguard.reservation.reserved_at IS 'Since when.';
COMMENT ON COLUMN replayguard.reservation.expires_at IS 'Until when, this second included.';
COMMENT ON COLUMN replayguard.reservation.outcome IS '0: open, 1: committed, 2: seen consumed on the ledger.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.forget(p_ids bytea[], p_now bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    forgotten bigint;
BEGIN
    WITH gone AS (
        DELETE FROM replayguard.reservation r WHERE r.id = ANY (p_ids) AND r.expires_at < p_now
        RETURNING r.client, r.outcome, r.expires_at
    ), per_client AS (
        SELECT g.client, count(*) AS n, count(*) FILTER (WHERE g.outcome = 0) AS lapses FROM gone g GROUP BY g.client
    ), held AS (
        UPDATE replayguard.holding h SET live = h.live - c.n, lapses = h.lapses + c.lapses
        FROM per_client c WHERE h.client = c.client
    ), total AS (
        SELECT count(*) AS n, count(*) FILTER (WHERE g.outcome = 0) AS lapses, max(g.expires_at) AS latest FROM gone g
    ), pooled AS (
        UPDATE replayguard.pool p
        SET retained = p.retained - t.n, lapsed = p.lapsed + t.lapses, horizon = greatest(p.horizon, t.latest + 1)
        FROM total t WHERE t.n > 0
    )
    SELECT n INTO forgotten FROM total;
    RETURN forgotten;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.forget(bytea[], bigint) IS 'Forgets those of the ids that have expired. The caller has the lock on the pool''s row.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.standing(p_units bigint, p_filled_at bigint, p_lapses bigint, p_now bigint,
    p_per_minute bigint, p_burst bigint, p_lapse_cost bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(-p_burst * 60,
        least(p_burst * 60, p_units + greatest(p_now::numeric - p_filled_at, 0) * p_per_minute)
        - p_lapses::numeric * p_lapse_cost * 60)::bigint
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.standing(bigint, bigint, bigint, bigint, bigint, bigint, bigint) IS 'What a client may reserve at once, in sixtieths of a reservation: filled for the time since, charged for its lapses, within a burst of credit and a burst of debt.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.quota(c replayguard.client, h replayguard.holding, p_now bigint,
    p_max_live bigint, p_per_minute bigint, p_burst bigint, p_lapse_cost bigint,
    OUT o_answer text, OUT o_retry_after bigint, OUT o_units bigint) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    no_limit CONSTANT bigint := 2147483647;
BEGIN
    IF p_per_minute <> no_limit THEN
        o_units := replayguard.standing(c.units, c.filled_at, coalesce(h.lapses, 0) - c.lapses_charged, p_now, p_per_minute, p_burst, p_lapse_cost);
        IF o_units < 60 THEN
            o_answer := 'quota_rate';
            o_retry_after := (60 - o_units + p_per_minute - 1) / p_per_minute;
            RETURN;
        END IF;
    END IF;
    IF p_max_live <> no_limit AND coalesce(h.live, 0) >= p_max_live THEN
        o_answer := 'quota_live';
    END IF;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.quota(replayguard.client, replayguard.holding, bigint, bigint, bigint, bigint, bigint) IS 'What of a client''s quota forbids another reservation, or null; and its standing now, null where its rate has no limit.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.charge(p_client text, p_now bigint, p_units bigint, p_lapses bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE replayguard.client SET filled_at = p_now, units = coalesce(p_units, units),
        lapses_charged = CASE WHEN p_units IS NULL THEN lapses_charged ELSE coalesce(p_lapses, 0) END
    WHERE name = p_client
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.charge(text, bigint, bigint, bigint) IS 'Keeps a client''s standing, null where its rate has no limit, in which lapses up to that count are charged. The caller has the lock on its row.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.refused(p_client text, p_new boolean, p_now bigint, p_units bigint, p_lapses bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_new THEN
        DELETE FROM replayguard.client WHERE name = p_client;
    ELSE
        PERFORM replayguard.charge(p_client, p_now, p_units, p_lapses);
    END IF;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.refused(text, boolean, bigint, bigint, bigint) IS 'Keeps a refused client''s standing as charge does, and nothing of one that was not known before.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.reserve(
    p_client text, p_id bytea, p_key bytea, p_expires_at bigint,
    p_max_entries bigint, p_max_ttl bigint,
    p_max_live bigint, p_per_minute bigint, p_burst bigint, p_lapse_cost bigint,
    OUT o_answer text, OUT o_now bigint, OUT o_token bigint, OUT o_reserved_at bigint, OUT o_expires_at bigint,
    OUT o_outcome smallint, OUT o_took_over boolean, OUT o_retry_after bigint
) LANGUAGE plpgsql AS $$
DECLARE
    durably CONSTANT text := current_setting('synchronous_commit');
    c      replayguard.client;
    h      replayguard.holding;
    p      replayguard.pool;
    r      replayguard.reservation;
    units  bigint;
    locked boolean := false; -- the pool's row
    new    boolean := false; -- this call has made the client known
    expired bigint;          -- reservations of the client that have and are not forgotten yet, and those of them that lapsed
    lapsed  bigint;
BEGIN
    -- Each statement must see what was committed before it, and not what was when the call began.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'replayguard.reserve works at isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- A refusal writes nothing that a crash must not undo, so nobody waits for the disk because of it.
    PERFORM set_config('synchronous_commit', 'off', true);

    SELECT * INTO c FROM replayguard.client WHERE name = p_client FOR UPDATE;
    LOOP
        o_now := replayguard.now_seconds();
        IF p_expires_at <= 0 OR p_expires_at < o_now OR p_expires_at::numeric - o_now > p_max_ttl THEN
            o_answer := 'expiry';
            RETURN;
        END IF;
        SELECT * INTO r FROM replayguard.reservation WHERE id = p_id;
        IF r.expires_at >= o_now THEN
            o_expires_at := r.expires_at;
            IF r.key = p_key AND r.client = p_client THEN
                o_answer := 'again';
                o_token := r.token;
                o_reserved_at := r.reserved_at;
                o_outcome := r.outcome;
            ELSE
                o_answer := 'duplicate';
            END IF;
            RETURN;
        END IF;
        IF c.name IS NULL THEN
            -- A client is known once it may have something: what was refused so far makes nobody known.
            INSERT INTO replayguard.client (name, units, filled_at, lapses_charged)
            VALUES (p_client, p_burst * 60, replayguard.now_seconds(),
                coalesce((SELECT lapses FROM replayguard.holding WHERE client = p_client), 0))
            ON CONFLICT DO NOTHING;
            new := new OR FOUND;
            SELECT * INTO c FROM replayguard.client WHERE name = p_client FOR UPDATE;
            CONTINUE;
        END IF;
        IF locked THEN
            EXIT WHEN r.id IS NULL;
            -- It has expired, unless it is being extended just now: so look again.
            o_took_over := r.outcome = 0;
            PERFORM replayguard.forget(ARRAY[p_id], o_now);
            CONTINUE;
        END IF;
        -- What the quota decides alone is decided without the lock that all share, so that a flood meets it before.
        IF NOT EXISTS (SELECT FROM replayguard.reservation WHERE client = p_client AND expires_at < o_now) THEN
            SELECT * INTO h FROM replayguard.holding WHERE client = p_client;
            SELECT * INTO o_answer, o_retry_after, units FROM replayguard.quota(c, h, o_now, p_max_live, p_per_minute, p_burst, p_lapse_cost);
            IF o_answer IS NOT NULL THEN
                PERFORM replayguard.refused(p_client, new, o_now, units, h.lapses);
                RETURN;
            END IF;
        END IF;
        PERFORM FROM replayguard.pool FOR UPDATE;
        locked := true;
    END LOOP;

    -- From here on, nobody else adds or removes anything. The client's own expired reservations go first, since its
    -- standing depends on them; but no more than some, for everybody waits. What is left of them counts as if it were forgotten.
    PERFORM replayguard.forget(ARRAY(
        SELECT id FROM replayguard.reservation WHERE client = p_client AND expires_at < o_now ORDER BY expires_at LIMIT 1000), o_now);
    SELECT * INTO h FROM replayguard.holding WHERE client = p_client;
    SELECT count(*), count(*) FILTER (WHERE outcome = 0) INTO expired, lapsed FROM replayguard.reservation WHERE client = p_client AND expires_at < o_now;
    h.live := h.live - expired;
    h.lapses := h.lapses + lapsed;
    SELECT * INTO o_answer, o_retry_after, units FROM replayguard.quota(c, h, o_now, p_max_live, p_per_minute, p_burst, p_lapse_cost);
    SELECT * INTO p FROM replayguard.pool;
    IF o_answer IS NULL AND o_now < p.horizon THEN
        o_answer := 'clock_back';
        o_retry_after := least(p.horizon::numeric - o_now, 9223372036854775807)::bigint;
    END IF;
    IF o_answer IS NULL AND p.retained >= p_max_entries THEN
        PERFORM replayguard.forget(ARRAY(
            SELECT id FROM replayguard.reservation WHERE expires_at < o_now
            ORDER BY expires_at LIMIT greatest(1000, p.retained - p_max_entries + 1)), o_now);
        SELECT * INTO p FROM replayguard.pool;
        IF p.retained >= p_max_entries THEN
            o_answer := 'capacity';
            SELECT least(min(expires_at)::numeric + 1 - o_now, 9223372036854775807)::bigint INTO o_retry_after FROM replayguard.reservation;
        END IF;
    END IF;
    IF o_answer IS NOT NULL THEN
        PERFORM replayguard.refused(p_client, new, o_now, units, h.lapses);
        RETURN;
    END IF;

    PERFORM set_config('synchronous_commit', durably, true);
    o_answer := 'reserved';
    o_token := nextval('replayguard.token');
    o_reserved_at := o_now;
    o_expires_at := p_expires_at;
    o_outcome := 0;
    INSERT INTO replayguard.reservation (id, client, key, token, reserved_at, expires_at, outcome)
    VALUES (p_id, p_client, p_key, o_token, o_now, p_expires_at, 0);
    INSERT INTO replayguard.holding AS held (client, live, lapses) VALUES (p_client, 1, 0)
    ON CONFLICT (client) DO UPDATE SET live = held.live + 1;
    UPDATE replayguard.pool SET retained = retained + 1;
    PERFORM replayguard.charge(p_client, o_now, units - 60, h.lapses);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.reserve(text, bytea, bytea, bigint, bigint, bigint, bigint, bigint, bigint, bigint) IS 'Reserves an id for a client: expiry, duplicate, quota, clock, capacity, in this order. o_answer is reserved, again, expiry, duplicate, quota_rate, quota_live, clock_back or capacity.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.settle(p_client text, p_id bytea, p_token bigint, p_outcome smallint,
    OUT o_answer text, OUT o_now bigint, OUT o_reserved_at bigint, OUT o_expires_at bigint, OUT o_outcome smallint) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE replayguard.reservation SET outcome = CASE WHEN outcome = 0 THEN p_outcome ELSE outcome END
    WHERE id = p_id AND client = p_client AND token = p_token AND expires_at >= replayguard.now_seconds()
    RETURNING reserved_at, expires_at, outcome INTO o_reserved_at, o_expires_at, o_outcome;
    o_answer := CASE WHEN FOUND THEN 'settled' ELSE 'none' END;
    o_now := replayguard.now_seconds();
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.settle(text, bytea, bigint, smallint) IS 'Records a live reservation''s outcome; the first one stays. o_answer is settled or none.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.extend(p_client text, p_id bytea, p_token bigint, p_expires_at bigint, p_max_ttl bigint, p_max_lifetime bigint,
    OUT o_answer text, OUT o_now bigint, OUT o_reserved_at bigint, OUT o_expires_at bigint) LANGUAGE plpgsql AS $$
BEGIN
    SELECT reserved_at, expires_at INTO o_reserved_at, o_expires_at FROM replayguard.reservation
    WHERE id = p_id AND client = p_client AND token = p_token AND outcome = 0 FOR UPDATE;
    IF NOT FOUND THEN
        o_answer := 'none';
        RETURN;
    END IF;
    o_now := replayguard.now_seconds();
    IF o_expires_at < o_now THEN
        o_answer := 'none';
    ELSIF p_expires_at <= 0 OR p_expires_at < o_now OR p_expires_at::numeric - o_now > p_max_ttl THEN
        o_answer := 'expiry';
    ELSIF p_expires_at < o_expires_at THEN
        o_answer := 'shortened';
    ELSIF p_expires_at::numeric - o_reserved_at > p_max_lifetime THEN
        o_answer := 'lifetime';
    ELSE
        UPDATE replayguard.reservation SET expires_at = p_expires_at WHERE id = p_id;
        o_expires_at := p_expires_at;
        o_answer := 'extended';
    END IF;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.extend(text, bytea, bigint, bigint, bigint, bigint) IS 'Moves the expiry of a live, open reservation ahead. o_answer is extended, none, expiry, shortened or lifetime.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.release(p_client text, p_id bytea, p_token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM replayguard.pool FOR UPDATE;
    DELETE FROM replayguard.reservation
    WHERE id = p_id AND client = p_client AND token = p_token AND outcome = 0 AND expires_at >= replayguard.now_seconds();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE replayguard.pool SET retained = retained - 1;
    UPDATE replayguard.holding SET live = live - 1 WHERE client = p_client;
    RETURN true;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.release(text, bytea, bigint) IS 'Forgets a live, open reservation before its expiry; false where there is none.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.sweep(p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM replayguard.pool FOR UPDATE;
    t := replayguard.now_seconds();
    RETURN replayguard.forget(ARRAY(SELECT id FROM replayguard.reservation WHERE expires_at < t ORDER BY expires_at LIMIT p_limit), t);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.sweep(bigint) IS 'Forgets so many expired reservations at most, the earliest first, and gives their number.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.sweep_clients(p_idle bigint, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t     bigint := replayguard.now_seconds();
    names text[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    names := ARRAY(
        SELECT c.name FROM replayguard.client c
        WHERE c.filled_at < t::numeric - p_idle
          AND NOT EXISTS (SELECT FROM replayguard.holding h WHERE h.client = c.name AND h.live > 0)
        LIMIT p_limit FOR UPDATE OF c SKIP LOCKED);
    -- With the clients' rows, this call has the lock that each of their reservations would need.
    PERFORM FROM replayguard.pool FOR UPDATE;
    DELETE FROM replayguard.holding WHERE client = ANY (names) AND live = 0;
    DELETE FROM replayguard.client c WHERE c.name = ANY (names)
        AND NOT EXISTS (SELECT FROM replayguard.holding h WHERE h.client = c.name);
    RETURN cardinality(names);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.sweep_clients(bigint, bigint) IS 'Forgets so many clients at most that hold nothing and have asked for nothing for so many seconds, and gives the number of those that it looked at.';

-- +goose StatementBegin
CREATE FUNCTION replayguard.stats(OUT o_live bigint, OUT o_clients bigint, OUT o_lapsed bigint) LANGUAGE sql VOLATILE AS $$
    SELECT p.retained - (SELECT count(*) FROM replayguard.reservation WHERE expires_at < (SELECT replayguard.now_seconds())),
        (SELECT count(*) FROM replayguard.client), p.lapsed
    FROM replayguard.pool p
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION replayguard.stats() IS 'Counts of live reservations, of clients, and of reservations forgotten unsettled.';

-- +goose Down

DROP FUNCTION replayguard.stats();
DROP FUNCTION replayguard.sweep_clients(bigint, bigint);
DROP FUNCTION replayguard.sweep(bigint);
DROP FUNCTION replayguard.release(text, bytea, bigint);
DROP FUNCTION replayguard.extend(text, bytea, bigint, bigint, bigint, bigint);
DROP FUNCTION replayguard.settle(text, bytea, bigint, smallint);
DROP FUNCTION replayguard.reserve(text, bytea, bytea, bigint, bigint, bigint, bigint, bigint, bigint, bigint);
DROP FUNCTION replayguard.refused(text, boolean, bigint, bigint, bigint);
DROP FUNCTION replayguard.charge(text, bigint, bigint, bigint);
DROP FUNCTION replayguard.quota(replayguard.client, replayguard.holding, bigint, bigint, bigint, bigint, bigint);
DROP FUNCTION replayguard.standing(bigint, bigint, bigint, bigint, bigint, bigint, bigint);
DROP FUNCTION replayguard.forget(bytea[], bigint);
DROP TABLE replayguard.reservation;
DROP TABLE replayguard.holding;
DROP TABLE replayguard.client;
DROP TABLE replayguard.pool;
DROP SEQUENCE replayguard.token;
DROP FUNCTION replayguard.now_seconds();
