-- Who holds, of the locks that {which} tells. A holder whose connection has ended is left out: it may be dead, and its mark stays until
-- somebody takes the lock.
-- arguments  name or prefix
-- returns    as look.sql; there is no lease, and who waits is known to the server alone
SELECT name, false AS waits, owner AS attempt, -1 AS kind, token, NULL::bigint AS left_us,
  (extract(epoch FROM taken_at) * 1000000)::bigint AS since_us, label
FROM {prefix}sessions WHERE {which} AND owner IS NOT NULL AND NOT broken
  AND sign IN (SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
ORDER BY 1
