-- Frees an exclusive hold that is still ours.
-- arguments  two named locks that those who wait may have, name, attempt
-- returns    affected rows: 1 when it was ours until now, and the last insert id is not 0 when somebody waits (see bell.rs)
UPDATE {prefix}locks SET fence = fence + 0 * LAST_INSERT_ID(COALESCE({who_waits}, 0)), owner = NULL, expires_at = UTC_TIMESTAMP(6)
WHERE name = ? AND owner = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
