-- Removes a shared hold or a permit of an attempt that was abandoned.
-- arguments  name, attempt
DELETE FROM {prefix}holders WHERE name = ? AND attempt = ? AND {takes_writes}
