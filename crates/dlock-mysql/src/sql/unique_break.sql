-- Ends a hold, whoever has it.
-- arguments  name
-- returns    affected rows
DELETE FROM {prefix}unique WHERE name = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
