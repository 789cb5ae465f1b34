-- The highest token that has written to each resource.
CREATE TABLE IF NOT EXISTS {prefix}fenced (
  resource VARBINARY(255) NOT NULL PRIMARY KEY,
  token BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB
