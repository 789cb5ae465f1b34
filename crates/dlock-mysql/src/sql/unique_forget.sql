-- Forgets attempts that were abandoned long ago.
DELETE FROM {prefix}unique WHERE name < 0x01 AND expires_at <= UTC_TIMESTAMP(6) AND {takes_writes} LIMIT 100
