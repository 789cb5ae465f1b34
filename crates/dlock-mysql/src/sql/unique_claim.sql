-- Claims a free lock, or draws the token of a claim that is ours. Run twice to take a lock: the id of the row that gets in was drawn before
-- it did, so a later hold could have a lower one; the second time the row gets a new id while we hold it, so ids increase from hold to
-- hold (C11). VALUES(id) is the number that was drawn for the row that did not get in. Our sessions draw every {turns}th number: those up to
-- the next one are this hold's too.
-- arguments  name, attempt, lease in microseconds, lease in microseconds, label
-- returns    affected rows: 1 claimed; 2 ours, and the last insert id is the first of its tokens; 0 something is in the way, or it has its token
INSERT INTO {prefix}unique (name, owner, fenced, lease_us, taken_at, expires_at, label)
VALUES (?, ?, 0 * {takes_writes}, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?)
ON DUPLICATE KEY UPDATE
  id = IF(name = VALUES(name) AND owner = VALUES(owner) AND fenced = 0 AND expires_at > UTC_TIMESTAMP(6),
    LAST_INSERT_ID(VALUES(id)), id),
  fenced = IF(id = VALUES(id), 1, fenced)
