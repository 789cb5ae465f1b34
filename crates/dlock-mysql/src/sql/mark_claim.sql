-- Makes whoever has the lock its holder, with the next token, if the mark is as it was seen. Assignments are made from left to right.
-- arguments  attempt, validity in microseconds, connection, id, stamp
-- returns    affected rows
UPDATE {marks} SET stamp = stamp + 1, lost = IF(owner IS NULL, lost, fence), fence = fence + 1, owner = ?, valid_us = ?, broken = 0,
  connection = ?, seated_at = UTC_TIMESTAMP(6), dead_at = NULL
WHERE id = ? AND stamp = ?
