-- Locks the row of a name if nobody has it, and says so in a variable. Followed by session_grab.sql, which waits otherwise.
SELECT 1 INTO @dlock_is_free FROM {marks} WHERE name = {name} AND part = 0 FOR UPDATE SKIP LOCKED
