-- Who holds a lock, by what its mark knows. A holder whose connection has ended is left out: it may be dead, and its mark stays until
-- somebody takes the lock.
-- arguments  name
-- returns    as inspect.sql; there is no lease
SELECT name, owner, NULL, fence, NULL, CAST(UNIX_TIMESTAMP(seated_at) * 1000000 AS UNSIGNED), label
FROM {marks} WHERE name = ? AND part = 1 AND owner IS NOT NULL AND broken = 0
  AND IS_USED_LOCK(CONCAT('dlock:conn:', LPAD(HEX(connection), 16, '0'))) IS NOT NULL
