-- Ends an exclusive hold, whoever has it.
-- arguments  name
-- returns    affected rows
UPDATE {prefix}locks SET owner = NULL, expires_at = UTC_TIMESTAMP(6)
WHERE name = ? AND owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
