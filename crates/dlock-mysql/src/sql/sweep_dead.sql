-- Removes what is left of shared holders and permits that died, some at a time.
-- arguments  age in microseconds
-- returns    affected rows
DELETE FROM {prefix}holders WHERE expires_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND {takes_writes} LIMIT 500
