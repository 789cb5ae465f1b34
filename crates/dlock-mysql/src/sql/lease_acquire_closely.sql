-- Takes the lock if it is free, with a look at shared holders, permits and abandoned attempts.
-- arguments  attempt, attempt, attempt, label, lease in microseconds, attempt, lease in microseconds, name
-- returns    the last insert id: the last of its tokens when held; the flag 1 << 62 when busy, with the time until the holder's lease ends in
--            microseconds if that is known; the flags 3 << 61 when the attempt was abandoned; 0 when there is no such row
--
-- Assignments are made from left to right: the first decides, `fence > token` means "taken by this statement" for those that follow, and
-- the last makes them equal again. So must all others leave them: where they differ, a client that asks takes the lock, whoever has it.
-- The subqueries refer to the row, so they run when it is locked, and they are locking reads, so they see what is committed by then: an
-- abandon writes its marker before it changes the row, hence one of the two sees the other (C13).
UPDATE {prefix}locks SET
  fence = CASE
    WHEN owner = ? AND expires_at > UTC_TIMESTAMP(6) THEN LAST_INSERT_ID(fence)
-- Busy: 4611686018427387904 is the flag 1 << 62, above every token; the bits below it are the time.
    WHEN owner IS NOT NULL AND expires_at > UTC_TIMESTAMP(6) THEN fence + 0 * LAST_INSERT_ID(
      4611686018427387904 + TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at))
-- Abandoned: 6917529027641081856 is busy with the flag 1 << 61, above every time.
    WHEN EXISTS (SELECT 1 FROM {prefix}abandoned a
      WHERE a.attempt = ? AND {prefix}locks.name IS NOT NULL LOCK IN SHARE MODE)
      THEN fence + 0 * LAST_INSERT_ID(6917529027641081856)
-- Busy with shared holders or permits: no time is known.
    WHEN EXISTS (SELECT 1 FROM {prefix}holders h
      WHERE h.name = {prefix}locks.name AND h.expires_at > UTC_TIMESTAMP(6) LOCK IN SHARE MODE)
      THEN fence + 0 * LAST_INSERT_ID(4611686018427387904)
    ELSE LAST_INSERT_ID(fence + {turns}) END,
  owner = IF(fence > token, ?, owner),
  shared = IF(fence > token, 0, shared),
  label = IF(fence > token, ?, label),
  lease_us = IF(fence > token, ?, lease_us),
  taken_at = IF(fence > token, UTC_TIMESTAMP(6), taken_at),
  expires_at = IF(fence > token OR owner = ? AND expires_at > UTC_TIMESTAMP(6),
    UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, expires_at),
  token = fence
WHERE name = ? AND {takes_writes}
