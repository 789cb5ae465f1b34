-- Takes a lock that is plainly free, in one statement on one row.
-- arguments  attempt, label, lease in microseconds, lease in microseconds, name
-- returns    affected rows: 1 when held, and the last insert id is the last of its tokens; 0 when lease_acquire_closely.sql must tell more
--
-- Assignments are made from left to right (our sessions pin the sql_mode).
UPDATE {prefix}locks SET fence = LAST_INSERT_ID(fence + {turns}), token = fence, owner = ?, label = ?, lease_us = ?,
  taken_at = UTC_TIMESTAMP(6), expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE name = ? AND (owner IS NULL OR expires_at <= UTC_TIMESTAMP(6)) AND shared = 0 AND doubt_until <= UTC_TIMESTAMP(6) AND {takes_writes}
