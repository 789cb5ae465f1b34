-- Takes a shared hold or a permit. One request of several statements, so that a client that dies never leaves the transaction open.
-- variables  @dlock_name, @dlock_attempt, @dlock_permits (0: shared), @dlock_label, @dlock_lease (microseconds)
-- returns    one row in the last result: whether the row of the name was there to be locked; our token, if held; whether the attempt was
--            abandoned; another limit that is in use; microseconds until the exclusive holder's lease ends; microseconds since the
--            exclusive holder came, and since the last of the others did
--
-- The row of the name is locked first, by everybody who takes the lock in any mode. Where there is no row, nothing is locked, and
-- nothing is taken: another one may make the row and take the lock before the next statement. Its time is set to now, so that a sweep that
-- waits for it does not take it for unused. Each statement that makes or extends a hold looks whether the server still takes writes.
START TRANSACTION;
SELECT COUNT(*) INTO @dlock_locked FROM {prefix}locks WHERE name = @dlock_name AND {takes_writes} FOR UPDATE;
DELETE FROM {prefix}holders WHERE name = @dlock_name AND expires_at <= UTC_TIMESTAMP(6);
INSERT INTO {prefix}holders (name, attempt, permits, token, lease_us, taken_at, expires_at, label)
SELECT l.name, @dlock_attempt, @dlock_permits, l.fence + 1, @dlock_lease, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), @dlock_label
FROM {prefix}locks l
WHERE @dlock_locked = 1 AND l.name = @dlock_name AND (l.owner IS NULL OR l.expires_at <= UTC_TIMESTAMP(6))
  AND NOT EXISTS (SELECT 1 FROM {prefix}abandoned a WHERE a.attempt = @dlock_attempt)
  AND NOT EXISTS (SELECT 1 FROM {prefix}holders h
    WHERE h.name = @dlock_name AND (h.attempt = @dlock_attempt OR h.permits <> @dlock_permits))
  AND (@dlock_permits = 0
    OR (SELECT COUNT(*) FROM {prefix}holders h WHERE h.name = @dlock_name) < @dlock_permits)
  AND {takes_writes};
UPDATE {prefix}holders SET expires_at = UTC_TIMESTAMP(6) + INTERVAL lease_us MICROSECOND
WHERE name = @dlock_name AND attempt = @dlock_attempt AND {takes_writes};
UPDATE {prefix}locks l JOIN {prefix}holders h ON h.name = l.name AND h.attempt = @dlock_attempt
SET l.owner = NULL, l.expires_at = UTC_TIMESTAMP(6), l.token = h.token, l.fence = h.token, l.shared = 1
WHERE l.name = @dlock_name AND h.token > l.fence;
SELECT @dlock_locked,
  (SELECT token FROM {prefix}holders WHERE name = @dlock_name AND attempt = @dlock_attempt),
  (SELECT COUNT(*) FROM {prefix}abandoned WHERE attempt = @dlock_attempt),
  (SELECT MAX(permits) FROM {prefix}holders WHERE name = @dlock_name AND permits > 0 AND permits <> @dlock_permits),
  (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) FROM {prefix}locks
    WHERE name = @dlock_name AND owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)),
  (SELECT TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6)) FROM {prefix}locks
    WHERE name = @dlock_name AND owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)),
  (SELECT TIMESTAMPDIFF(MICROSECOND, MAX(taken_at), UTC_TIMESTAMP(6)) FROM {prefix}holders WHERE name = @dlock_name);
COMMIT
