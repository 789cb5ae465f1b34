-- Made of parts/value.lua, raise.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

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

-- Raises the counter of a lock while the attempt holds it: a node of a quorum agrees on a token that another node gave out.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 attempt   2 token, 16 digits
-- Returns  1 the counter is the token, written by this attempt; the counter (text) when others have got as far or further; 0 gone
local K, H, I = KEYS[1], KEYS[4], KEYS[5]
local v = redis.call('GET', K)
if not v then return 0 end
local last = sub(v, 1, TOKEN_END)
if sub(v, OWNER, OWNER_END) == ARGV[1] then
  if redis.call('PTTL', K) <= tonumber(sub(v, FENCE, FENCE_END)) then return 0 end
  -- Held alone, so the counter is this attempt's own.
  if last == ARGV[2] then return 1 end
  if last > ARGV[2] then return last end
elseif sub(v, OWNER) == 'S' then
  local t = redis.call('TIME')
  local till = redis.call('ZSCORE', H, ARGV[1])
  if not till or tonumber(till) <= t[1] * 1000 + t[2] / 1000 then return 0 end
  local mine = redis.call('HGET', I, ARGV[1]) or ''
  if sub(mine, 1, 16) == ARGV[2] then return 1 end
  -- Others share the lock, and the counter may be theirs: a token is given out once.
  if last >= ARGV[2] then return last end
  redis.call('HSET', I, ARGV[1], ARGV[2] .. sub(mine, 17))
else
  return 0
end
redis.call('SET', K, ARGV[2] .. sub(v, MARK), 'KEEPTTL')
return 1
