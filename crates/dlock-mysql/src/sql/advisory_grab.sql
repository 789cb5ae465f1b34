-- Asks for a named lock, and tells what a claim needs.
-- arguments  name of the lock at the server, seconds to wait, name
-- returns    as GET_LOCK; id, stamp and fence of the mark, and whether it has no owner; NULL when the name was never used. They may have
--            been read before the lock was granted: a claim compares the stamp. Then whether the server is read-only.
SELECT GET_LOCK(?, ?),
  (SELECT CONCAT_WS(' ', m.id, m.stamp, m.fence, m.owner IS NULL) FROM {marks} m WHERE m.name = ? AND m.part = 1),
  CONCAT(@@global.read_only)
