-- For one that waits: whether others hold the lock, without a lock on its row.
-- arguments  name, attempt, name, attempt
-- returns    no row when not; else microseconds until the lease ends, and since the lock was taken: of the exclusive holder, or of the shared
--            holder or permit that came last
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6))
FROM {prefix}locks WHERE name = ? AND owner <> ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
UNION ALL
(SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6))
FROM {prefix}holders WHERE name = ? AND attempt <> ? AND expires_at > UTC_TIMESTAMP(6) ORDER BY taken_at DESC LIMIT 1)
