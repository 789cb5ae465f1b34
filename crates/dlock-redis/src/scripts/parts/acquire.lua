-- Takes a lock, confirms a grant, or keeps a place in the queue alive: one script for the three, idempotent by attempt.
-- This is the short cut; lock.lua and wait.lua follow it in the same script. Every argument costs the server time, so there are few.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt (32), time to live of a fence counter in ms (13 digits), label: the end of the lock's value
--       2 how, as in lock.lua   3 lease + time to live of a fence counter, ms
--       4 (a node of a quorum) the token to give out unless it is too low, 16 digits; the server's time when it is left out
--       5 (a node of a quorum, from who is ready to wait) its ticket: the place in the queue
-- Returns  the fencing token (text) when held; of an exclusive hold, the last of its TURNS
--          {the milliseconds after which asking again is worth it, 0: not known; the last token given out} when others hold it
--          {'abandoned'}, or {'conflict', limit in use}
local v = redis.call('GET', KEYS[1])
if string.byte(ARGV[2], 3) == 88 then
  if v and #v == TOKEN_END or not v and redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[6]) == 0 then
    local token = ARGV[4]
    if not token then
      local t = redis.call('TIME')
      token = t[1] .. (#t[2] == 6 and t[2] or sub('00000' .. t[2], -6))
    end
    if v and token - v < TURNS then token = string.format('%016.0f', v + TURNS) end
    redis.call('SET', KEYS[1], token .. '-' .. ARGV[1], 'PX', ARGV[3])
    return token
  elseif v and sub(v, OWNER, OWNER_END) == sub(ARGV[1], 1, 32) then
    -- Ours already. Whoever gave it to us may remember tokens for another time than we do.
    redis.call('PEXPIRE', KEYS[1], ARGV[3] - sub(ARGV[1], 33, 45) + sub(v, FENCE, FENCE_END))
    return sub(v, 1, TOKEN_END)
  elseif v and not ARGV[4] and string.byte(v, MARK) == 42 then
    -- The usual wait: somebody holds it alone, nobody was abandoned, and we are new and not the first who waits. All else is for lock.lua. To enter
    -- the queue is the first write, and refused without memory.
    local patience, lease, inbox = string.match(ARGV[2], '^..X (%d+) %d+ (%d+) (%S+)$')
    local last = inbox and redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    if last and #last == TOKEN_END then
      local t = redis.call('TIME')
      local stamp, me = t[1] .. sub('00000' .. t[2], -6), sub(ARGV[1], 1, 32)
      local now = t[1] * 1000 + math.floor(t[2] / 1000)
      -- Whoever came a moment ago looks after an end of the lease as soon as we would. If nobody did, all who wait may be dead.
      local held = (now - sub(last, 1, 13)) * 4 < tonumber(patience) or redis.call('PTTL', KEYS[1]) > tonumber(sub(v, FENCE, FENCE_END))
      if held and stamp > last and redis.pcall('ZADD', KEYS[2], 'NX', stamp, me) == 1 then
        local till = string.format('%013.0f', now + patience)
        redis.call('HSET', KEYS[3], me, till .. 'X ' .. lease .. ' ' .. inbox .. ' ' .. sub(ARGV[1], 46))
        if redis.call('PTTL', KEYS[2]) < tonumber(patience) then
          redis.call('PEXPIRE', KEYS[2], patience + 1000)
          redis.call('PEXPIRE', KEYS[3], patience + 1000)
        end
        return {0, sub(v, 1, TOKEN_END)}
      end
    end
  end
end
local popped
