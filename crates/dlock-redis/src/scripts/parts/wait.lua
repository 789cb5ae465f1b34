-- The end of acquire.lua, when somebody holds, waits or was abandoned. Keys, arguments and returns as there.
local m, text = wish, sub(ARGV[1], 46)
lease = tonumber(lease)
-- At a node of a quorum the waiter brings its ticket, the same to every node: so the order is the same at all of them.
local ticket = ARGV[5]

-- The limit of permits may be another since this one was given.
if (mode == m or sub(mode, 1, 1) == 'P' and m ~= 'X' and m ~= 'S') and shares(me) then
  begin()
  redis.call('ZADD', H, now + lease, me)
  local mine = redis.call('HGET', I, me)
  return finish(mine and sub(mine, 1, 16) or token)
end
if is_abandoned() then return {'abandoned'} end

-- Says what is needed to be given the lock. Both keys always change together, so one look at their time to live is enough; a second more
-- of it saves the look's consequence for most.
local function stand(first)
  redis.call('HSET', W, me, string.format('%013.0f', now + patience) .. m .. ' ' .. lease .. ' ' .. inbox .. ' ' .. text)
  if first or redis.call('PTTL', Q) < patience then
    redis.call('PEXPIRE', Q, patience + 1000)
    -- What holders who listen have left there lasts longer.
    if mark == '!' then keep(W, patience + 1000) else redis.call('PEXPIRE', W, patience + 1000) end
  end
end

-- Writes to those who hold and listen for others, as listen.lua has noted. Whoever is of our own client is not told, and goes on listening.
local function tell_holders()
  local goes_on = false
  for _, holder in ipairs(mode == 'X' and {owner} or redis.call('ZRANGE', H, 0, MOST / 4)) do
    local theirs = string.match(redis.call('HGET', W, holder) or '', '^!(.+)')
    if theirs == inbox then
      goes_on = true
    elseif theirs then
      -- Once is enough: it looks, and leaves word again if it finds nobody.
      redis.call('HDEL', W, holder)
      write_to(theirs, holder)
    end
  end
  listens = goes_on
end

-- The usual wait: somebody holds it alone, and we are new. Nobody can be given anything now, so nobody else is looked at. To enter the queue
-- is the first write, and refused without memory; whoever stands there already goes on below, by one that is not.
if m == 'X' and mode == 'X' and inbox ~= '' then
  local last = not alone and redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
  if redis.pcall('ZADD', Q, 'NX', ticket or math.max(tonumber(stamp), (last or 0) + 1), me) == 1 then
    begun = true
    if listens then tell_holders() end
    stand(not last)
    return finish({last and 0 or expires - now, token}, true)
  end
end
begin()
-- Who stands here already and brings a lower ticket moves forward: somebody who holds the lock at a quorum, and whom this node has lost, comes
-- before all who wait. A higher one is that of an older question.
local at = ticket and redis.call('ZSCORE', Q, me)
if at and tonumber(ticket) < tonumber(at) then redis.call('ZADD', Q, ticket, me) end

local head
if fair or not admits(m) then head = settle(true) end
if (not fair or not head or head == me) and admits(m) then
  leave(me)
  take(me, m, now + lease, text, next_token(m))
  local mine = token
  -- Those who fit beside us need not wait for the next release.
  if head and m ~= 'X' then settle() end
  return finish(mine)
end

if sub(m, 1, 1) == 'P' then
  local other = mode
  if sub(other, 1, 1) ~= 'P' and head then
    other = as_held(string.match(redis.call('HGET', W, head) or '', '^%d+(%u%d*)') or '')
  end
  if sub(other, 1, 1) == 'P' and other ~= m then return finish({'conflict', sub(other, 2)}) end
end

if inbox ~= '' then
  if not redis.call('ZSCORE', Q, me) then
    local last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2] or 0
    redis.call('ZADD', Q, ticket or math.max(tonumber(stamp), last + 1), me)
    head = head or me
    if listens then tell_holders() end
  end
  stand()
end
-- Only the first of the queue looks when the lease ends: no herd.
local left = 0
if unfinished then
  left = 1
elseif inbox == '' or head == me then
  left = (mode == 'X' and expires or redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')[2] or now) - now
end
return finish({left, token})
