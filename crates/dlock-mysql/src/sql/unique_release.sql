-- Frees a hold by id and owner. The memory of an abandon has another name. Its values stand in the text, as numbers and digits, so that it and
-- the question who waits (see bell.rs) are one request.
-- returns    affected rows: 1 when it was ours until now
DELETE FROM {prefix}unique WHERE id = {id} AND owner = {attempt} AND name = {name} AND expires_at > UTC_TIMESTAMP(6) AND {takes_writes}
