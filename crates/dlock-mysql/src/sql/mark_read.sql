-- Who held the lock last. Run on the connection that has the lock, so that the answer is not older than the grant.
-- arguments  name
-- returns    id, stamp, fence, owner (NULL: it left in order), for how long its last sign of life is good in microseconds, whether it was
--            broken, the call sign of its connection, how many microseconds are left of the time after which it is certain that it no
--            longer holds (NULL: nobody has begun to count), the last token whose holder left in order, and the last one whose holder did
--            not
SELECT id, stamp, fence, owner, valid_us, broken, connection,
  GREATEST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), dead_at + INTERVAL valid_us MICROSECOND), 0), freed, lost
FROM {marks} WHERE name = ? AND part = 1
