-- An attempt that has the lock here and too few other nodes of a quorum: it gives the lock to whoever stands before it in the queue, and takes
-- its own place there. Where nobody does, it has the lock again, with a new number. lock.lua stands before this in the same script, wait.lua
-- follows it.
--
-- KEYS, ARGV and returns as in acquire.lua
--
-- It must stand in the queue before anybody is given the lock: else the next one would get it although our ticket is lower, and of two who
-- give way to each other at the same time each would get what the other had.
if free(me) then
  begin()
  redis.call('ZADD', Q, ARGV[5], me)
end
