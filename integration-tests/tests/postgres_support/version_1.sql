-- The tables and functions as version 1 made them, with the prefix dlock_.
SELECT pg_advisory_xact_lock(4983251072931170125);
CREATE TABLE IF NOT EXISTS "public"."dlock_meta" (k text PRIMARY KEY, v bigint NOT NULL);
CREATE SEQUENCE IF NOT EXISTS "public"."dlock_tokens";
CREATE TABLE IF NOT EXISTS "public"."dlock_locks" (
  name text COLLATE "C" PRIMARY KEY,
  owner uuid,
  token bigint NOT NULL DEFAULT 0,
  lease_us bigint NOT NULL DEFAULT 0,
  taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  crowd boolean NOT NULL DEFAULT false,
  doubt_until timestamptz NOT NULL DEFAULT '-infinity',
  label text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS "public"."dlock_holders" (
  name text COLLATE "C" NOT NULL,
  attempt uuid NOT NULL,
  permits integer NOT NULL,
  token bigint NOT NULL,
  lease_us bigint NOT NULL,
  taken_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  label text NOT NULL,
  PRIMARY KEY (name, attempt)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS "public"."dlock_waiters" (
  name text COLLATE "C" NOT NULL,
  ticket bigint NOT NULL,
  attempt uuid NOT NULL,
  permits integer NOT NULL,
  lease_us bigint NOT NULL,
  patience_us bigint NOT NULL,
  channel text NOT NULL,
  bell bigint,
  until timestamptz NOT NULL,
  label text NOT NULL,
  PRIMARY KEY (name, ticket)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX IF NOT EXISTS "dlock_waiters_attempt" ON "public"."dlock_waiters" (attempt);
CREATE TABLE IF NOT EXISTS "public"."dlock_abandoned" (
  attempt uuid PRIMARY KEY,
  until timestamptz NOT NULL
);

CREATE OR REPLACE FUNCTION "public"."dlock_begin"() RETURNS void LANGUAGE plpgsql AS $dlock$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'locks need READ COMMITTED' USING ERRCODE = 'DLK01';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  -- A server that waits for a row does not notice that its client has given up and gone: it must not wait for ever, and keep what it has.
  IF current_setting('lock_timeout') = '0' THEN
    PERFORM set_config('lock_timeout', '10s', true);
  END IF;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_settle"(a_name text, a_me uuid, a_now timestamptz,
  OUT alone boolean, OUT sharing integer, OUT kind integer, OUT head uuid, OUT head_kind integer, OUT free_at timestamptz)
LANGUAGE plpgsql AS $dlock$
DECLARE
  w record;
  whole boolean;
  fresh bigint;
  ends timestamptz;
BEGIN
  SELECT owner IS NOT NULL AND expires_at > a_now, expires_at, token INTO alone, free_at, fresh FROM "public"."dlock_locks" WHERE name = a_name;
  DELETE FROM "public"."dlock_holders" WHERE name = a_name AND expires_at <= a_now;
  SELECT count(*), max(permits), min(expires_at) INTO sharing, kind, ends FROM "public"."dlock_holders" WHERE name = a_name;
  IF NOT alone THEN free_at := ends; END IF;
  FOR w IN SELECT * FROM "public"."dlock_waiters" WHERE name = a_name ORDER BY ticket LOOP
    IF w.attempt IS DISTINCT FROM a_me AND (w.until <= a_now OR pg_try_advisory_xact_lock_shared(w.bell)) THEN
      DELETE FROM "public"."dlock_waiters" WHERE name = a_name AND ticket = w.ticket;
      CONTINUE;
    END IF;
    head := w.attempt;
    head_kind := w.permits;
    EXIT WHEN alone OR w.attempt = a_me;
    EXIT WHEN sharing > 0 AND (w.permits < 0 OR w.permits <> kind OR (w.permits > 0 AND sharing >= w.permits));
    whole := w.bell IS NOT NULL AND extract(epoch FROM w.until - a_now) * 3000000 >= w.patience_us * 2;
    ends := a_now + CASE WHEN whole THEN w.lease_us ELSE least(w.lease_us, w.patience_us) END * interval '1 microsecond';
    fresh := greatest(nextval('"public"."dlock_tokens"'), fresh + 1);
    DELETE FROM "public"."dlock_waiters" WHERE name = a_name AND ticket = w.ticket;
    IF w.permits < 0 THEN
      alone := true;
      free_at := ends;
      UPDATE "public"."dlock_locks" SET owner = w.attempt, token = fresh, lease_us = w.lease_us, taken_at = a_now, expires_at = ends, label = w.label
      WHERE name = a_name;
    ELSE
      sharing := sharing + 1;
      kind := w.permits;
      free_at := least(free_at, ends);
      INSERT INTO "public"."dlock_holders" VALUES (a_name, w.attempt, w.permits, fresh, w.lease_us, a_now, ends, w.label);
      UPDATE "public"."dlock_locks" SET token = fresh, owner = NULL WHERE name = a_name;
    END IF;
    IF w.channel <> '' THEN
      PERFORM pg_notify(w.channel, w.attempt || CASE WHEN whole THEN ' ' || fresh ELSE '' END);
    END IF;
    head := NULL;
    head_kind := NULL;
  END LOOP;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_finish"(a_name text) RETURNS void LANGUAGE plpgsql AS $dlock$
BEGIN
  UPDATE "public"."dlock_locks" SET crowd = NOT crowd
  WHERE name = a_name AND crowd <> (EXISTS (SELECT FROM "public"."dlock_waiters" w WHERE w.name = a_name)
    OR EXISTS (SELECT FROM "public"."dlock_holders" h WHERE h.name = a_name));
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_acquire"(a_name text, a_attempt uuid, a_kind integer, a_lease bigint, a_label text, a_channel text,
  a_bell bigint, a_patience bigint, OUT said integer, OUT number bigint, OUT last_token bigint)
LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
  s record;
  w record;
  busy integer := 0;
  lasts interval := a_lease * interval '1 microsecond';
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off'
    OR current_setting('lock_timeout') = '0'
  THEN
    PERFORM "public"."dlock_begin"();
  END IF;
  -- The short way: plainly free. When somebody else changes the row meanwhile, the server reads it again and evaluates all of this anew.
  IF a_kind < 0 THEN
    UPDATE "public"."dlock_locks" SET owner = a_attempt, token = greatest(nextval('"public"."dlock_tokens"'), token + 1), lease_us = a_lease, label = a_label,
      taken_at = clock_timestamp(), expires_at = clock_timestamp() + lasts
    WHERE name = a_name AND (owner IS NULL OR expires_at <= clock_timestamp()) AND NOT crowd AND doubt_until <= clock_timestamp()
    RETURNING token INTO number;
    IF FOUND THEN
      said := 1;
      RETURN;
    END IF;
  END IF;
  LOOP
    SELECT * INTO l FROM "public"."dlock_locks" WHERE name = a_name FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO "public"."dlock_locks" (name, token) SELECT a_name, coalesce(max(v), 0) FROM "public"."dlock_meta" WHERE k = 'swept' ON CONFLICT DO NOTHING;
  END LOOP;
  t := clock_timestamp();
  last_token := l.token;
  -- Who listens may do so at another server than this one, which others made the primary: then nobody would hear of a grant.
  IF a_bell IS NOT NULL AND pg_try_advisory_xact_lock_shared(a_bell) THEN
    a_bell := NULL;
    a_channel := '';
    busy := 4;
  END IF;
  -- Ours already.
  IF l.owner = a_attempt AND l.expires_at > t THEN
    UPDATE "public"."dlock_locks" SET expires_at = t + lasts WHERE name = a_name;
    said := 1;
    number := l.token;
    RETURN;
  END IF;
  -- The short way of those who wait: somebody has it alone, so nobody shares it, and nothing can be given to anybody. It is no way past a
  -- first of the queue that has died, since that one would have looked when the lease of the holder ends.
  IF l.owner IS NOT NULL AND l.expires_at > t AND a_kind <= 0 AND l.doubt_until <= t THEN
    SELECT attempt, until, bell INTO w FROM "public"."dlock_waiters" WHERE name = a_name ORDER BY ticket LIMIT 1;
    IF w.attempt IS NULL OR w.attempt = a_attempt OR (w.until > t AND pg_try_advisory_xact_lock_shared(w.bell) IS NOT TRUE) THEN
      said := busy;
      number := CASE WHEN a_channel IS NULL OR w.attempt IS NULL OR w.attempt = a_attempt
        THEN greatest(1, extract(epoch FROM l.expires_at - t) * 1000000) ELSE 0 END;
      IF a_channel IS NULL THEN RETURN; END IF;
      IF w.attempt IS NOT NULL THEN
        UPDATE "public"."dlock_waiters" SET channel = a_channel, bell = a_bell, until = t + a_patience * interval '1 microsecond'
        WHERE name = a_name AND attempt = a_attempt;
        IF FOUND THEN RETURN; END IF;
      END IF;
      INSERT INTO "public"."dlock_waiters" VALUES (a_name, nextval('"public"."dlock_tokens"'), a_attempt, a_kind, a_lease, a_patience, a_channel, a_bell,
        t + a_patience * interval '1 microsecond', a_label);
      IF NOT l.crowd THEN UPDATE "public"."dlock_locks" SET crowd = true WHERE name = a_name; END IF;
      RETURN;
    END IF;
  END IF;
  UPDATE "public"."dlock_holders" SET expires_at = t + lasts WHERE name = a_name AND attempt = a_attempt AND expires_at > t RETURNING token INTO number;
  IF FOUND THEN
    said := 1;
    RETURN;
  END IF;
  IF l.doubt_until > t AND EXISTS (SELECT FROM "public"."dlock_abandoned" WHERE attempt = a_attempt AND until > t) THEN
    said := 2;
    RETURN;
  END IF;

  SELECT * INTO s FROM "public"."dlock_settle"(a_name, a_attempt, t);
  IF NOT s.alone AND (s.head IS NULL OR s.head = a_attempt)
    AND (s.sharing = 0 OR (a_kind = s.kind AND (a_kind = 0 OR s.sharing < a_kind)))
  THEN
    said := 1;
    SELECT greatest(nextval('"public"."dlock_tokens"'), token + 1) INTO number FROM "public"."dlock_locks" WHERE name = a_name;
    DELETE FROM "public"."dlock_waiters" WHERE name = a_name AND attempt = a_attempt;
    IF a_kind < 0 THEN
      UPDATE "public"."dlock_locks" SET owner = a_attempt, token = number, lease_us = a_lease, label = a_label, taken_at = t, expires_at = t + lasts
      WHERE name = a_name;
    ELSE
      INSERT INTO "public"."dlock_holders" VALUES (a_name, a_attempt, a_kind, number, a_lease, t, t + lasts, a_label);
      UPDATE "public"."dlock_locks" SET token = number, owner = NULL, expires_at = t WHERE name = a_name;
      -- Those who fit beside us need not wait for the next release.
      PERFORM "public"."dlock_settle"(a_name, NULL, t);
    END IF;
    PERFORM "public"."dlock_finish"(a_name);
    RETURN;
  END IF;

  IF a_kind > 0 AND s.sharing > 0 AND s.kind > 0 THEN
    IF s.kind <> a_kind THEN said := 3; number := s.kind; END IF;
  ELSIF a_kind > 0 AND s.head_kind > 0 AND s.head_kind <> a_kind THEN
    said := 3;
    number := s.head_kind;
  END IF;
  IF said IS NULL THEN
    said := busy;
    number := 0;
    IF a_channel IS NOT NULL THEN
      UPDATE "public"."dlock_waiters" SET channel = a_channel, bell = a_bell, until = t + a_patience * interval '1 microsecond'
      WHERE name = a_name AND attempt = a_attempt;
      IF NOT FOUND THEN
        INSERT INTO "public"."dlock_waiters" VALUES (a_name, nextval('"public"."dlock_tokens"'), a_attempt, a_kind, a_lease, a_patience, a_channel, a_bell,
          t + a_patience * interval '1 microsecond', a_label);
        IF s.head IS NULL THEN s.head := a_attempt; END IF;
      END IF;
    END IF;
    -- Only the first of the queue looks when the lease ends: no herd.
    IF a_channel IS NULL OR s.head = a_attempt THEN
      number := greatest(1, extract(epoch FROM s.free_at - t) * 1000000);
    END IF;
    -- A grant that settle has made is no longer to come for anybody who hears of it later.
    SELECT token INTO last_token FROM "public"."dlock_locks" WHERE name = a_name;
  END IF;
  PERFORM "public"."dlock_finish"(a_name);
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_release"(a_name text, a_attempt uuid, a_memory bigint) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
  w record;
  held boolean;
  fresh bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off'
    OR current_setting('lock_timeout') = '0'
  THEN
    PERFORM "public"."dlock_begin"();
  END IF;
  IF a_memory = 0 THEN
    UPDATE "public"."dlock_locks" SET owner = NULL, expires_at = clock_timestamp()
    WHERE name = a_name AND owner = a_attempt AND expires_at > clock_timestamp() AND NOT crowd;
    IF FOUND THEN RETURN 1; END IF;
  END IF;
  LOOP
    SELECT * INTO l FROM "public"."dlock_locks" WHERE name = a_name FOR UPDATE;
    EXIT WHEN FOUND;
    IF a_memory = 0 THEN RETURN 0; END IF;
    -- A late request must find the word about the memory, so nobody else may make the row without it.
    INSERT INTO "public"."dlock_locks" (name, token) SELECT a_name, coalesce(max(v), 0) FROM "public"."dlock_meta" WHERE k = 'swept' ON CONFLICT DO NOTHING;
  END LOOP;
  t := clock_timestamp();
  -- The short way of a hand-over, with the same outcome as "public"."dlock_settle": from one who has it alone to one who wants it alone, has just given
  -- a sign of life, and listens.
  IF a_memory = 0 AND l.owner = a_attempt AND l.expires_at > t THEN
    SELECT * INTO w FROM "public"."dlock_waiters" WHERE name = a_name ORDER BY ticket LIMIT 1;
    IF w.permits < 0 AND w.attempt <> a_attempt AND w.bell IS NOT NULL AND extract(epoch FROM w.until - t) * 3000000 >= w.patience_us * 2
      AND NOT pg_try_advisory_xact_lock_shared(w.bell)
    THEN
      fresh := greatest(nextval('"public"."dlock_tokens"'), l.token + 1);
      DELETE FROM "public"."dlock_waiters" WHERE name = a_name AND ticket = w.ticket;
      UPDATE "public"."dlock_locks" SET owner = w.attempt, token = fresh, lease_us = w.lease_us, taken_at = t, label = w.label,
        expires_at = t + w.lease_us * interval '1 microsecond', crowd = EXISTS (SELECT FROM "public"."dlock_waiters" v WHERE v.name = a_name)
      WHERE name = a_name;
      PERFORM pg_notify(w.channel, w.attempt || ' ' || fresh);
      RETURN 1;
    END IF;
  END IF;
  DELETE FROM "public"."dlock_waiters" WHERE name = a_name AND attempt = a_attempt;
  IF l.owner = a_attempt THEN
    held := l.expires_at > t;
    UPDATE "public"."dlock_locks" SET owner = NULL, expires_at = t WHERE name = a_name;
  ELSE
    DELETE FROM "public"."dlock_holders" WHERE name = a_name AND attempt = a_attempt RETURNING expires_at > t INTO held;
  END IF;
  IF a_memory > 0 THEN
    INSERT INTO "public"."dlock_abandoned" VALUES (a_attempt, t + a_memory * interval '1 microsecond')
    ON CONFLICT (attempt) DO UPDATE SET until = EXCLUDED.until;
    UPDATE "public"."dlock_locks" SET doubt_until = greatest(doubt_until, t + a_memory * interval '1 microsecond') WHERE name = a_name;
    DELETE FROM "public"."dlock_abandoned" WHERE attempt IN
      (SELECT attempt FROM "public"."dlock_abandoned" WHERE until <= t LIMIT 100 FOR UPDATE SKIP LOCKED);
  END IF;
  PERFORM "public"."dlock_settle"(a_name, NULL, t);
  PERFORM "public"."dlock_finish"(a_name);
  RETURN CASE WHEN held THEN 1 ELSE 0 END;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_renew"(a_names text[], a_attempts uuid[], a_wait boolean)
RETURNS TABLE (renewed uuid, left_out text) LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  ours text[];
BEGIN
  PERFORM "public"."dlock_begin"();
  IF a_wait THEN
    ours := ARRAY(SELECT l.name FROM "public"."dlock_locks" l WHERE l.name = ANY (a_names) ORDER BY l.name FOR UPDATE);
  ELSE
    ours := ARRAY(SELECT l.name FROM "public"."dlock_locks" l WHERE l.name = ANY (a_names) FOR UPDATE SKIP LOCKED);
  END IF;
  t := clock_timestamp();
  RETURN QUERY UPDATE "public"."dlock_locks" l SET expires_at = t + l.lease_us * interval '1 microsecond'
    WHERE l.name = ANY (ours) AND l.owner = ANY (a_attempts) AND l.expires_at > t RETURNING l.owner, NULL::text;
  RETURN QUERY UPDATE "public"."dlock_holders" h SET expires_at = t + h.lease_us * interval '1 microsecond'
    WHERE h.name = ANY (ours) AND h.attempt = ANY (a_attempts) AND h.expires_at > t RETURNING h.attempt, NULL::text;
  RETURN QUERY SELECT NULL::uuid, l.name FROM "public"."dlock_locks" l WHERE l.name = ANY (a_names) AND l.name <> ALL (ours);
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_downgrade"(a_name text, a_attempt uuid) RETURNS boolean LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
BEGIN
  PERFORM "public"."dlock_begin"();
  SELECT * INTO l FROM "public"."dlock_locks" WHERE name = a_name FOR UPDATE;
  t := clock_timestamp();
  IF NOT FOUND OR l.owner IS DISTINCT FROM a_attempt OR l.expires_at <= t THEN
    RETURN EXISTS (SELECT FROM "public"."dlock_holders" WHERE name = a_name AND attempt = a_attempt AND permits = 0 AND expires_at > t);
  END IF;
  INSERT INTO "public"."dlock_holders" VALUES (a_name, a_attempt, 0, l.token, l.lease_us, l.taken_at, l.expires_at, l.label);
  UPDATE "public"."dlock_locks" SET owner = NULL, expires_at = t WHERE name = a_name;
  PERFORM "public"."dlock_settle"(a_name, NULL, t);
  PERFORM "public"."dlock_finish"(a_name);
  RETURN true;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_break"(a_name text) RETURNS boolean LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
  had boolean;
BEGIN
  PERFORM "public"."dlock_begin"();
  SELECT * INTO l FROM "public"."dlock_locks" WHERE name = a_name FOR UPDATE;
  IF NOT FOUND THEN RETURN false; END IF;
  t := clock_timestamp();
  had := l.owner IS NOT NULL AND l.expires_at > t
    OR EXISTS (SELECT FROM "public"."dlock_holders" WHERE name = a_name AND expires_at > t);
  DELETE FROM "public"."dlock_holders" WHERE name = a_name;
  UPDATE "public"."dlock_locks" SET owner = NULL, expires_at = t WHERE name = a_name;
  PERFORM "public"."dlock_settle"(a_name, NULL, t);
  PERFORM "public"."dlock_finish"(a_name);
  RETURN had;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_sweep"(a_age bigint) RETURNS bigint LANGUAGE plpgsql AS $dlock$
DECLARE
  swept bigint;
  reached bigint := nextval('"public"."dlock_tokens"');
  l record;
BEGIN
  PERFORM "public"."dlock_begin"();
  FOR l IN SELECT name FROM "public"."dlock_locks"
    WHERE crowd AND expires_at <= clock_timestamp() - a_age * interval '1 microsecond' LIMIT 500 FOR UPDATE SKIP LOCKED
  LOOP
    PERFORM "public"."dlock_settle"(l.name, NULL, clock_timestamp());
    PERFORM "public"."dlock_finish"(l.name);
  END LOOP;
  DELETE FROM "public"."dlock_locks" WHERE name IN (SELECT name FROM "public"."dlock_locks"
    WHERE expires_at <= clock_timestamp() - a_age * interval '1 microsecond' AND doubt_until <= clock_timestamp() AND NOT crowd
      AND token < reached
    LIMIT 500 FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS swept = ROW_COUNT;
  IF swept > 0 THEN
    INSERT INTO "public"."dlock_meta" AS m (k, v) VALUES ('swept', reached) ON CONFLICT (k) DO UPDATE SET v = greatest(m.v, excluded.v);
  END IF;
  RETURN swept;
END $dlock$;

INSERT INTO "public"."dlock_meta" (k, v) VALUES ('lease', 1) ON CONFLICT DO NOTHING;

SELECT pg_advisory_xact_lock(4983251072931170125);
CREATE TABLE IF NOT EXISTS "public"."dlock_meta" (k text PRIMARY KEY, v bigint NOT NULL);
CREATE SEQUENCE IF NOT EXISTS "public"."dlock_tokens";
CREATE TABLE IF NOT EXISTS "public"."dlock_sessions" (
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

CREATE OR REPLACE FUNCTION "public"."dlock_session_begin"() RETURNS void LANGUAGE plpgsql AS $dlock$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'locks need READ COMMITTED' USING ERRCODE = 'DLK01';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_has"(a_key bigint, a_pid integer) RETURNS boolean LANGUAGE sql AS $dlock$
  SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND (classid::bigint << 32 | objid::bigint) = a_key AND (a_pid IS NULL OR pid = a_pid)
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
$dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_key"(a_name text) RETURNS bigint LANGUAGE plpgsql AS $dlock$
DECLARE
  drawn bigint;
BEGIN
  LOOP
    SELECT key INTO drawn FROM "public"."dlock_sessions" WHERE name = a_name;
    IF FOUND THEN RETURN drawn; END IF;
    INSERT INTO "public"."dlock_sessions" (name, key)
    VALUES (a_name, ('x' || substr(md5(random()::text || clock_timestamp() || a_name), 1, 16))::bit(64)::bigint) ON CONFLICT DO NOTHING;
  END LOOP;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_claim"(a_name text, a_attempt uuid, a_valid bigint, a_sign bigint, a_label text, a_try boolean,
  a_seen bigint, OUT said integer, OUT number bigint, OUT mark bigint)
LANGUAGE plpgsql AS $dlock$
DECLARE
  k bigint;
  l record;
  t timestamptz;
BEGIN
  PERFORM "public"."dlock_session_begin"();
  k := "public"."dlock_session_key"(a_name);
  IF a_try AND NOT pg_try_advisory_lock(k) THEN
    said := 0;
    number := 0;
    RETURN;
  END IF;
  SELECT * INTO l FROM "public"."dlock_sessions" WHERE name = a_name FOR UPDATE;
  t := clock_timestamp();
  -- Ours already: the answer was lost, and perhaps the connection with it.
  IF l.owner = a_attempt AND NOT l.broken THEN
    said := 1;
    number := l.token;
    UPDATE "public"."dlock_sessions" SET sign = a_sign, proved_at = t, dead_at = NULL WHERE name = a_name;
    RETURN;
  END IF;
  -- Never longer than it was good for, also when the server's clock was set back.
  number := least(l.valid_us, coalesce(l.valid_us - extract(epoch FROM t - l.dead_at) * 1000000, l.valid_us));
  -- A mark whose time was waited for counts only if its owner has not gone on meanwhile.
  IF l.owner IS NULL OR l.token = a_seen AND l.dead_at IS NOT NULL OR number <= 0 THEN
    said := 1;
    number := greatest(nextval('"public"."dlock_tokens"'), l.token + 1);
    UPDATE "public"."dlock_sessions" SET owner = a_attempt, token = number, valid_us = a_valid, broken = false, sign = a_sign, taken_at = t,
      proved_at = t, dead_at = NULL, label = a_label, lost = CASE WHEN l.owner IS NULL THEN lost ELSE l.token END
    WHERE name = a_name;
    RETURN;
  END IF;
  UPDATE "public"."dlock_sessions" SET dead_at = t WHERE name = a_name AND dead_at IS NULL;
  mark := l.token;
  said := 2;
  IF a_try THEN
    said := 0;
    PERFORM pg_advisory_unlock(k);
  END IF;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_prove"(a_name text, a_attempt uuid, a_token bigint) RETURNS integer LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
BEGIN
  PERFORM "public"."dlock_session_begin"();
  UPDATE "public"."dlock_sessions" SET proved_at = clock_timestamp() WHERE name = a_name AND owner = a_attempt AND token = a_token AND NOT broken
  RETURNING key, dead_at INTO l;
  IF NOT FOUND THEN RETURN 2; END IF;
  IF l.dead_at IS NULL AND "public"."dlock_session_has"(l.key, pg_backend_pid()) THEN RETURN 1; END IF;
  RETURN 0;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_go_on"(a_name text, a_attempt uuid, a_token bigint, a_sign bigint) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
  got boolean;
BEGIN
  PERFORM "public"."dlock_session_begin"();
  got := pg_try_advisory_lock("public"."dlock_session_key"(a_name));
  SELECT * INTO l FROM "public"."dlock_sessions" WHERE name = a_name FOR UPDATE;
  IF l.owner IS DISTINCT FROM a_attempt OR l.token <> a_token OR l.broken THEN
    IF got THEN PERFORM pg_advisory_unlock(l.key); END IF;
    RETURN 2;
  END IF;
  IF NOT got THEN RETURN 0; END IF;
  UPDATE "public"."dlock_sessions" SET sign = a_sign, proved_at = clock_timestamp(), dead_at = NULL WHERE name = a_name;
  RETURN 1;
END $dlock$;

CREATE OR REPLACE FUNCTION "public"."dlock_session_release"(a_name text, a_attempt uuid, a_token bigint, a_here boolean) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  l record;
BEGIN
  PERFORM "public"."dlock_session_begin"();
  SELECT * INTO l FROM "public"."dlock_sessions" WHERE name = a_name FOR UPDATE;
  IF a_here THEN PERFORM pg_advisory_unlock(l.key); END IF;
  IF l.owner = a_attempt AND l.token = a_token AND NOT l.broken THEN
    UPDATE "public"."dlock_sessions" SET owner = NULL, freed = token, dead_at = NULL WHERE name = a_name;
    RETURN 1;
  END IF;
  IF l.owner = a_attempt AND l.token = a_token THEN RETURN 0; END IF;
  -- Every token has ended one way or the other: one above the last that was lost was freed, and the other way round.
  RETURN CASE WHEN a_token > l.lost THEN 2 WHEN a_token = l.lost OR a_token > l.freed THEN 0 ELSE 3 END;
END $dlock$;

INSERT INTO "public"."dlock_meta" (k, v) VALUES ('session', 1) ON CONFLICT DO NOTHING;
