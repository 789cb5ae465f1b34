-- Removes the sign of one that waits no longer.
-- arguments  sign
DELETE FROM {prefix}abandoned WHERE attempt = ? AND {takes_writes}
