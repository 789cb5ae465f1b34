-- The tables of mode session. Times are UTC by the server's clock.
-- {prefix}meta           session: the version of the tables of this mode
-- {prefix}session_marks  two rows for each name. Part 0: who has it locked holds the lock, or is about to. Part 1, the mark: who holds
--                        it, and the fencing counter; apart, because a change inside the holder's transaction would be undone with it.
-- ROW_FORMAT = REDUNDANT as in schema.sql: a mark with or without an owner is changed in place.
CREATE TABLE IF NOT EXISTS {prefix}meta (
  k VARBINARY(32) NOT NULL PRIMARY KEY,
  v BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {prefix}session_marks (
  name VARBINARY(255) NOT NULL,
  part TINYINT UNSIGNED NOT NULL,
  id BIGINT UNSIGNED NOT NULL,
  stamp BIGINT UNSIGNED NOT NULL,
  fence BIGINT UNSIGNED NOT NULL,
  freed BIGINT UNSIGNED NOT NULL,
  lost BIGINT UNSIGNED NOT NULL,
  owner BINARY(16) NULL,
  valid_us BIGINT UNSIGNED NOT NULL,
  broken TINYINT UNSIGNED NOT NULL,
  connection BIGINT UNSIGNED NOT NULL,
  seated_at DATETIME(6) NOT NULL,
  dead_at DATETIME(6) NULL,
  label VARBINARY(1024) NOT NULL,
  PRIMARY KEY (name, part),
  UNIQUE KEY id (id)
) ENGINE = InnoDB ROW_FORMAT = REDUNDANT;
INSERT IGNORE INTO {prefix}meta (k, v) VALUES ('session', 2);
