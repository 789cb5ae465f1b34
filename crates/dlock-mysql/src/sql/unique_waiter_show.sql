-- Leaves the sign of one that waits, or lets it live longer, as the memory of an abandon: see waiters.rs.
-- arguments  sign
INSERT INTO {prefix}unique (name, owner, fenced, lease_us, taken_at, expires_at, label)
SELECT CONCAT(0x00, s.sign), s.sign, 1 * {takes_writes}, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 8 SECOND, ''
FROM (SELECT CAST(? AS BINARY(16)) AS sign) s
ON DUPLICATE KEY UPDATE expires_at = UTC_TIMESTAMP(6) + INTERVAL 8 SECOND
