-- Frees a hold if it is still the attempt's, and hands the lock to the next live waiter.
-- This is the short cut; lock.lua and pass_on.lua follow it in the same script.
--
-- KEYS  1 the lock
-- ARGV  1 attempt   2 how, as in lock.lua
-- Returns  1 freed, 0 the hold was gone
local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 17, 49) == '-' .. ARGV[1] then
  -- Nobody waits: what stays is the fence counter, which lives on as long as the hold's key would have.
  local left = redis.call('PTTL', KEYS[1]) - string.sub(v, 50, 62)
  redis.call('SET', KEYS[1], string.sub(v, 1, 16), 'KEEPTTL')
  return left > 0 and 1 or 0
end
