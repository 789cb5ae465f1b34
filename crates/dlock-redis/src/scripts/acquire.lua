-- Made of parts/value.lua, acquire.lua, lock.lua, wait.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

-- The value of a lock's key, and the one place that knows what stands where in it (plain numbers: a function would cost every call its making):
--
--   <token, 16 digits>                               free, and nothing else exists
--   <token>-<owner, 32><fence, 13 digits><label>     one exclusive holder, and nothing else exists
--   <token>*<owner, 32><fence, 13 digits><label>     ... and there may be waiters, but no tombstones
--   <token>+<owner, 32><fence, 13 digits><label>     ... and there may be waiters or tombstones
--   <token>!<owner, 32><fence, 13 digits><label>     ... the same, and its client listens for others: listen.lua
--   <token>+S   <token>+P<limit>   <token>+          shared holders, permits, nobody: the mode stands where the owner would;
--                                                    with ! for the plus when one of the holders listens
--
-- The time to live of the key is what is left of the lease of its exclusive holder, plus `fence`: how long the token is remembered
-- after that. So an exclusive hold has ended when no more than `fence` is left. An owner begins with a hexadecimal digit, a mode does not.
--
-- An exclusive hold has TURNS tokens in a row, of which the value has the last: the tasks of its client pass it on to each other. So the
-- last one before it is at least TURNS away, also when the clock does not say so. Other holds have one.
local TURNS = 64
local TOKEN_END, MARK, OWNER, OWNER_END, FENCE, FENCE_END, LABEL = 16, 17, 18, 49, 50, 62, 63
local sub = string.sub

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

-- What the scripts that change a lock share. It stands in the middle of each: before it `v` is the value of the lock's key, and `popped` what a
-- short cut has taken out of the queue, if it has looked there; after it the state is in locals. `settle` gives the lock to those whose turn it is, and `finish` ends the script.
--
-- KEYS  1 the lock, a string as in value.lua
--       2 Q  sorted set  waiter's attempt -> ticket
--       3 W  hash        waiter's attempt -> <end of its waiter lease, 13><mode as it was asked for> <lease> <inbox> <label>
--                        attempt of a holder that listens for others -> !<inbox>
--       4 H  sorted set  shared or permit holder's attempt -> expiry
--       5 I  hash        shared or permit holder's attempt -> <token, 16><label>
--       6 T  sorted set  abandoned attempt -> end of memory
-- All times are this server's, in milliseconds.
--
-- ScriptArgs (ARGV 2)   <F first come, first served, or B barging><C in a cluster, else -><mode: X, S, P<limit>, L<limit>, or - where none is
--                asked for; P wants everybody to have the same limit, L goes by its own whatever others have; both are held as P>
--                <waiter lease, ms> <fence, ms, 13 digits>, then in acquire.lua <lease, ms> <inbox channel when ready to wait>
--
-- While anybody waits the lock is never left free: whoever ends a hold gives it to the next. So a key of 16 digits means that
-- there is no queue, and a free lock costs no look at one.
local K, Q, W, H, I, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local me = sub(ARGV[1], 1, 32)
local style, where, wish, patience, fence, lease, inbox = string.match(ARGV[2], '^(%u)(.)(%S+) (%d+) (%d+) ?(%d*) ?(%S*)$')
local fair, cluster = style == 'F', where == 'C'
patience = tonumber(patience)
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = ARGV[4] or clock[1] .. sub('00000' .. clock[2], -6)
-- Whether nothing but the lock's own key exists, whether no attempt was abandoned, and whether a holder listens for others.
local mark = v and sub(v, MARK, MARK)
local alone = mark == '' or mark == '-'
local clean = alone or mark == '*'
local listens = mark == '!'

-- The first write of the script, which changes nothing. Whatever makes the server refuse writes (a replica, too few replicas, a failed
-- save) it refuses here, before anything is changed; after the first write of a script it refuses no other. An attempt that has nothing
-- here yet needs memory, and begins with a write that is refused when there is none; what frees or keeps begins with one that is not.
--
-- Where the first thing to do is a write of the right sort by itself, `begun` is set instead; a short cut may have done one, and `popped`.
local begun = popped ~= nil
local function begin()
  if begun then return end
  begun = true
  if wish == '-' or redis.call('ZSCORE', Q, me) or redis.call('ZSCORE', H, me) then
    redis.call('ZREM', T, '')
  else
    redis.call('ZADD', T, 'XX', 0, '')
  end
