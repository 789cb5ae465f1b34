-- Who holds and who waits, of the locks that {which} tells: one name, or all that begin with a text.
-- arguments  name or prefix
-- returns    name; whether it waits; attempt; kind as in schema.sql; token; us until the hold ends; us since 1970 when it began; label
SELECT name, false AS waits, owner AS attempt, -1 AS kind, token, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint AS left_us,
  (extract(epoch FROM taken_at) * 1000000)::bigint AS since_us, label, token AS place
FROM {prefix}locks WHERE {which} AND owner IS NOT NULL AND expires_at > clock_timestamp()
UNION ALL
SELECT name, false, attempt, permits, token, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint,
  (extract(epoch FROM taken_at) * 1000000)::bigint, label, token
FROM {prefix}holders WHERE {which} AND expires_at > clock_timestamp()
UNION ALL
SELECT name, true, attempt, permits, NULL, NULL, NULL, label, ticket
FROM {prefix}waiters WHERE {which} AND until > clock_timestamp()
ORDER BY 1, 2, 9
