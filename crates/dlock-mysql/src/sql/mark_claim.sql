-- Makes whoever has the lock its holder, with the next tokens, if the mark is as it was seen. Assignments are made from left to right.
-- arguments  attempt, validity in microseconds, connection, label, id, stamp
-- {writable} makes it a change of nothing on a server that was demoted, also for users whom read_only does not stop.
-- returns    affected rows
UPDATE {marks} SET stamp = stamp + 1, lost = IF(owner IS NULL, lost, fence), fence = fence + {turns}, owner = ?, valid_us = ?, broken = 0,
  connection = ?, seated_at = UTC_TIMESTAMP(6), dead_at = NULL, label = ?
WHERE id = ? AND stamp = ? AND {writable}
