-- Makes the mark of a name that was never used. Many do so at the same time.
-- The ids are random: an automatic number would make all who use a new name wait for each other.
-- arguments  name, id, name
INSERT IGNORE INTO {marks} (name, part, id, stamp, fence, freed, lost, owner, valid_us, broken, connection, seated_at, dead_at, label)
SELECT ?, p.part, p.id, 0, 0, 0, 0, NULL, 0, 0, 0, UTC_TIMESTAMP(6), NULL, ''
FROM (SELECT 1 AS part, CAST(? AS UNSIGNED) AS id) p
WHERE NOT EXISTS (SELECT 1 FROM {marks} m WHERE m.name = ?)
