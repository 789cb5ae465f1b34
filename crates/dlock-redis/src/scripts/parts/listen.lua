-- Whether somebody of another client waits for a lock. If nobody does, whoever comes next tells the holder (wait.lua).
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 inbox of the client that asks   2 attempt that holds the lock; empty: it only asks   3 how long to remember that it listens, ms
-- Returns  1 somebody waits, 0 nobody does
local K, Q, W, H = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local v = redis.call('GET', K)
if not v or #v < MARK then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- As many as one call looks at: another client's is hardly ever behind more of our own.
for _, attempt in ipairs(redis.call('ZRANGE', Q, 0, 255)) do
  local till, inbox = string.match(redis.call('HGET', W, attempt) or '', '^(%d+)%u%d* %d+ (%S+) ')
  if till and tonumber(till) > now and inbox ~= ARGV[1] then return 1 end
end
local me = ARGV[2]
if me ~= '' and (sub(v, OWNER, OWNER_END) == me or redis.call('ZSCORE', H, me)) then
  redis.call('HSET', W, me, '!' .. ARGV[1])
  if redis.call('PTTL', W) < tonumber(ARGV[3]) then redis.call('PEXPIRE', W, ARGV[3]) end
  if sub(v, MARK, MARK) ~= '!' then redis.call('SET', K, sub(v, 1, TOKEN_END) .. '!' .. sub(v, OWNER), 'KEEPTTL') end
end
return 0
