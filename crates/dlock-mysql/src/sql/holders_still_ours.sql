-- Which shared holds and permits of a batch are still there.
-- arguments  names, attempts
-- returns    attempts
SELECT attempt FROM {prefix}holders
WHERE name IN ({list}) AND attempt IN ({list}) AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
