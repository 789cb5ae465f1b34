-- Forgets attempts that were abandoned long ago.
DELETE FROM {prefix}abandoned WHERE until <= UTC_TIMESTAMP(6) LIMIT 100
