-- Frees an exclusive hold that is still ours.
-- arguments  name, attempt
-- returns    affected rows: 1 when it was ours until now
UPDATE {prefix}locks SET owner = NULL, expires_at = UTC_TIMESTAMP(6)
WHERE name = ? AND owner = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
