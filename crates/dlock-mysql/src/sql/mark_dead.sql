-- Somebody else has the lock of a holder that did not leave in order: its time begins to run, if the mark is as it was seen.
-- arguments  id, stamp
UPDATE {marks} SET dead_at = UTC_TIMESTAMP(6) WHERE id = ? AND stamp = ? AND dead_at IS NULL
