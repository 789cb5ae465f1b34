-- Compare and delete, the convention that other programs share; and, for an attempt that is given up, a tombstone.
--
-- KEYS  1 the lock   2 the attempt's tombstone
-- ARGV  1 attempt   2 time to live of the tombstone, ms; 0: none
-- Returns  1 freed, 0 the hold was gone
if ARGV[2] ~= '0' then
  -- A write that needs no memory first: after it the server refuses none.
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
end
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
