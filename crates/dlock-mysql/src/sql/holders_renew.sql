-- Extends all shared holds and permits of a batch that are still ours.
-- arguments  names, attempts
-- returns    affected rows
UPDATE {prefix}holders SET expires_at = UTC_TIMESTAMP(6) + INTERVAL lease_us MICROSECOND
WHERE name IN ({list}) AND attempt IN ({list}) AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
