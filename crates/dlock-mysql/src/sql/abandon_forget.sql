-- Forgets attempts that were abandoned long ago.
DELETE FROM {prefix}abandoned WHERE until <= UTC_TIMESTAMP(6) AND {takes_writes} LIMIT 100
