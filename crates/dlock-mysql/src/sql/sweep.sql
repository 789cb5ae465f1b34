-- Removes rows of locks that nobody has used for a time, among some hundred names: a client that uses a new name waits for one
-- such part of the sweep, not for all of it.
-- variables  @dlock_age (microseconds), @dlock_after: the names after this one
-- returns    one row in the last result: how many rows of locks were removed, and the last name that was looked at; NULL at the end
--
-- The highest counter among them becomes the floor for new rows, before they go: tokens of a name never start again (C11). A row that is
-- in use while we wait for it has a new time when we get it, and stays.
SET @dlock_last = (SELECT MAX(name) FROM (SELECT name FROM {prefix}locks WHERE name > @dlock_after ORDER BY name LIMIT 500) part);
START TRANSACTION;
SELECT v FROM {prefix}meta WHERE k = 'fence' AND {takes_writes} FOR UPDATE;
SET @dlock_floor = (SELECT MAX(fence) FROM {prefix}locks WHERE name > @dlock_after AND name <= @dlock_last);
UPDATE {prefix}meta SET v = GREATEST(v, COALESCE(@dlock_floor, 0)) WHERE k = 'fence';
DELETE FROM {prefix}locks
WHERE name > @dlock_after AND name <= @dlock_last
  AND expires_at <= UTC_TIMESTAMP(6) - INTERVAL @dlock_age MICROSECOND AND fence <= @dlock_floor AND doubt_until <= UTC_TIMESTAMP(6)
  AND NOT EXISTS (SELECT 1 FROM {prefix}holders h WHERE h.name = {prefix}locks.name AND h.expires_at > UTC_TIMESTAMP(6));
SELECT ROW_COUNT(), @dlock_last;
COMMIT
