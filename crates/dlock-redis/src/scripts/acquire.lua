-- Takes a lock, confirms a grant, or keeps a place in the queue alive: one script for the three, idempotent by attempt.
-- This is the short cut; lock.lua and wait.lua follow it in the same script.
--
-- KEYS  1 the lock (its other keys carry the same hash tag)
-- ARGV  1 attempt   2 F first come, first served, or B barging; then C in a cluster   3 waiter lease, ms
--       4 time to live of a fence counter, ms   5 mode: X, S or P<limit>   6 lease, ms   7 label
--       8 inbox channel when the attempt is ready to wait, else empty   9 the sum of 6 and 4: the server adds up dearly
--      10 (a node of a quorum) the token to give out unless it is too low, 16 digits; the server's time when it is left out
-- Returns  the fencing token (text) when held
--          {the milliseconds after which asking again is worth it, 0: not known; the last token given out} when others hold it
--          {'abandoned'}, or {'conflict', limit in use}
local v = redis.call('GET', KEYS[1])
if v and ARGV[5] == 'X' then
  local free = #v == 16
  if free or string.sub(v, 18, 49) == ARGV[1] then
    local t = redis.call('TIME')
    local token, flag = string.sub(v, 1, 16), '-'
    if free then
      local stamp = ARGV[10] or t[1] .. string.sub('00000' .. t[2], -6)
      token = stamp > token and stamp or string.format('%016.0f', token + 1)
    else
      flag = string.sub(v, 17, 17)
    end
    local expires = string.format('%013.0f', t[1] * 1000 + t[2] / 1000 + ARGV[6])
    redis.call('SET', KEYS[1], token .. flag .. ARGV[1] .. expires .. ARGV[7], 'PX', ARGV[9])
    return token
  end
end
