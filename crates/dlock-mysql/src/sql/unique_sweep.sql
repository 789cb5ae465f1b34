-- Removes what is left of holders that died, and of abandoned attempts. What is live stays.
-- arguments  age in microseconds
-- returns    affected rows
DELETE FROM {prefix}unique WHERE expires_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND {takes_writes}
