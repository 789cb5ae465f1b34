-- Extends all exclusive holds of a batch that are still ours. An attempt is unique, so the two lists need not be paired.
-- arguments  names, attempts
-- returns    affected rows
UPDATE {prefix}locks SET expires_at = UTC_TIMESTAMP(6) + INTERVAL lease_us MICROSECOND
WHERE name IN ({list}) AND owner IN ({list}) AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
