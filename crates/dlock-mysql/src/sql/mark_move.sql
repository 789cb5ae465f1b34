-- A holder goes on with another connection, if the mark is as it was seen.
-- arguments  connection, id, stamp
-- {writable} makes it a change of nothing on a server that was demoted, also for users whom read_only does not stop.
-- returns    affected rows
UPDATE {marks} SET stamp = stamp + 1, connection = ?, seated_at = UTC_TIMESTAMP(6), dead_at = NULL WHERE id = ? AND stamp = ? AND {writable}
