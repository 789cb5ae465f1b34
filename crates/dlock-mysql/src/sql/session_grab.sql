-- Locks the row of a name, and tells what a claim needs. Followed by NOWAIT or not.
-- arguments  name
-- returns    no row when the name was never used; else id, stamp and fence of the mark, and whether it has no owner, which may have been
--            read before the lock was granted: a claim compares the stamp. The mark is not locked, so that others can write it. Then
--            whether the server is read-only.
SELECT (SELECT CONCAT_WS(' ', m.id, m.stamp, m.fence, m.owner IS NULL) FROM {marks} m WHERE m.name = s.name AND m.part = 1),
  CONCAT(@@global.read_only)
FROM {marks} s WHERE s.name = ? AND s.part = 0 FOR UPDATE
