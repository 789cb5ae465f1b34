-- Who waits for a lock at a quorum, whose nodes keep no queue: each client says so from time to time, at one node.
--
-- KEYS  1 sorted set of the lock's waiters: client -> end of memory
-- ARGV  1 client   2 how long to remember that it waits, ms; 0: it only asks
-- Returns  1 when another client waits, else 0
local M = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[2] ~= '0' then
  redis.call('ZREMRANGEBYSCORE', M, '-inf', now)
  redis.call('ZADD', M, now + ARGV[2], ARGV[1])
  if redis.call('PTTL', M) < tonumber(ARGV[2]) then redis.call('PEXPIRE', M, ARGV[2]) end
end
-- Of two, one at least is somebody else.
for _, client in ipairs(redis.call('ZRANGEBYSCORE', M, '(' .. now, '+inf', 'LIMIT', 0, 2)) do
  if client ~= ARGV[1] then return 1 end
end
return 0
