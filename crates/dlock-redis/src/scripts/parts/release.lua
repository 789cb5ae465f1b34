-- Frees a hold if it is still the attempt's, and hands the lock to the next live waiter.
-- This is the short cut; lock.lua and pass_on.lua follow it in the same script.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 how, as in lock.lua
--       4 (a node of a quorum) the token to give out unless it is too low, as in acquire.lua
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
-- What ZPOPMIN has taken out of the queue, if it was asked, and who has got nothing yet.
local popped
local patience, fence = string.match(ARGV[2], '^F%-%- (%d+) (%d+)$')
if patience and not ARGV[4] and v and sub(v, OWNER, OWNER_END) == ARGV[1] and string.find(v, '^[*+]', MARK) then
  -- The usual hand-over: the first who waits wants it alone, listens, and has given a sign of life a moment ago, so it gets its whole lease. It
  -- leaves the queue in any case, alive or not: that is the first write, which is not refused without memory. All else is for lock.lua.
  popped = redis.call('ZPOPMIN', KEYS[2])
  local head = popped[1]
  local said = head and head ~= ARGV[1] and redis.call('HGET', KEYS[3], head)
  local till, lease, inbox, label = string.match(said or '', '^(%d+)X (%d+) (%S+) (.*)$')
  if till then
    local t = redis.call('TIME')
    local heard = redis.pcall('PUBSUB', 'NUMSUB', inbox)
    if (till - t[1] * 1000 - math.floor(t[2] / 1000)) * 3 >= patience * 2 and not heard.err and heard[2] > 0 then
      local left = redis.call('PTTL', KEYS[1]) - sub(v, FENCE, FENCE_END)
      local token, last = t[1] .. sub('00000' .. t[2], -6), sub(v, 1, TOKEN_END)
      if token - last < TURNS then token = string.format('%016.0f', last + TURNS) end
      redis.call('HDEL', KEYS[3], head)
      redis.call('SET', KEYS[1], token .. sub(v, MARK, MARK) .. head .. fence .. label, 'PX', lease + fence)
      -- Told last, when everything is written. A message that cannot be sent takes nothing back.
      redis.pcall('PUBLISH', inbox, head .. token)
      return left > 0 and 1 or 0
    end
  end
end
