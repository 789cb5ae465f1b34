-- Who holds a lock.
-- arguments  name
-- returns    as inspect.sql
SELECT name, owner, NULL, id + {turns} - 1, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}unique WHERE name = ? AND expires_at > UTC_TIMESTAMP(6)
