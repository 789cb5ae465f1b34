-- Which holds of a batch are still there.
-- arguments  names, attempts
-- returns    attempts
SELECT owner FROM {prefix}unique WHERE name IN ({list}) AND owner IN ({list}) AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
