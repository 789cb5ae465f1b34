-- Ends all shared holds and permits of a name.
-- arguments  name
-- returns    affected rows
DELETE FROM {prefix}holders WHERE name = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
