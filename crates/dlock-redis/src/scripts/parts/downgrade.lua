-- Turns an exclusive hold into a shared one. lock.lua stands before it in the same script.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 how, as in lock.lua
-- Returns  1 shared now, 0 the hold was gone
if mode == 'X' and owner == me then
  begin()
  mode, count = 'S', 1
  redis.call('ZADD', H, expires, me)
  redis.call('HSET', I, me, token .. label)
  settle()
  return finish(1)
end
return mode == 'S' and shares(me) and 1 or 0
