-- For one that waits: whether another one holds the lock alone, without a lock on its row.
-- arguments  name, attempt
-- returns    no row when not; else microseconds until the holder's lease ends
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) FROM {prefix}locks
WHERE name = ? AND owner <> ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
