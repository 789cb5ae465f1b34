-- An attempt that was abandoned leaves nothing behind. Nobody was told that it held.
-- arguments  name, attempt
UPDATE {marks} SET stamp = stamp + 1, owner = NULL, dead_at = NULL WHERE name = ? AND part = 1 AND owner = ?
