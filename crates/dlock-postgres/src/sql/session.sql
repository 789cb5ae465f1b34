-- The table and functions of mode session, made after those of mode lease, whose table of versions and whose numbers it uses. A hold is an advisory lock of one connection, and a mark in this table.
-- {prefix}sessions  one row for each name. key: the advisory lock of the name, drawn by lot, so that no two names share one and strangers
--                   who use such locks too do not meet it; owner: whose mark it is, NULL when the last holder left in order; token: the
--                   last one that was given out; valid_us: for how long the owner's last sign of life is good; broken: ended by force;
--                   sign: an advisory lock that the owner's connection keeps, by which anybody finds it; proved_at: its last sign of life;
--                   dead_at: since when somebody else has had the key, and the owner's time runs; freed, lost: the last token whose
--                   holder left in order, and the last one whose holder did not
--
-- Whoever gets the key of a holder that did not leave in order waits for valid_us before it holds: by then the former has been told, or
-- must know by its own clock. Only the connection that has the key makes somebody the owner, or lets the time run. The server lets
-- go of a key after the transaction of its connection has ended, so what that one has begun is done or undone before the next one looks.
SELECT pg_advisory_xact_lock(4983251072931170125);
CREATE TABLE IF NOT EXISTS {prefix}sessions (
  name text COLLATE "C" PRIMARY KEY,
  key bigint NOT NULL UNIQUE,
  owner uuid,
  token bigint NOT NULL DEFAULT 0,
  valid_us bigint NOT NULL DEFAULT 0,
  broken boolean NOT NULL DEFAULT false,
  sign bigint NOT NULL DEFAULT 0,
  taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  proved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  dead_at timestamptz,
  freed bigint NOT NULL DEFAULT 0,
  lost bigint NOT NULL DEFAULT 0,
  label text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- What every function that changes something begins with, as in mode lease.
CREATE OR REPLACE FUNCTION {prefix}session_begin() RETURNS void LANGUAGE plpgsql AS $dlock$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'locks need READ COMMITTED' USING ERRCODE = 'DLK01';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $dlock$;

-- Whether a connection has this advisory lock; with a_pid NULL, whether any has. Locks of other databases are others.
CREATE OR REPLACE FUNCTION {prefix}session_has(a_key bigint, a_pid integer) RETURNS boolean LANGUAGE sql AS $dlock$
  SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND (classid::bigint << 32 | objid::bigint) = a_key AND (a_pid IS NULL OR pid = a_pid)
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
$dlock$;

-- The key of a name, which is drawn at its first use.
CREATE OR REPLACE FUNCTION {prefix}session_key(a_name text) RETURNS bigint LANGUAGE plpgsql AS $dlock$
DECLARE
  drawn bigint;
BEGIN
  LOOP
    SELECT key INTO drawn FROM {prefix}sessions WHERE name = a_name;
    IF FOUND THEN RETURN drawn; END IF;
    INSERT INTO {prefix}sessions (name, key)
    VALUES (a_name, ('x' || substr(md5(random()::text || clock_timestamp() || a_name), 1, 16))::bit(64)::bigint) ON CONFLICT DO NOTHING;
  END LOOP;
END $dlock$;

-- As in mode lease, a program of version 1 must take nothing any more.
DROP FUNCTION IF EXISTS {prefix}session_claim(text, uuid, bigint, bigint, text, boolean, bigint);

-- Makes whoever has the key the holder, or tells how long that must wait.
-- arguments  name; attempt; for how long its signs of life are good, us; sign of its connection; label; try: asks for the key, without
--            waiting, and gives it back if it cannot be used at once; seen: the token of a mark whose time has been waited for
-- returns    said: 1 holds, and the number is the token; 0 busy, and the number is the time after which asking again is worth it (us, 0: not
--            known); 2 it has the key and must wait so long (us) for the owner of the mark, whose token is the last number
CREATE OR REPLACE FUNCTION {prefix}session_acquire(a_name text, a_attempt uuid, a_valid bigint, a_sign bigint, a_label text, a_try boolean,
  a_seen bigint, OUT said integer, OUT number bigint, OUT mark bigint)
LANGUAGE plpgsql AS $dlock$
DECLARE
  k bigint;
  l record;
  t timestamptz;
BEGIN
  PERFORM {prefix}session_begin();
  k := {prefix}session_key(a_name);
  IF a_try AND NOT pg_try_advisory_lock(k) THEN
    said := 0;
    number := 0;
    RETURN;
  END IF;
  SELECT * INTO l FROM {prefix}sessions WHERE name = a_name FOR UPDATE;
  t := clock_timestamp();
  -- Ours already: the answer was lost, and perhaps the connection with it.
  IF l.owner = a_attempt AND NOT l.broken THEN
    said := 1;
    number := l.token;
    UPDATE {prefix}sessions SET sign = a_sign, proved_at = t, dead_at = NULL WHERE name = a_name;
    RETURN;
  END IF;
  -- Never longer than it was good for, also when the server's clock was set back.
  number := least(l.valid_us, coalesce(l.valid_us - extract(epoch FROM t - l.dead_at) * 1000000, l.valid_us));
  -- A mark whose time was waited for counts only if its owner has not gone on meanwhile.
  IF l.owner IS NULL OR l.token = a_seen AND l.dead_at IS NOT NULL OR number <= 0 THEN
    said := 1;
    number := greatest(nextval('{prefix}tokens'), l.token + 1);
    UPDATE {prefix}sessions SET owner = a_attempt, token = number, valid_us = a_valid, broken = false, sign = a_sign, taken_at = t,
      proved_at = t, dead_at = NULL, label = a_label, lost = CASE WHEN l.owner IS NULL THEN lost ELSE l.token END
    WHERE name = a_name;
    RETURN;
  END IF;
  UPDATE {prefix}sessions SET dead_at = t WHERE name = a_name AND dead_at IS NULL;
  mark := l.token;
  said := 2;
  IF a_try THEN
    said := 0;
    PERFORM pg_advisory_unlock(k);
  END IF;
END $dlock$;

-- Proves that this connection has the key, on a server that takes writes, and that the mark is ours and nobody counts our time.
-- returns    1 it holds; 0 disturbed: the mark is ours, and the key is not or was not for a moment; 2 gone
CREATE OR REPLACE FUNCTION {prefix}session_prove(a_name text, a_attempt uuid, a_token bigint) RETURNS integer LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
BEGIN
  PERFORM {prefix}session_begin();
  UPDATE {prefix}sessions SET proved_at = clock_timestamp() WHERE name = a_name AND owner = a_attempt AND token = a_token AND NOT broken
  RETURNING key, dead_at INTO l;
  IF NOT FOUND THEN RETURN 2; END IF;
  IF l.dead_at IS NULL AND {prefix}session_has(l.key, pg_backend_pid()) THEN RETURN 1; END IF;
  RETURN 0;
END $dlock$;

-- A holder whose connection broke goes on with this one.
-- returns    as session_prove; 0: somebody else has the key now
CREATE OR REPLACE FUNCTION {prefix}session_go_on(a_name text, a_attempt uuid, a_token bigint, a_sign bigint) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
  got boolean;
BEGIN
  PERFORM {prefix}session_begin();
  got := pg_try_advisory_lock({prefix}session_key(a_name));
  SELECT * INTO l FROM {prefix}sessions WHERE name = a_name FOR UPDATE;
  IF l.owner IS DISTINCT FROM a_attempt OR l.token <> a_token OR l.broken THEN
    IF got THEN PERFORM pg_advisory_unlock(l.key); END IF;
    RETURN 2;
  END IF;
  IF NOT got THEN RETURN 0; END IF;
  UPDATE {prefix}sessions SET sign = a_sign, proved_at = clock_timestamp(), dead_at = NULL WHERE name = a_name;
  RETURN 1;
END $dlock$;

-- A holder leaves in order. The key is free a moment before the mark is: whoever gets it waits for the row.
-- arguments  name; attempt; token; whether this connection has the key
-- returns    1 it held until now; 0 it did not; 2 it had left in order already; 3 not known any more
CREATE OR REPLACE FUNCTION {prefix}session_release(a_name text, a_attempt uuid, a_token bigint, a_here boolean) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
BEGIN
  PERFORM {prefix}session_begin();
  SELECT * INTO l FROM {prefix}sessions WHERE name = a_name FOR UPDATE;
  IF a_here THEN PERFORM pg_advisory_unlock(l.key); END IF;
  IF l.owner = a_attempt AND l.token = a_token AND NOT l.broken THEN
    UPDATE {prefix}sessions SET owner = NULL, freed = token, dead_at = NULL WHERE name = a_name;
    RETURN 1;
  END IF;
  IF l.owner = a_attempt AND l.token = a_token THEN RETURN 0; END IF;
  -- Every token has ended one way or the other: one above the last that was lost was freed, and the other way round.
  RETURN CASE WHEN a_token > l.lost THEN 2 WHEN a_token = l.lost OR a_token > l.freed THEN 0 ELSE 3 END;
END $dlock$;

INSERT INTO {prefix}meta AS m (k, v) VALUES ('session', 2) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
