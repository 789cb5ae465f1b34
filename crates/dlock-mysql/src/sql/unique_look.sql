-- What is in the way of a claim.
-- arguments  attempt, name, attempt
-- returns    id, whether it is this attempt's, whether it is the memory of an abandon, whether it has its token, microseconds until its
--            lease ends (0: it has ended), and since it was taken
SELECT id, owner = ?, name < 0x01, fenced, GREATEST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), 0),
  TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6))
FROM {prefix}unique WHERE (name = ? OR owner = ?) AND {takes_writes}
