-- Made of parts/value.lua, many.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.

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

-- Takes and frees many locks in one trip: each by the short cut of acquire.lua or release.lua, or not at all. What goes wrong with one
-- does not touch the others: whoever then asks alone is told what it is.
--
-- KEYS  the locks, none of them twice; then for each lock to take that the client does not know its keys 2, 4 and 6 of lock.lua. A lock that
--       was used a moment ago has a key, and whoever finds it there needs no other
-- ARGV  1 lease + time to live of a fence counter of those to take, ms
--       then for each lock, to take it the end of its value as in acquire.lua, before it (a node of a quorum) = and the token to give out unless it is too
--       low, 16 digits, and before that a plus if its other keys are there; to free it a minus and the attempt
-- Returns  for each lock its fencing token (text), the last of its TURNS, when taken, 1 when freed, 0 when the short cut does not lead there
local keys, args, pcall, byte, type = KEYS, ARGV, redis.pcall, string.byte, type
local answers, stamp, clock = {}, nil, nil
local lasts, locks = args[1], #args - 1
local side = locks + 1
-- One look at all of them. It fails as a whole if one key is forbidden, or the command is: then each is looked at for itself.
local values = pcall('MGET', unpack(keys, 1, locks))
local failed = values.err
for i = 1, locks do
  local key, wish, v, answer = keys[i], args[i + 1], values[i], 0
  if failed then v = pcall('GET', key) end
  if byte(wish) == 45 then
    -- The client found its hold good by its own clock, and nobody has taken the lock since. A value that is a table is an error: this
    -- key is forbidden, or no lock.
    if v and type(v) ~= 'table' and sub(v, MARK, OWNER_END) == wish then
      if pcall('SET', key, sub(v, 1, TOKEN_END), 'KEEPTTL').ok then answer = 1 end
    end
  else
    local free = v and type(v) ~= 'table' and #v == TOKEN_END
    if byte(wish) == 43 then
      wish = sub(wish, 2)
      free = free or not v and pcall('EXISTS', key, keys[side], keys[side + 1], keys[side + 2]) == 0
      side = side + 3
    end
    if free then
      local token, number, last
      if byte(wish) == 61 then
        token, wish = sub(wish, 2, 17), sub(wish, 18)
        number = tonumber(token)
      else
        if not stamp then
          local t = redis.call('TIME')
          stamp = t[1] .. sub('00000' .. t[2], -6)
          clock = tonumber(stamp)
        end
        token, number = stamp, clock
      end
      last = v and tonumber(v)
      if v and not last then
        token = nil
      elseif last and number - last < TURNS then
        token = string.format('%016.0f', last + TURNS)
      end
      if token and pcall('SET', key, token .. '-' .. wish, 'PX', lasts).ok then answer = token end
    end
  end
  answers[i] = answer
end
return answers
