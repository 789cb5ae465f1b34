-- Frees a shared hold or a permit that is still ours.
-- arguments  name, attempt
-- returns    affected rows: 1 when it was ours until now
DELETE FROM {prefix}holders WHERE name = ? AND attempt = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
