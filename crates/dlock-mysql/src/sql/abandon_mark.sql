-- Remembers an abandoned attempt, so that a late request of it takes no effect.
-- arguments  attempt
INSERT INTO {prefix}abandoned (attempt, until) VALUES (?, UTC_TIMESTAMP(6) + INTERVAL 5 * {takes_writes} MINUTE)
ON DUPLICATE KEY UPDATE until = UTC_TIMESTAMP(6) + INTERVAL 5 MINUTE
