-- Made of parts/value.lua, renew.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

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

-- Extends many holds in one trip, each only if it is still its attempt's. In a cluster it is called for one lock.
--
-- KEYS  for each lock its key; for one that may be shared also the keys 4 and 5 of lock.lua. An exclusive hold needs no other key, so it
--       is extended also while a cluster moves its slot.
-- ARGV  1 time to live of a fence counter, ms; then for each lock X or S and its attempt, and its lease, ms
-- Returns  for each lock 1 extended, 2 expired, 0 gone, 3 ask with all keys: it is not held alone
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function keep(key, time)
  if redis.call('PTTL', key) < time then redis.call('PEXPIRE', key, time) end
end
local answers, place = {}, 1
for i = 1, (#ARGV - 1) / 2 do
  local attempt, lease = sub(ARGV[2 * i], 2), tonumber(ARGV[2 * i + 1])
  local key, all = KEYS[place], sub(ARGV[2 * i], 1, 1) == 'S'
  local v = redis.call('GET', key)
  local answer = 0
  if v and sub(v, OWNER, OWNER_END) == attempt then
    answer = 2
    local fence = tonumber(sub(v, FENCE, FENCE_END))
    if redis.call('PTTL', key) > fence then
      redis.call('PEXPIRE', key, lease + fence)
      answer = 1
    end
  elseif v and #v > MARK and not string.find(v, '^%x', OWNER) then
    answer = 3
    if all then
      local H, I = KEYS[place + 1], KEYS[place + 2]
      local till = redis.call('ZSCORE', H, attempt)
      answer = 0
      if till then
        answer = 2
        if tonumber(till) > now then
          -- A write that needs no memory first: after it the server refuses none.
          redis.call('ZREM', H, '')
          redis.call('ZADD', H, now + lease, attempt)
          keep(H, lease + 1000)
          keep(I, lease + 1000)
          keep(key, lease + ARGV[1])
          answer = 1
        end
      end
    end
  end
  answers[i] = answer
  place = place + (all and 3 or 1)
end
return answers
