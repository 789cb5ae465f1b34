-- The holder leaves in order. Its name and numbers stand in the text, so that the statement and the release are one request.
-- A waiter that stood in line gives its place up with it: {leave}.
-- returns    affected rows: 1 when it held until now
UPDATE {marks} SET stamp = stamp + 1, freed = fence{leave}, owner = NULL, dead_at = NULL
WHERE name = {name} AND part = 1 AND owner = {owner} AND fence = {fence} AND broken = 0
