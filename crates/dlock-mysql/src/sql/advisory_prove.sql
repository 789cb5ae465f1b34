-- Proves that this connection has the lock.
-- arguments  name of the lock at the server, attempt, token, name, name
-- returns    whether the server is read-only, whether we have the lock, whether the mark is ours, and whether nobody has begun to count
--            our time
SELECT CONCAT(@@global.read_only), COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), 0),
  (SELECT m.owner = ? AND m.fence = ? AND m.broken = 0 FROM {marks} m WHERE m.name = ? AND m.part = 1),
  (SELECT m.dead_at IS NULL FROM {marks} m WHERE m.name = ? AND m.part = 1)
