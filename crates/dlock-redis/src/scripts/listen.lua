-- Made of parts/value.lua, listen.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

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

-- Whether somebody of another client waits for a lock. If nobody does, whoever comes next tells the holder (wait.lua).
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 inbox of the client that asks   2 attempt that holds the lock; empty: it only asks   3 how long to remember that it listens, ms
-- Returns  1 somebody waits, 0 nobody does
local K, Q, W, H = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local v = redis.call('GET', K)
if not v or #v < MARK then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- As many as one call looks at: another client's is hardly ever behind more of our own.
for _, attempt in ipairs(redis.call('ZRANGE', Q, 0, 255)) do
  local till, inbox = string.match(redis.call('HGET', W, attempt) or '', '^(%d+)%u%d* %d+ (%S+) ')
  if till and tonumber(till) > now and inbox ~= ARGV[1] then return 1 end
end
local me = ARGV[2]
if me ~= '' and (sub(v, OWNER, OWNER_END) == me or redis.call('ZSCORE', H, me)) then
  redis.call('HSET', W, me, '!' .. ARGV[1])
  if redis.call('PTTL', W) < tonumber(ARGV[3]) then redis.call('PEXPIRE', W, ARGV[3]) end
  if sub(v, MARK, MARK) ~= '!' then redis.call('SET', K, sub(v, 1, TOKEN_END) .. '!' .. sub(v, OWNER), 'KEEPTTL') end
end
return 0
