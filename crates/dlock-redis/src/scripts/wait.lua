-- The end of acquire.lua, when somebody holds, waits or was abandoned. Keys, arguments and returns as there.
local m, text = wish, string.sub(ARGV[1], 46)
lease = tonumber(lease)

if m ~= 'X' and mode == m and redis.call('ZSCORE', H, me) then
  redis.call('ZADD', H, now + lease, me)
  local mine = redis.call('HGET', I, me)
  save()
  return mine and string.sub(mine, 1, 16) or token
end
local tombstone = redis.call('ZSCORE', T, me)
if tombstone and tonumber(tombstone) > now then return {'abandoned'} end

local head
if fair or not admits(m) then head = settle() end
if (not fair or not head or head == me) and admits(m) then
  redis.call('ZREM', Q, me)
  redis.call('HDEL', W, me)
  take(me, m, now + lease, text, next_token())
  local mine = token
  -- Those who fit beside us need not wait for the next release.
  if head and m ~= 'X' then settle() end
  save()
  return mine
end

if string.sub(m, 1, 1) == 'P' then
  local other = mode
  if string.sub(other, 1, 1) ~= 'P' and head then
    other = string.match(redis.call('HGET', W, head) or '', '^%d+(%u%d*)') or ''
  end
  if string.sub(other, 1, 1) == 'P' and other ~= m then
    save()
    return {'conflict', string.sub(other, 2)}
  end
end

if inbox ~= '' then
  if not redis.call('ZSCORE', Q, me) then
    local last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2] or 0
    redis.call('ZADD', Q, math.max(tonumber(stamp), last + 1), me)
    head = head or me
  end
  redis.call('HSET', W, me, string.format('%013.0f', now + patience) .. m .. ' ' .. lease .. ' ' .. inbox .. ' ' .. text)
  keep(Q, patience)
  keep(W, patience)
end
save()
-- Only the first of the queue looks when the lease ends: no herd.
local left = 0
if inbox == '' or head == me then
  left = (mode == 'X' and expires or redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')[2] or now) - now
end
return {left, token}
