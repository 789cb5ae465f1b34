-- Undoes an attempt, whatever it has left: a hold, a place in the queue, or nothing. lock.lua stands before it in the same script.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 how, as in lock.lua
--       3 how long to refuse requests of the attempt that are still under way, ms; 0 when there are none
-- Returns  1 when it held the lock, else 0
leave(me)
local held = free(me)
local memory = tonumber(ARGV[3])
if memory > 0 then
  redis.call('ZREMRANGEBYSCORE', T, '-inf', now)
  redis.call('ZADD', T, now + memory, me)
  keep(T, memory)
  clean = false
end
settle()
return finish(held and 1 or 0)
