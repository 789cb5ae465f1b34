-- Takes the lock and its mark, in one statement: if nobody has the lock, or this connection has it already, and the mark has no owner.
-- arguments  attempt, validity in microseconds, connection, label, name, name of the lock at the server (four times)
-- returns    affected rows: 1 when it holds, and then the last insert id is the last of its tokens. Else that is 1: another connection has the lock; 2:
--            nobody has it, but the mark has an owner, or the server did not grant it; 3: the server takes no writes; 0: the name was never used
--
-- The row of the mark is locked before the condition is looked at, so nobody changes it between the look at the owner and the change: that is so where a
-- row is found by its whole primary key, hence the hint; in a scan the server looks at the last version that was committed first. The branches of
-- CASE are looked at one after the other, and only the one that is taken is carried out. A server that looks twice at the condition of a row
-- must not take the lock twice, since one release would not free it then: hence the question whether we have it.
UPDATE {marks} FORCE INDEX (PRIMARY) SET stamp = stamp + 1, fence = LAST_INSERT_ID(fence + {turns}), owner = ?, valid_us = ?, broken = 0,
  connection = ?, seated_at = UTC_TIMESTAMP(6), dead_at = NULL, label = ?
WHERE name = ? AND part = 1 AND CASE
  WHEN NOT {writable} THEN 0 * LAST_INSERT_ID(3)
  WHEN owner IS NOT NULL THEN 0 * LAST_INSERT_ID(IF(IS_USED_LOCK(?) IS NULL, 2, 1))
  WHEN IS_USED_LOCK(?) = CONNECTION_ID() THEN 1
  WHEN GET_LOCK(?, 0) = 1 THEN 1
  ELSE 0 * LAST_INSERT_ID(IF(IS_USED_LOCK(?) IS NULL, 2, 1)) END
