-- Who holds a lock.
-- arguments  name, name
-- returns    name, owner, permits (NULL: exclusive, 0: shared), token, microseconds until the lease ends, taken at (microseconds since
--            1970), label
SELECT name, owner, NULL, token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}locks WHERE name = ? AND owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)
UNION ALL
SELECT name, attempt, permits, token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}holders WHERE name = ? AND expires_at > UTC_TIMESTAMP(6)
