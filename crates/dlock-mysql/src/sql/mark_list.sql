-- Who holds which locks, by what their marks know: see mark_inspect.sql.
-- arguments  prefix, length of the prefix, prefix
-- returns    as inspect.sql, sorted by name
SELECT name, owner, NULL, fence, NULL, CAST(UNIX_TIMESTAMP(seated_at) * 1000000 AS UNSIGNED), label
FROM {marks} WHERE name >= ? AND LEFT(name, ?) = ? AND part = 1 AND owner IS NOT NULL AND broken = 0
  AND IS_USED_LOCK(CONCAT('dlock:conn:', LPAD(HEX(connection), 16, '0'))) IS NOT NULL ORDER BY name
