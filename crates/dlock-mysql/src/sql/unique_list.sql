-- Who holds which locks.
-- arguments  prefix, length of the prefix, prefix
-- returns    as inspect.sql, sorted by name
SELECT name, owner, NULL, id + {turns} - 1, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at),
  CAST(UNIX_TIMESTAMP(taken_at) * 1000000 AS UNSIGNED), label
FROM {prefix}unique WHERE name >= 0x01 AND name >= ? AND LEFT(name, ?) = ? AND expires_at > UTC_TIMESTAMP(6) ORDER BY name
