-- The tables of mode lease. Times are UTC by the server's clock. Names, owners and labels are bytes, so that case and trailing
-- spaces count (C3).
-- {prefix}meta      lease: the version of the tables of this mode; fence: new rows of {prefix}locks start above it
-- {prefix}locks     one row for each name: the exclusive hold, and the fencing counter of the name. A free lock has no owner.
--                   shared: there may be rows in {prefix}holders; doubt_until: till then there may be some in {prefix}abandoned
-- {prefix}holders   one row for each shared holder (permits = 0) and each permit (permits = the semaphore's limit)
-- {prefix}abandoned attempts that must not take effect any more, remembered for some minutes
-- {prefix}locks is ROW_FORMAT = REDUNDANT: there a NULL takes the room of a value, so a row with or without an owner is changed in place. In the
-- other formats each change moves the row, for four times as many bytes of the server's log.
CREATE TABLE IF NOT EXISTS {prefix}meta (
  k VARBINARY(32) NOT NULL PRIMARY KEY,
  v BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {prefix}locks (
  name VARBINARY(255) NOT NULL PRIMARY KEY,
  owner BINARY(16) NULL,
  fence BIGINT UNSIGNED NOT NULL,
  token BIGINT UNSIGNED NOT NULL,
  lease_us BIGINT UNSIGNED NOT NULL,
  taken_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  shared TINYINT UNSIGNED NOT NULL,
  doubt_until DATETIME(6) NOT NULL,
  label VARBINARY(1024) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = REDUNDANT;
CREATE TABLE IF NOT EXISTS {prefix}holders (
  name VARBINARY(255) NOT NULL,
  attempt BINARY(16) NOT NULL,
  permits INT UNSIGNED NOT NULL,
  token BIGINT UNSIGNED NOT NULL,
  lease_us BIGINT UNSIGNED NOT NULL,
  taken_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  label VARBINARY(1024) NOT NULL,
  PRIMARY KEY (name, attempt),
  KEY expires_at (expires_at)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {prefix}abandoned (
  attempt BINARY(16) NOT NULL PRIMARY KEY,
  until DATETIME(6) NOT NULL,
  KEY until (until)
) ENGINE = InnoDB;
INSERT IGNORE INTO {prefix}meta (k, v) VALUES ('lease', 1), ('fence', 0);
