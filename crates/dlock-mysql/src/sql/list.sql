-- Who holds which locks.
-- arguments  prefix, length of the prefix, prefix, and the same again
-- returns    as inspect.sql, sorted by name
SELECT name, owner, NULL, token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}locks WHERE name >= ? AND LEFT(name, ?) = ? AND owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)
UNION ALL
SELECT name, attempt, permits, token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}holders WHERE name >= ? AND LEFT(name, ?) = ? AND expires_at > UTC_TIMESTAMP(6)
ORDER BY 1
