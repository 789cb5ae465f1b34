-- The tables of mode unique. Times are UTC by the server's clock.
-- {prefix}meta    unique: the version of the tables of this mode
-- {prefix}unique  one row for each hold; its id is the first of its tokens. A row whose name begins with 0x00 (no name does) is the memory of an abandoned
--                 attempt: the unique key on the owner keeps a late request of it out.
CREATE TABLE IF NOT EXISTS {prefix}meta (
  k VARBINARY(32) NOT NULL PRIMARY KEY,
  v BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {prefix}unique (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARBINARY(255) NOT NULL,
  owner BINARY(16) NOT NULL,
  fenced TINYINT UNSIGNED NOT NULL,
  lease_us BIGINT UNSIGNED NOT NULL,
  taken_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  label VARBINARY(1024) NOT NULL,
  UNIQUE KEY name (name),
  UNIQUE KEY owner (owner)
) ENGINE = InnoDB;
INSERT IGNORE INTO {prefix}meta (k, v) VALUES ('unique', 1);