end

-- Bounds what one call does, since the server does nothing else meanwhile: so many holds that ended, and so much work for waiters, where
-- a grant counts as GRANT and one that is dead as 1.
local SWEEP, MOST, GRANT = 1000, 1024, 8

local token = v and sub(v, 1, TOKEN_END) or '0000000000000000'
local mode, owner, expires, label, count = '', '', 0, '', 0
-- The attempt of a holder that listened and does not hold any more: what it has said is removed at the end.
local deaf
if v and #v > MARK and string.find(v, '^%x', OWNER) then
  local left = redis.call('PTTL', K) - sub(v, FENCE, FENCE_END)
  if left > 0 then
    mode, owner, expires, label = 'X', sub(v, OWNER, OWNER_END), now + left, sub(v, LABEL)
  elseif listens then
    deaf, listens = sub(v, OWNER, OWNER_END), false
  end
elseif v and #v > MARK then
  local gone = redis.call('ZRANGEBYSCORE', H, '-inf', now, 'LIMIT', 0, SWEEP)
  if #gone > 0 then
    begin()
    redis.call('ZREM', H, unpack(gone))
    redis.call('HDEL', I, unpack(gone))
    if listens then redis.call('HDEL', W, unpack(gone)) end
  end
  count = #gone < SWEEP and redis.call('ZCARD', H) or redis.call('ZCOUNT', H, '(' .. now, '+inf')
  if count > 0 then mode = sub(v, OWNER) else listens = false end
end

-- Whether what is still under way of `me` is refused. To be asked before anything of it is changed.
local function is_abandoned()
  local till = not clean and redis.call('ZSCORE', T, me)
  return till and tonumber(till) > now
end

-- Lets a key live this long at least.
local function keep(key, time)
  if redis.call('PTTL', key) < time then redis.call('PEXPIRE', key, time) end
end

-- Whether a holder in mode `m` fits to those who hold now.
local function admits(m)
  if mode == '' then return true end
  if sub(m, 1, 1) == 'L' then return sub(mode, 1, 1) == 'P' and count < tonumber(sub(m, 2)) end
  if mode ~= m or m == 'X' then return false end
  return m == 'S' or count < tonumber(sub(m, 2))
end

-- The mode in which one that was asked for is held.
local function as_held(m)
  return sub(m, 1, 1) == 'L' and 'P' .. sub(m, 2) or m
end

local function next_token(m)
  local step = m == 'X' and TURNS or 1
  return stamp - token >= step and stamp or string.format('%016.0f', token + step)
end

local function take(attempt, m, till, text, number)
  token, mode = number, as_held(m)
  if m == 'X' then
    owner, expires, label, listens = attempt, till, text, false
  else
    redis.call('ZADD', H, till, attempt)
    redis.call('HSET', I, attempt, token .. text)
    count = count + 1
  end
end

-- Whether a shared or permit hold of the attempt has not ended.
local function shares(attempt)
  local till = mode ~= '' and mode ~= 'X' and redis.call('ZSCORE', H, attempt)
  return till and tonumber(till) > now
end

-- Ends a hold; false when it was gone.
local function free(attempt)
  if mode == 'X' then
    if owner ~= attempt then return false end
    mode, deaf, listens = '', listens and attempt, false
    return true
  end
  if not shares(attempt) then return false end
  begun = true
  redis.call('ZREM', H, attempt)
  redis.call('HDEL', I, attempt)
  deaf = listens and attempt
  count = count - 1
  if count == 0 then mode, listens = '', false end
  return true
end

