-- Made of parts/value.lua, inspect.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

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

-- Who holds a lock and who waits for it. Changes nothing.
--
-- KEYS  the six of a lock, as in lock.lua
-- Returns  {holders, waiters}: each holder {attempt, mode, token, ms left, label}, each waiter {attempt, mode, label}
local K, Q, W, H, I = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local v = redis.call('GET', K)
local holders, waiters = {}, {}
if v and #v > MARK and string.find(v, '^%x', OWNER) then
  local left = redis.call('PTTL', K) - sub(v, FENCE, FENCE_END)
  if left > 0 then
    holders[1] = {sub(v, OWNER, OWNER_END), 'X', sub(v, 1, TOKEN_END), left, sub(v, LABEL)}
  end
elseif v and #v > MARK then
  local held = redis.call('ZRANGEBYSCORE', H, '(' .. now, '+inf', 'WITHSCORES')
  for i = 1, #held, 2 do
    local about = redis.call('HGET', I, held[i]) or '0000000000000000'
    holders[#holders + 1] = {held[i], sub(v, OWNER), sub(about, 1, 16), held[i + 1] - now, sub(about, 17)}
  end
end
for _, attempt in ipairs(redis.call('ZRANGE', Q, 0, -1)) do
  local till, m, label = string.match(redis.call('HGET', W, attempt) or '', '^(%d+)(%u%d*) %d+ %S+ (.*)$')
  if till and tonumber(till) > now then waiters[#waiters + 1] = {attempt, m, label} end
end
return {holders, waiters}
