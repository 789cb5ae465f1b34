-- The holder leaves in order. Its numbers stand in the text, so that the statement and the release are one request.
-- returns    affected rows: 1 when it held until now
UPDATE {marks} SET stamp = stamp + 1, freed = fence, owner = NULL, dead_at = NULL
WHERE id = {id} AND fence = {fence} AND owner IS NOT NULL AND broken = 0