-- Messages, {inbox, text, inbox, text, ...}: `finish` publishes them when everything is written, and nothing else publishes.
local letters = {}
local function write_to(inbox, text)
  letters[#letters + 1] = inbox
  letters[#letters + 1] = text
end

-- What a waiter has said: how long it is still believed to live (0: not), its mode, lease, inbox and label; and whether it may be given its
-- whole lease.
--
-- A waiter whose inbox nobody listens to has lost its connection. If it lives, it comes back with its next sign of life. The inbox's own
-- subscribers count, not the patterns of somebody who listens to everything. In a cluster the listener may be at another node, so the
-- count means nothing there.
local function waiter(attempt)
  local till, m, lasts, inbox, text = string.match(redis.call('HGET', W, attempt) or '', '^(%d+)(%u%d*) (%d+) (%S+) (.*)$')
  local left = till and till - now or 0
  if left <= 0 then return 0 end
  if cluster then return left, m, lasts, inbox, text, false end
  local heard = redis.pcall('PUBSUB', 'NUMSUB', inbox)
  if heard.err then return left, m, lasts, inbox, text, false end
  if heard[2] == 0 then return 0 end
  return left, m, lasts, inbox, text, left * 3 >= patience * 2
end

local function leave(attempt)
  if wish == '-' then begun = true else begin() end
  redis.call('ZREM', Q, attempt)
  redis.call('HDEL', W, attempt)
end

-- Barging: wakes all at the front of the queue who fit together. Each stays there until it comes and takes what it finds.
local function wake()
  local real_mode, real_count = mode, count
  for _, attempt in ipairs(redis.call('ZRANGE', Q, 0, MOST / 4)) do
    local left, m, _, inbox = waiter(attempt)
    if left == 0 then
      leave(attempt)
    elseif not admits(m) then
      break
    else
      if attempt ~= me then write_to(inbox, attempt) end
      mode, count = as_held(m), count + 1
    end
  end
  mode, count = real_mode, real_count
end

-- Gives the lock to the waiters whose turn it is, and writes to each. Returns the waiter that is first now, if `asked` for, and
-- stops in front of `me`, who is here and needs no message.
--
-- A waiter that gave a sign of life a moment ago gets its whole lease and is told the token: it needs no further trip. Another one,
-- and everybody in a cluster, gets as long as a waiter may be silent, and confirms; so one that died costs the others no more.
--
-- Where nothing is asked for, `me` does not wait; if the lock is free then, whoever is first leaves the queue, alive or not, and is taken out of
-- it at once. That is the first write too, of the sort that is not refused without memory.
local unfinished = false
local function settle(asked)
  local work = 0
  while true do
    local head
    local out = wish == '-' and fair and mode == '' and work < MOST
    if out then
      head = (popped or redis.call('ZPOPMIN', Q))[1]
      popped, begun = nil, true
    else
      head = redis.call('ZRANGE', Q, 0, 0)[1]
    end
    if not head or head == me and not out then return head end
    local left, m, lasts, inbox, text, whole = waiter(head)
    if head == me then left = 0 end
    if left > 0 and not admits(m) then return head end
    if work >= MOST then
      -- Enough for one call: the next one is called, and goes on with its own.
      unfinished = true
      if left > 0 then write_to(inbox, head) end
      return head
    end
    if left > 0 and not fair then
      wake()
      return head
    end
    if out then
      -- With who ended its hold, in one command.
      redis.call('HDEL', W, head, deaf or head)
      deaf = nil
    else
      leave(head)
    end
    if left > 0 then
      local number = next_token(m)
      take(head, m, now + (whole and lasts or patience), text, number)
      write_to(inbox, whole and head .. number or head)
      work = work + GRANT
      if m == 'X' then return asked and redis.call('ZRANGE', Q, 0, 0)[1] end
    else
      work = work + 1
    end
  end
end

local function save(queued)
  begin()
  -- While it is held alone, the mark may be too careful: it costs the next release a look.
  local more = queued or mode == 'X' and v and not alone or redis.call('EXISTS', Q, T) > 0
  local value, lasts = token, tonumber(fence)
  if mode == 'X' then
    value = token .. (not more and '-' or listens and '!' or v and clean and '*' or '+') .. owner .. fence .. label
    lasts = expires - now + fence
  elseif mode ~= '' then
    local longest = redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2] - now
    keep(H, longest + 1000)
    keep(I, longest + 1000)
    value, lasts = token .. (listens and '!' or '+') .. mode, longest + fence
  elseif more then
    value = token .. '+'
  end
  if value ~= v then
    redis.call('SET', K, value, 'PX', lasts)
  elseif mode ~= 'X' then
    keep(K, lasts)
  end
end

-- The end of every script: first all is written, then it is told. A message that cannot be sent takes nothing back: its waiter finds the
-- grant by its next sign of life. `queued` where it is known that somebody waits.
local function finish(answer, queued)
  if deaf then
    begin()
    redis.call('HDEL', W, deaf)
  end
  if #letters > 0 then begin() end
  if v or mode ~= '' or wish ~= '-' then save(queued) end
  for n = 1, #letters, 2 do redis.pcall('PUBLISH', letters[n], letters[n + 1]) end
  return answer
end

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
