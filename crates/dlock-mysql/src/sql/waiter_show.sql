-- Leaves the sign of one that waits, or lets it live longer, among the abandoned attempts: see waiters.rs.
-- arguments  sign
INSERT INTO {prefix}abandoned (attempt, until) VALUES (?, UTC_TIMESTAMP(6) + INTERVAL 8 * {takes_writes} SECOND)
ON DUPLICATE KEY UPDATE until = UTC_TIMESTAMP(6) + INTERVAL 8 SECOND
