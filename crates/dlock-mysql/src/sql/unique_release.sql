-- Frees a hold by id and owner. The memory of an abandon has another name.
-- arguments  id, attempt, name
-- returns    affected rows: 1 when it was ours until now
DELETE FROM {prefix}unique WHERE id = ? AND owner = ? AND name = ? AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
