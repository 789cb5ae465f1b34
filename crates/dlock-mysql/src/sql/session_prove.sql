-- Proves that this connection has the lock: to lock a row that it has locked costs nothing, and fails when another one has it.
-- arguments  attempt, token, name
-- returns    whether the server is read-only, 1 (it has the lock), whether the mark is ours, and whether nobody has begun to count our time
SELECT CONCAT(@@global.read_only), 1,
  (SELECT m.owner = ? AND m.fence = ? AND m.broken = 0 FROM {marks} m WHERE m.name = s.name AND m.part = 1),
  (SELECT m.dead_at IS NULL FROM {marks} m WHERE m.name = s.name AND m.part = 1)
FROM {marks} s WHERE s.name = ? AND s.part = 0 FOR UPDATE NOWAIT
