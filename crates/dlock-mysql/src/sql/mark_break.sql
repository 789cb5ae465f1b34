-- Ends a hold by force: its holder cannot go on with another connection, nor leave in order.
-- arguments  id, stamp
-- returns    affected rows
UPDATE {marks} SET stamp = stamp + 1, broken = 1 WHERE id = ? AND stamp = ?
