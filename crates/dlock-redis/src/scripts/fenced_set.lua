-- A write that is refused when a holder with a higher token has written before.
--
-- KEYS  1 the key to write   2 the highest token seen for it
-- ARGV  1 token, 16 digits or more with leading zeros   2 value   3 time to live of the token, ms
-- Returns  1 written, 0 refused
local seen = redis.call('GET', KEYS[2])
if seen and seen > ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])
return 1
