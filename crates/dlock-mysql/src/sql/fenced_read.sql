-- The highest token, read under the lock that fenced_record.sql took.
-- arguments  resource
SELECT token FROM {prefix}fenced WHERE resource = ? FOR UPDATE
