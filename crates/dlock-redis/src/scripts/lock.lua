-- What the scripts that change a lock share. It stands in the middle of each: before it `v` is the value of the lock's key,
-- after it the state is in locals, and `settle` and `save` end the script.
--
-- The lock's key holds   <token, 16 digits>                                            free, nothing else exists
--                        <token>-<owner, 32><fence, 13 digits><label>                  one exclusive holder, nothing else exists
--                        <token>+<owner, 32><fence, 13 digits><label>                  ... and there may be waiters or tombstones
--                        <token>+S  <token>+P<limit>  <token>+                         shared holders, permits, nobody
-- :q  sorted set  attempt -> ticket                    :w  hash  attempt -> <end of its waiter lease, 13><mode> <lease> <inbox> <label>
-- :h  sorted set  holder's attempt -> expiry           :i  hash  holder's attempt -> <token, 16><label>
-- :t  sorted set  abandoned attempt -> end of memory   All times are this server's, in milliseconds.
--
-- The time to live of the lock's key is what is left of the lease of its exclusive holder, plus `fence`: how long the token is
-- remembered after that. So a hold has ended when no more than `fence` is left.
--
-- How (ARGV 2)   <F first come, first served, or B barging><C in a cluster, else -><mode: X, S, P<limit>, or - where none is asked for>
--                <waiter lease, ms> <fence, ms, 13 digits>, then in acquire.lua <lease, ms> <inbox channel when ready to wait>
--
-- While anybody waits the lock is never left free: whoever ends a hold gives it to the next. So a key of 16 digits means that
-- there is no queue, and a free lock costs no look at one.
local K = KEYS[1]
local Q, W, H, I, T = K .. ':q', K .. ':w', K .. ':h', K .. ':i', K .. ':t'
local me = string.sub(ARGV[1], 1, 32)
local style, where, wish, patience, fence, lease, inbox = string.match(ARGV[2], '^(%u)(.)(%S+) (%d+) (%d+) ?(%d*) ?(%S*)$')
local fair, cluster = style == 'F', where == 'C'
patience = tonumber(patience)
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = ARGV[4] or clock[1] .. string.sub('00000' .. clock[2], -6)

local token = v and string.sub(v, 1, 16) or '0000000000000000'
local mode, owner, expires, label, count = '', '', 0, '', 0
if v and #v > 17 then
  if string.find(v, '^%x', 18) then
    local left = redis.call('PTTL', K) - string.sub(v, 50, 62)
    if left > 0 then
      mode, owner, expires, label = 'X', string.sub(v, 18, 49), now + left, string.sub(v, 63)
    end
  else
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', H, '-inf', now)) do
      redis.call('ZREM', H, gone)
      redis.call('HDEL', I, gone)
    end
    count = redis.call('ZCARD', H)
    if count > 0 then mode = string.sub(v, 18) end
  end
end

-- Lets a key live this long at least.
local function keep(key, time)
  if redis.call('PTTL', key) < time then redis.call('PEXPIRE', key, time) end
end

-- Whether a holder in mode `m` fits to those who hold now.
local function admits(m)
  if mode == '' then return true end
  if mode ~= m or m == 'X' then return false end
  return m == 'S' or count < tonumber(string.sub(m, 2))
end

local function next_token()
  return stamp > token and stamp or string.format('%016.0f', token + 1)
end

local function take(attempt, m, till, text, number)
  token, mode = number, m
  if m == 'X' then
    owner, expires, label = attempt, till, text
  else
    redis.call('ZADD', H, till, attempt)
    redis.call('HSET', I, attempt, token .. text)
    count = count + 1
  end
end

-- Ends a hold; false when it was gone.
local function free(attempt)
  if mode == 'X' then
    if owner ~= attempt then return false end
    mode = ''
    return true
  end
  if mode == '' or redis.call('ZREM', H, attempt) == 0 then return false end
  redis.call('HDEL', I, attempt)
  count = count - 1
  if count == 0 then mode = '' end
  return true
end

-- Gives the lock to the waiters whose turn it is, and tells each in its inbox. Returns the waiter that is first now, if `asked` for, and
-- stops in front of `me`, who is here and needs no message.
--
-- A waiter that gave a sign of life a moment ago gets its whole lease and is told the token: it needs no further trip. Another one,
-- and everybody in a cluster, gets as long as a waiter may be silent, and confirms; so one that died costs the others no more.
local function settle(asked)
  while true do
    local head = redis.call('ZRANGE', Q, 0, 0)[1]
    if not head or head == me then return head end
    local till, m, lease, inbox, text = string.match(redis.call('HGET', W, head) or '', '^(%d+)(%u%d*) (%d+) (%S+) (.*)$')
    local left = till and till - now or 0
    local alive = left > 0
    if alive and not admits(m) then return head end
    local number = next_token()
    local whole = fair and not cluster and left * 3 >= patience * 2
    -- Nobody listens: its connection has ended. If it lives, it comes back with its next sign of life. In a cluster the listener
    -- may be at another node, so the count means nothing.
    if alive and redis.call('PUBLISH', inbox, whole and head .. number or head) == 0 and not cluster then alive = false end
    if alive and not fair then return head end
    redis.call('ZREM', Q, head)
    redis.call('HDEL', W, head)
    if alive then
      take(head, m, now + (whole and lease or patience), text, number)
      if m == 'X' then return asked and redis.call('ZRANGE', Q, 0, 0)[1] end
    end
  end
end

local function save()
  -- While it is held alone, the mark may be too careful: it costs the next release a look.
  local more = mode == 'X' and v and string.sub(v, 17, 17) == '+' or redis.call('EXISTS', Q, T) > 0
  local value, lasts = token, tonumber(fence)
  if mode == 'X' then
    value = token .. (more and '+' or '-') .. owner .. fence .. label
    lasts = expires - now + fence
  elseif mode ~= '' then
    local longest = redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2] - now
    keep(H, longest + 1000)
    keep(I, longest + 1000)
    value, lasts = token .. '+' .. mode, longest + fence
  elseif more then
    value = token .. '+'
  end
  if value ~= v then
    redis.call('SET', K, value, 'PX', lasts)
  elseif mode ~= 'X' then
    keep(K, lasts)
  end
end
