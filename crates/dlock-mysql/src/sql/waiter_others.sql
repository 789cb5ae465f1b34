-- Whether somebody of another client has left a sign.
-- arguments  the first and the last sign of the name, client
-- returns    how many signs of others there are, one at most
SELECT COUNT(*) FROM (SELECT 1 FROM {prefix}abandoned
WHERE attempt >= ? AND attempt <= ? AND SUBSTRING(attempt, 9, 4) <> ? AND until > UTC_TIMESTAMP(6) LIMIT 1) w
