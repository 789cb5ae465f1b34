-- The tables and functions of mode lease. Times are by the server's clock.
-- {prefix}meta      lease: the version of all this; swept: no row that was removed had a higher token; store: a number that was drawn for these
--                   tables, by which all clients know that it is the same store, however they get there
-- {prefix}tokens    where fencing tokens and places in queues come from: a sequence is never rolled back (C11). A name's next token is
--                   above its last one in any case: logical replication leaves sequences behind
-- {prefix}locks     one row for each name: the exclusive hold, and the last token. A free lock has no owner.
--                   crowd: there may be rows in {prefix}holders or {prefix}waiters; doubt_until: till then there may be some in
--                   {prefix}abandoned; ear: the channel of a holder that wants to hear who waits for it, else empty
-- {prefix}holders   one row for each shared holder (permits = 0) and each permit (permits = the semaphore's limit)
-- {prefix}waiters   the queue: first come, first served by ticket. permits = -1: wants it alone. bell: a lock that the connection keeps
--                   which listens for this waiter; nobody hears a bell that is free. client: the channel of its client, also if nobody
--                   listens there
-- {prefix}abandoned attempts that must not take effect any more, remembered for some minutes
--
-- Everybody who changes anything of a name locks its row in {prefix}locks first and looks at the clock and at the other tables after
-- that. So each sees what the one before has committed, which is true at READ COMMITTED alone: every function makes sure of it. What is
-- told by NOTIFY is sent by the server when the transaction has been committed, never before.
--
-- One at a time: two that make the same table at once would fail.
SELECT pg_advisory_xact_lock(4983251072931170125);
CREATE TABLE IF NOT EXISTS {prefix}meta (k text PRIMARY KEY, v bigint NOT NULL);
-- A newer program may have been here since we looked: its functions must not be replaced by ours.
DO $dlock$
DECLARE
  newer bigint;
BEGIN
  SELECT max(v) INTO newer FROM {prefix}meta WHERE k IN ('lease', 'session') AND v > 2;
  IF newer IS NOT NULL THEN
    RAISE EXCEPTION 'the tables of dlock have version % here, and this SQL makes version 2', newer
    USING ERRCODE = 'DLK03', HINT = 'Use the SQL of dlock_postgres::migration of the newest version that runs here.';
  END IF;
END $dlock$;
CREATE SEQUENCE IF NOT EXISTS {prefix}tokens;
CREATE TABLE IF NOT EXISTS {prefix}locks (
  name text COLLATE "C" PRIMARY KEY,
  owner uuid,
  token bigint NOT NULL DEFAULT 0,
  lease_us bigint NOT NULL DEFAULT 0,
  taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  crowd boolean NOT NULL DEFAULT false,
  doubt_until timestamptz NOT NULL DEFAULT '-infinity',
  label text NOT NULL DEFAULT '',
  ear text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {prefix}holders (
  name text COLLATE "C" NOT NULL,
  attempt uuid NOT NULL,
  permits integer NOT NULL,
  token bigint NOT NULL,
  lease_us bigint NOT NULL,
  taken_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  label text NOT NULL,
  ear text NOT NULL DEFAULT '',
  PRIMARY KEY (name, attempt)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {prefix}waiters (
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
  client text NOT NULL DEFAULT '',
  PRIMARY KEY (name, ticket)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX IF NOT EXISTS {index}waiters_attempt ON {prefix}waiters (attempt);
CREATE TABLE IF NOT EXISTS {prefix}abandoned (
  attempt uuid PRIMARY KEY,
  until timestamptz NOT NULL
);

-- From version 1 to 2. A token of version 1 was the number itself, and is 64 times as high now, so a program of version 1 that still runs must take
-- nothing any more: its function that grants is gone. A call that was inside it, and waited for the tables that this transaction has locked, fails when it
-- returns, as the server does not find its type any more, and what it has done is undone.
ALTER TABLE {prefix}locks ADD COLUMN IF NOT EXISTS ear text NOT NULL DEFAULT '';
ALTER TABLE {prefix}holders ADD COLUMN IF NOT EXISTS ear text NOT NULL DEFAULT '';
ALTER TABLE {prefix}waiters ADD COLUMN IF NOT EXISTS client text NOT NULL DEFAULT '';
DROP FUNCTION IF EXISTS {prefix}acquire(text, uuid, integer, bigint, text, text, bigint, bigint);

-- What every function that changes something begins with. The two that are called most look first whether it is
-- needed, which is quicker than the call. A caller that gets DLK01 begins a transaction of the right kind itself.
-- Without a log that is written at the commit, a restart of the server could free what somebody was told to hold.
CREATE OR REPLACE FUNCTION {prefix}begin() RETURNS void LANGUAGE plpgsql AS $dlock$
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

-- Gives a lock to the waiters whose turn it is, and tells each. The caller has the lock's row.
-- arguments  name; the attempt that asks, which is here and is not given anything; the time
-- returns    whether it is held alone now; how many share it, and their kind of permits; the first waiter that must go on waiting, and
--            its kind; when the first hold ends
--
-- A waiter that gave a sign of life a moment ago, and listens, gets its whole lease and is told the token: it needs no further trip. Another one
-- gets as long as a waiter may be silent, and confirms; so one that died costs the others no more.
CREATE OR REPLACE FUNCTION {prefix}settle(a_name text, a_me uuid, a_now timestamptz,
  OUT alone boolean, OUT sharing integer, OUT kind integer, OUT head uuid, OUT head_kind integer, OUT free_at timestamptz)
LANGUAGE plpgsql AS $dlock$
DECLARE
  w record;
  whole boolean;
  fresh bigint;
  ends timestamptz;
BEGIN
  SELECT owner IS NOT NULL AND expires_at > a_now, expires_at, token INTO alone, free_at, fresh FROM {prefix}locks WHERE name = a_name;
  DELETE FROM {prefix}holders WHERE name = a_name AND expires_at <= a_now;
  SELECT count(*), max(permits), min(expires_at) INTO sharing, kind, ends FROM {prefix}holders WHERE name = a_name;
  IF NOT alone THEN free_at := ends; END IF;
  FOR w IN SELECT * FROM {prefix}waiters WHERE name = a_name ORDER BY ticket LOOP
    IF w.attempt IS DISTINCT FROM a_me AND (w.until <= a_now OR pg_try_advisory_xact_lock_shared(w.bell)) THEN
      DELETE FROM {prefix}waiters WHERE name = a_name AND ticket = w.ticket;
      CONTINUE;
    END IF;
    head := w.attempt;
    head_kind := w.permits;
    EXIT WHEN alone OR w.attempt = a_me;
    EXIT WHEN sharing > 0 AND (w.permits < 0 OR w.permits <> kind OR (w.permits > 0 AND sharing >= w.permits));
    whole := w.bell IS NOT NULL AND extract(epoch FROM w.until - a_now) * 3000000 >= w.patience_us * 2;
    ends := a_now + CASE WHEN whole THEN w.lease_us ELSE least(w.lease_us, w.patience_us) END * interval '1 microsecond';
    fresh := greatest(nextval('{prefix}tokens'), fresh + 1);
    DELETE FROM {prefix}waiters WHERE name = a_name AND ticket = w.ticket;
    IF w.permits < 0 THEN
      alone := true;
      free_at := ends;
      UPDATE {prefix}locks SET owner = w.attempt, token = fresh, lease_us = w.lease_us, taken_at = a_now, expires_at = ends, label = w.label,
        ear = ''
      WHERE name = a_name;
    ELSE
      sharing := sharing + 1;
      kind := w.permits;
      free_at := least(free_at, ends);
      INSERT INTO {prefix}holders VALUES (a_name, w.attempt, w.permits, fresh, w.lease_us, a_now, ends, w.label);
      UPDATE {prefix}locks SET token = fresh, owner = NULL WHERE name = a_name;
    END IF;
    IF w.channel <> '' THEN
      PERFORM pg_notify(w.channel, w.attempt || CASE WHEN whole THEN ' ' || fresh ELSE '' END);
    END IF;
    head := NULL;
    head_kind := NULL;
  END LOOP;
END $dlock$;

-- Lets the short ways of acquire and release know whether they are enough. The last step of every change.
CREATE OR REPLACE FUNCTION {prefix}finish(a_name text) RETURNS void LANGUAGE plpgsql AS $dlock$
BEGIN
  UPDATE {prefix}locks SET crowd = NOT crowd
  WHERE name = a_name AND crowd <> (EXISTS (SELECT FROM {prefix}waiters w WHERE w.name = a_name)
    OR EXISTS (SELECT FROM {prefix}holders h WHERE h.name = a_name));
END $dlock$;

-- Takes a lock, confirms a grant, or keeps a place in the queue alive: one function for the three, idempotent by attempt.
-- arguments  name; attempt; kind: -1 alone, 0 shared, else the limit of a semaphore; lease, us; label; channel to tell a grant to, NULL: does
--            not wait, '': asks again by itself; bell of the connection that listens; how long a waiter may be silent, us; the channel of
--            its client, also if nobody listens there
-- returns    said: 1 held, and the number is the token; 0 busy, and the number is the time after which asking again is worth it (us,
--            0: not known); 4 the same, and nobody here keeps the bell, so it stands in the queue as one that asks again; 2 abandoned;
--            3 conflict, and the number is the limit in use. And the last token that was given out before
CREATE OR REPLACE FUNCTION {prefix}acquire(a_name text, a_attempt uuid, a_kind integer, a_lease bigint, a_label text, a_channel text,
  a_bell bigint, a_patience bigint, a_client text, OUT said integer, OUT number bigint, OUT last_token bigint)
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
    PERFORM {prefix}begin();
  END IF;
  -- The short way: plainly free. When somebody else changes the row meanwhile, the server reads it again and evaluates all of this anew.
  IF a_kind < 0 THEN
    UPDATE {prefix}locks SET owner = a_attempt, token = greatest(nextval('{prefix}tokens'), token + 1), lease_us = a_lease, label = a_label,
      taken_at = clock_timestamp(), expires_at = clock_timestamp() + lasts, ear = ''
    WHERE name = a_name AND (owner IS NULL OR expires_at <= clock_timestamp()) AND NOT crowd AND doubt_until <= clock_timestamp()
    RETURNING token INTO number;
    IF FOUND THEN
      said := 1;
      RETURN;
    END IF;
  END IF;
  LOOP
    SELECT * INTO l FROM {prefix}locks WHERE name = a_name FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO {prefix}locks (name, token) SELECT a_name, coalesce(max(v), 0) FROM {prefix}meta WHERE k = 'swept' ON CONFLICT DO NOTHING;
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
    UPDATE {prefix}locks SET expires_at = t + lasts WHERE name = a_name;
    said := 1;
    number := l.token;
    RETURN;
  END IF;
  -- The short way of those who wait: somebody has it alone, so nobody shares it, and nothing can be given to anybody. It is no way past a
  -- first of the queue that has died, since that one would have looked when the lease of the holder ends.
  IF l.owner IS NOT NULL AND l.expires_at > t AND a_kind <= 0 AND l.doubt_until <= t THEN
    SELECT attempt, until, bell INTO w FROM {prefix}waiters WHERE name = a_name ORDER BY ticket LIMIT 1;
    IF w.attempt IS NULL OR w.attempt = a_attempt OR (w.until > t AND pg_try_advisory_xact_lock_shared(w.bell) IS NOT TRUE) THEN
      said := busy;
      number := CASE WHEN a_channel IS NULL OR w.attempt IS NULL OR w.attempt = a_attempt
        THEN greatest(1, extract(epoch FROM l.expires_at - t) * 1000000) ELSE 0 END;
      IF a_channel IS NULL THEN RETURN; END IF;
      IF w.attempt IS NOT NULL THEN
        UPDATE {prefix}waiters SET channel = a_channel, bell = a_bell, until = t + a_patience * interval '1 microsecond'
        WHERE name = a_name AND attempt = a_attempt;
        IF FOUND THEN RETURN; END IF;
      END IF;
      INSERT INTO {prefix}waiters VALUES (a_name, nextval('{prefix}tokens'), a_attempt, a_kind, a_lease, a_patience, a_channel, a_bell,
        t + a_patience * interval '1 microsecond', a_label, a_client);
      IF l.ear NOT IN ('', a_client) THEN PERFORM pg_notify(l.ear, '?' || l.owner); END IF;
      IF NOT l.crowd THEN UPDATE {prefix}locks SET crowd = true WHERE name = a_name; END IF;
      RETURN;
    END IF;
  END IF;
  UPDATE {prefix}holders SET expires_at = t + lasts WHERE name = a_name AND attempt = a_attempt AND expires_at > t RETURNING token INTO number;
  IF FOUND THEN
    said := 1;
    RETURN;
  END IF;
  IF l.doubt_until > t AND EXISTS (SELECT FROM {prefix}abandoned WHERE attempt = a_attempt AND until > t) THEN
    said := 2;
    RETURN;
  END IF;

  SELECT * INTO s FROM {prefix}settle(a_name, a_attempt, t);
  IF NOT s.alone AND (s.head IS NULL OR s.head = a_attempt)
    AND (s.sharing = 0 OR (a_kind = s.kind AND (a_kind = 0 OR s.sharing < a_kind)))
  THEN
    said := 1;
    SELECT greatest(nextval('{prefix}tokens'), token + 1) INTO number FROM {prefix}locks WHERE name = a_name;
    DELETE FROM {prefix}waiters WHERE name = a_name AND attempt = a_attempt;
    IF a_kind < 0 THEN
      UPDATE {prefix}locks SET owner = a_attempt, token = number, lease_us = a_lease, label = a_label, taken_at = t, expires_at = t + lasts,
        ear = ''
      WHERE name = a_name;
    ELSE
      INSERT INTO {prefix}holders VALUES (a_name, a_attempt, a_kind, number, a_lease, t, t + lasts, a_label);
      UPDATE {prefix}locks SET token = number, owner = NULL, expires_at = t WHERE name = a_name;
      -- Those who fit beside us need not wait for the next release.
      PERFORM {prefix}settle(a_name, NULL, t);
    END IF;
    PERFORM {prefix}finish(a_name);
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
      UPDATE {prefix}waiters SET channel = a_channel, bell = a_bell, until = t + a_patience * interval '1 microsecond'
      WHERE name = a_name AND attempt = a_attempt;
      IF NOT FOUND THEN
        INSERT INTO {prefix}waiters VALUES (a_name, nextval('{prefix}tokens'), a_attempt, a_kind, a_lease, a_patience, a_channel, a_bell,
          t + a_patience * interval '1 microsecond', a_label, a_client);
        PERFORM pg_notify(h.ear, '?' || h.attempt) FROM (
          SELECT ear, owner AS attempt FROM {prefix}locks WHERE name = a_name AND owner IS NOT NULL AND expires_at > t
          UNION ALL SELECT ear, attempt FROM {prefix}holders WHERE name = a_name) h WHERE h.ear NOT IN ('', a_client);
        IF s.head IS NULL THEN s.head := a_attempt; END IF;
      END IF;
    END IF;
    -- Only the first of the queue looks when the lease ends: no herd.
    IF a_channel IS NULL OR s.head = a_attempt THEN
      number := greatest(1, extract(epoch FROM s.free_at - t) * 1000000);
    END IF;
    -- A grant that settle has made is no longer to come for anybody who hears of it later.
    SELECT token INTO last_token FROM {prefix}locks WHERE name = a_name;
  END IF;
  PERFORM {prefix}finish(a_name);
END $dlock$;

-- Ends whatever an attempt has: a hold or a place in the queue, and hands the lock to the next live waiter.
-- arguments  name; attempt; for how long requests of the attempt that are still under way are refused, us; 0 when there are none
-- returns    1 when it held the lock until now, else 0
CREATE OR REPLACE FUNCTION {prefix}release(a_name text, a_attempt uuid, a_memory bigint) RETURNS integer
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
    PERFORM {prefix}begin();
  END IF;
  IF a_memory = 0 THEN
    UPDATE {prefix}locks SET owner = NULL, expires_at = clock_timestamp()
    WHERE name = a_name AND owner = a_attempt AND expires_at > clock_timestamp() AND NOT crowd;
    IF FOUND THEN RETURN 1; END IF;
  END IF;
  LOOP
    SELECT * INTO l FROM {prefix}locks WHERE name = a_name FOR UPDATE;
    EXIT WHEN FOUND;
    IF a_memory = 0 THEN RETURN 0; END IF;
    -- A late request must find the word about the memory, so nobody else may make the row without it.
    INSERT INTO {prefix}locks (name, token) SELECT a_name, coalesce(max(v), 0) FROM {prefix}meta WHERE k = 'swept' ON CONFLICT DO NOTHING;
  END LOOP;
  t := clock_timestamp();
  -- The short way of a hand-over, with the same outcome as {prefix}settle: from one who has it alone to one who wants it alone, has just given
  -- a sign of life, and listens.
  IF a_memory = 0 AND l.owner = a_attempt AND l.expires_at > t THEN
    SELECT * INTO w FROM {prefix}waiters WHERE name = a_name ORDER BY ticket LIMIT 1;
    IF w.permits < 0 AND w.attempt <> a_attempt AND w.bell IS NOT NULL AND extract(epoch FROM w.until - t) * 3000000 >= w.patience_us * 2
      AND NOT pg_try_advisory_xact_lock_shared(w.bell)
    THEN
      fresh := greatest(nextval('{prefix}tokens'), l.token + 1);
      DELETE FROM {prefix}waiters WHERE name = a_name AND ticket = w.ticket;
      UPDATE {prefix}locks SET owner = w.attempt, token = fresh, lease_us = w.lease_us, taken_at = t, label = w.label, ear = '',
        expires_at = t + w.lease_us * interval '1 microsecond', crowd = EXISTS (SELECT FROM {prefix}waiters v WHERE v.name = a_name)
      WHERE name = a_name;
      PERFORM pg_notify(w.channel, w.attempt || ' ' || fresh);
      RETURN 1;
    END IF;
  END IF;
  DELETE FROM {prefix}waiters WHERE name = a_name AND attempt = a_attempt;
  IF l.owner = a_attempt THEN
    held := l.expires_at > t;
    UPDATE {prefix}locks SET owner = NULL, expires_at = t WHERE name = a_name;
  ELSE
    DELETE FROM {prefix}holders WHERE name = a_name AND attempt = a_attempt RETURNING expires_at > t INTO held;
  END IF;
  IF a_memory > 0 THEN
    INSERT INTO {prefix}abandoned VALUES (a_attempt, t + a_memory * interval '1 microsecond')
    ON CONFLICT (attempt) DO UPDATE SET until = EXCLUDED.until;
    UPDATE {prefix}locks SET doubt_until = greatest(doubt_until, t + a_memory * interval '1 microsecond') WHERE name = a_name;
    DELETE FROM {prefix}abandoned WHERE attempt IN
      (SELECT attempt FROM {prefix}abandoned WHERE until <= t LIMIT 100 FOR UPDATE SKIP LOCKED);
  END IF;
  PERFORM {prefix}settle(a_name, NULL, t);
  PERFORM {prefix}finish(a_name);
  RETURN CASE WHEN held THEN 1 ELSE 0 END;
END $dlock$;

-- Extends all holds of a batch that are still ours. An attempt is unique, so the two lists need not be paired.
-- arguments  names, attempts, whether to wait for rows that somebody has locked
-- returns    the attempts whose holds were extended, and the names that were left out because somebody has locked their rows
--
-- A batch does not wait: one row that somebody keeps would cost all its holds their renewal, and keep those it has locked from everybody. What was
-- left out is asked for again alone.
CREATE OR REPLACE FUNCTION {prefix}renew(a_names text[], a_attempts uuid[], a_wait boolean)
RETURNS TABLE (renewed uuid, left_out text) LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  ours text[];
BEGIN
  PERFORM {prefix}begin();
  IF a_wait THEN
    ours := ARRAY(SELECT l.name FROM {prefix}locks l WHERE l.name = ANY (a_names) ORDER BY l.name FOR UPDATE);
  ELSE
    ours := ARRAY(SELECT l.name FROM {prefix}locks l WHERE l.name = ANY (a_names) FOR UPDATE SKIP LOCKED);
  END IF;
  t := clock_timestamp();
  RETURN QUERY UPDATE {prefix}locks l SET expires_at = t + l.lease_us * interval '1 microsecond'
    WHERE l.name = ANY (ours) AND l.owner = ANY (a_attempts) AND l.expires_at > t RETURNING l.owner, NULL::text;
  RETURN QUERY UPDATE {prefix}holders h SET expires_at = t + h.lease_us * interval '1 microsecond'
    WHERE h.name = ANY (ours) AND h.attempt = ANY (a_attempts) AND h.expires_at > t RETURNING h.attempt, NULL::text;
  RETURN QUERY SELECT NULL::uuid, l.name FROM {prefix}locks l WHERE l.name = ANY (a_names) AND l.name <> ALL (ours);
END $dlock$;

-- Turns an exclusive hold into a shared one; false when it is gone. Repeating it is harmless.
CREATE OR REPLACE FUNCTION {prefix}downgrade(a_name text, a_attempt uuid) RETURNS boolean LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
BEGIN
  PERFORM {prefix}begin();
  SELECT * INTO l FROM {prefix}locks WHERE name = a_name FOR UPDATE;
  t := clock_timestamp();
  IF NOT FOUND OR l.owner IS DISTINCT FROM a_attempt OR l.expires_at <= t THEN
    RETURN EXISTS (SELECT FROM {prefix}holders WHERE name = a_name AND attempt = a_attempt AND permits = 0 AND expires_at > t);
  END IF;
  INSERT INTO {prefix}holders VALUES (a_name, a_attempt, 0, l.token, l.lease_us, l.taken_at, l.expires_at, l.label, l.ear);
  UPDATE {prefix}locks SET owner = NULL, expires_at = t WHERE name = a_name;
  PERFORM {prefix}settle(a_name, NULL, t);
  PERFORM {prefix}finish(a_name);
  RETURN true;
END $dlock$;

-- A holder listens: from now on whoever comes to wait tells its channel, unless it is of the same client. The row of the lock is locked first, as it
-- is by those who come: either they see the ear, or they are seen here.
-- arguments  name; attempt; channel of its client; bell of the connection that listens
-- returns    1 somebody of another client waits; 0 nobody, or the hold is gone; 4 nobody here keeps the bell: who listens does so elsewhere
CREATE OR REPLACE FUNCTION {prefix}listen(a_name text, a_attempt uuid, a_client text, a_bell bigint) RETURNS integer
LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
BEGIN
  PERFORM {prefix}begin();
  SELECT owner, expires_at, ear INTO l FROM {prefix}locks WHERE name = a_name FOR UPDATE;
  t := clock_timestamp();
  IF l.owner = a_attempt AND l.expires_at > t THEN
    IF l.ear <> a_client THEN UPDATE {prefix}locks SET ear = a_client WHERE name = a_name; END IF;
  ELSE
    UPDATE {prefix}holders SET ear = a_client WHERE name = a_name AND attempt = a_attempt AND expires_at > t;
    IF NOT FOUND THEN RETURN 0; END IF;
  END IF;
  IF EXISTS (SELECT FROM {prefix}waiters WHERE name = a_name AND client <> a_client AND until > t) THEN RETURN 1; END IF;
  IF a_bell IS NOT NULL AND pg_try_advisory_xact_lock_shared(a_bell) THEN RETURN 4; END IF;
  RETURN 0;
END $dlock$;

-- Ends every hold of a name, whoever has it; false when there was none.
CREATE OR REPLACE FUNCTION {prefix}break(a_name text) RETURNS boolean LANGUAGE plpgsql AS $dlock$
DECLARE
  t timestamptz;
  l record;
  had boolean;
BEGIN
  PERFORM {prefix}begin();
  SELECT * INTO l FROM {prefix}locks WHERE name = a_name FOR UPDATE;
  IF NOT FOUND THEN RETURN false; END IF;
  t := clock_timestamp();
  had := l.owner IS NOT NULL AND l.expires_at > t
    OR EXISTS (SELECT FROM {prefix}holders WHERE name = a_name AND expires_at > t);
  DELETE FROM {prefix}holders WHERE name = a_name;
  UPDATE {prefix}locks SET owner = NULL, expires_at = t WHERE name = a_name;
  PERFORM {prefix}settle(a_name, NULL, t);
  PERFORM {prefix}finish(a_name);
  RETURN had;
END $dlock$;

-- Removes rows of locks that nobody has used for a time, some hundred at once, and before them what the dead have left in queues. A row
-- that is locked is in use. Tokens go on: they come from a sequence, and a new row begins above all that were removed, in case a replica
-- takes over that did not follow the sequence. A row whose token the sequence has not reached yet stays, for nothing else knows it.
-- arguments  age, us
-- returns    how many rows of locks
CREATE OR REPLACE FUNCTION {prefix}sweep(a_age bigint) RETURNS bigint LANGUAGE plpgsql AS $dlock$
DECLARE
  swept bigint;
  reached bigint := nextval('{prefix}tokens');
  l record;
BEGIN
  PERFORM {prefix}begin();
  FOR l IN SELECT name FROM {prefix}locks
    WHERE crowd AND expires_at <= clock_timestamp() - a_age * interval '1 microsecond' LIMIT 500 FOR UPDATE SKIP LOCKED
  LOOP
    PERFORM {prefix}settle(l.name, NULL, clock_timestamp());
    PERFORM {prefix}finish(l.name);
  END LOOP;
  DELETE FROM {prefix}locks WHERE name IN (SELECT name FROM {prefix}locks
    WHERE expires_at <= clock_timestamp() - a_age * interval '1 microsecond' AND doubt_until <= clock_timestamp() AND NOT crowd
      AND token < reached
    LIMIT 500 FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS swept = ROW_COUNT;
  IF swept > 0 THEN
    INSERT INTO {prefix}meta AS m (k, v) VALUES ('swept', reached) ON CONFLICT (k) DO UPDATE SET v = greatest(m.v, excluded.v);
  END IF;
  RETURN swept;
END $dlock$;

INSERT INTO {prefix}meta AS m (k, v) VALUES ('lease', 2) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
INSERT INTO {prefix}meta (k, v) VALUES ('store', (random() * 9007199254740991)::bigint) ON CONFLICT DO NOTHING;
