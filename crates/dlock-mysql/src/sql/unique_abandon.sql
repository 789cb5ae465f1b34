-- Turns whatever an attempt has left into the memory of its abandon, in one step: a hold loses its name, and a late claim meets the owner.
-- arguments  attempt, attempt
INSERT INTO {prefix}unique (name, owner, fenced, lease_us, taken_at, expires_at, label)
VALUES (CONCAT(0x00, ?), ?, 1 * {takes_writes}, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 5 MINUTE, '')
ON DUPLICATE KEY UPDATE name = VALUES(name), expires_at = VALUES(expires_at)
