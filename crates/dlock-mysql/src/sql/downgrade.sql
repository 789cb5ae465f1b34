-- Turns an exclusive hold into a shared one, in one request of several statements.
-- variables  @dlock_name, @dlock_attempt
-- returns    one row in the last result: 1 when the shared hold is there. It has the first of the tokens of the exclusive one, whose last
--            stays in the counter.
START TRANSACTION;
SELECT 1 FROM {prefix}locks WHERE name = @dlock_name AND {takes_writes} FOR UPDATE;
INSERT IGNORE INTO {prefix}holders (name, attempt, permits, token, lease_us, taken_at, expires_at, label)
SELECT l.name, l.owner, 0, l.token - {turns} + 1, l.lease_us, l.taken_at, l.expires_at, l.label FROM {prefix}locks l
WHERE l.name = @dlock_name AND l.owner = @dlock_attempt AND l.expires_at > UTC_TIMESTAMP(6) AND {takes_writes};
UPDATE {prefix}locks SET owner = NULL, expires_at = UTC_TIMESTAMP(6), shared = 1
WHERE name = @dlock_name AND owner = @dlock_attempt AND expires_at > UTC_TIMESTAMP(6);
SELECT COUNT(*) FROM {prefix}holders
WHERE name = @dlock_name AND attempt = @dlock_attempt AND expires_at > UTC_TIMESTAMP(6);
COMMIT
