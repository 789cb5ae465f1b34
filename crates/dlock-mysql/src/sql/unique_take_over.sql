-- Takes over an expired row, if it is still the one that was seen.
-- arguments  attempt, lease in microseconds, lease in microseconds, label, id
-- returns    affected rows: 1 when it is ours
UPDATE {prefix}unique SET owner = ?, fenced = 0, lease_us = ?, taken_at = UTC_TIMESTAMP(6),
  expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, label = ?
WHERE id = ? AND expires_at <= UTC_TIMESTAMP(6) AND {takes_writes}
