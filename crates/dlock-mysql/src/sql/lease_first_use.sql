-- Makes the row of a name that was never used, or that was swept. It is free; taking it is another step, so that a late request of
-- this kind does no harm. The shared lock waits for a sweep, whose deleted rows it must know about to count on (C11).
-- arguments  name
INSERT IGNORE INTO {prefix}locks (name, owner, fence, token, lease_us, taken_at, expires_at, shared, doubt_until, label)
SELECT ?, NULL, v, v, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, UTC_TIMESTAMP(6), '' FROM {prefix}meta WHERE k = 'fence' AND {takes_writes} LOCK IN SHARE MODE
