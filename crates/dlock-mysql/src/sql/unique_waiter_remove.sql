-- Removes the sign of one that waits no longer.
-- arguments  sign
DELETE FROM {prefix}unique WHERE owner = ? AND name < 0x01 AND {takes_writes}
