-- Frees an exclusive hold of an attempt that was abandoned, and makes the name's next holders look closely. It waits for the row, also when
-- there is no such hold: whoever has it locked may have looked for the marker too early.
-- arguments  attempt, attempt, name
-- returns    affected rows: 0 when there is no such row
UPDATE {prefix}locks SET doubt_until = UTC_TIMESTAMP(6) + INTERVAL 5 MINUTE,
  expires_at = IF(owner = ?, UTC_TIMESTAMP(6), expires_at), owner = IF(owner = ?, NULL, owner)
WHERE name = ? AND {takes_writes}
