-- Extends all holds of a batch that are still ours.
-- arguments  names, attempts
-- returns    affected rows
UPDATE {prefix}unique SET expires_at = UTC_TIMESTAMP(6) + INTERVAL lease_us MICROSECOND
WHERE name IN ({list}) AND owner IN ({list}) AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
