-- Removes rows of locks that nobody has used for a time (R56), and what is left of holders that died.
-- variables  @dlock_age (microseconds)
-- returns    one row in the last result: how many rows of locks were removed
--
-- The highest counter among them becomes the floor for new rows, before they go: tokens of a name never start again (C11). A row that is
-- in use while we wait for it has a new time when we get it, and stays.
START TRANSACTION;
SELECT v FROM {prefix}meta WHERE k = 'fence' FOR UPDATE;
DELETE FROM {prefix}abandoned WHERE until <= UTC_TIMESTAMP(6);
DELETE FROM {prefix}holders WHERE expires_at <= UTC_TIMESTAMP(6) - INTERVAL @dlock_age MICROSECOND;
SET @dlock_floor = (SELECT MAX(fence) FROM {prefix}locks);
UPDATE {prefix}meta SET v = GREATEST(v, COALESCE(@dlock_floor, 0)) WHERE k = 'fence';
DELETE FROM {prefix}locks
WHERE expires_at <= UTC_TIMESTAMP(6) - INTERVAL @dlock_age MICROSECOND AND fence <= @dlock_floor AND doubt_until <= UTC_TIMESTAMP(6)
  AND NOT EXISTS (SELECT 1 FROM {prefix}holders h WHERE h.name = {prefix}locks.name AND h.expires_at > UTC_TIMESTAMP(6));
SELECT ROW_COUNT();
COMMIT
