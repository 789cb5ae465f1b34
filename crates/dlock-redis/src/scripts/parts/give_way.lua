-- An attempt that has the lock here and too few other nodes of a quorum: it gives the lock to whoever stands before it in the queue, and takes
-- its own place there. Where nobody does, it has the lock again, with a new number. lock.lua stands before this in the same script, wait.lua
-- follows it.
--
-- KEYS, ARGV and returns as in acquire.lua, and
-- ARGV  6 the number of the grant that is given up, 16 digits
--
-- What was given since then is not given up: this request may come late, or a second time on another connection, when its attempt has been
-- given the lock again and counts on it.
local mine
if mode == 'X' then
  mine = owner == me and token
elseif shares(me) then
  mine = sub(redis.call('HGET', I, me) or '', 1, TOKEN_END)
end
if mine and mine ~= ARGV[6] and mode == 'X' then
  begin()
  redis.call('PEXPIRE', K, lease + sub(v, FENCE, FENCE_END))
  return mine
end
-- It must stand in the queue before anybody is given the lock: else the next one would get it although our ticket is lower, and of two who
-- give way to each other at the same time each would get what the other had.
if mine == ARGV[6] and not is_abandoned() and free(me) then
  begin()
  redis.call('ZADD', Q, ARGV[5], me)
  -- What stands beside its name from now on is a waiter's.
  deaf = nil
end
