-- Frees a hold if it is still the attempt's, and hands the lock to the next live waiter.
-- This is the short cut; lock.lua and pass_on.lua follow it in the same script.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 how, as in lock.lua
-- Returns  1 freed, 0 the hold was gone
local v = redis.call('GET', KEYS[1])
if v and sub(v, MARK, OWNER_END) == '-' .. ARGV[1] then
  -- Nobody waits: what stays is the fence counter, which lives on as long as the hold's key would have.
  local left = redis.call('PTTL', KEYS[1]) - sub(v, FENCE, FENCE_END)
  if redis.pcall('SET', KEYS[1], sub(v, 1, TOKEN_END), 'KEEPTTL').err then
    -- Out of memory, most likely. After a write that can only make things smaller a script may do any other.
    redis.call('ZREM', KEYS[6], '')
    redis.call('SET', KEYS[1], sub(v, 1, TOKEN_END), 'KEEPTTL')
  end
  return left > 0 and 1 or 0
end
