-- Takes the lock of the resource's row, whoever made it, and raises its token.
-- arguments  resource, token
INSERT INTO {prefix}fenced (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))
