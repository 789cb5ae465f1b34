-- Raises the counter of a lock while the attempt holds it: a node of a quorum agrees on a token that another node gave out.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 token, 16 digits
-- Returns  1 the counter is the token, written by this attempt; the counter (text) when others have got as far or further; 0 gone
local K, H, I = KEYS[1], KEYS[4], KEYS[5]
local v = redis.call('GET', K)
if not v then return 0 end
local last = sub(v, 1, TOKEN_END)
if sub(v, OWNER, OWNER_END) == ARGV[1] then
  if redis.call('PTTL', K) <= tonumber(sub(v, FENCE, FENCE_END)) then return 0 end
  -- Held alone, so the counter is this attempt's own.
  if last == ARGV[2] then return 1 end
  if last > ARGV[2] then return last end
elseif sub(v, OWNER) == 'S' then
  local t = redis.call('TIME')
  local till = redis.call('ZSCORE', H, ARGV[1])
  if not till or tonumber(till) <= t[1] * 1000 + t[2] / 1000 then return 0 end
  local mine = redis.call('HGET', I, ARGV[1]) or ''
  if sub(mine, 1, 16) == ARGV[2] then return 1 end
  -- Others share the lock, and the counter may be theirs: a token is given out once.
  if last >= ARGV[2] then return last end
  redis.call('HSET', I, ARGV[1], ARGV[2] .. sub(mine, 17))
else
  return 0
end
redis.call('SET', K, ARGV[2] .. sub(v, MARK), 'KEEPTTL')
return 1
