-- Takes and frees many locks in one trip: each by the short cut of acquire.lua or release.lua, or not at all. What goes wrong with one
-- does not touch the others: whoever then asks alone is told what it is.
--
-- KEYS  the locks
-- ARGV  1 lease + time to live of a fence counter of those to take, ms
--       then for each lock, to take it the end of its value as in acquire.lua; to free it a minus and the attempt
-- Returns  for each lock its fencing token (text) when taken, 1 when freed, 0 when the short cut does not lead there
local answers, stamp = {}, nil
for i, key in ipairs(KEYS) do
  local v, wish, answer = redis.pcall('GET', key), ARGV[i + 1], 0
  if type(v) == 'table' then
    -- An error: this key is no lock.
  elseif string.byte(wish) == 45 then
    if v and string.sub(v, 17, 49) == wish and redis.call('PTTL', key) > tonumber(string.sub(v, 50, 62)) then
      if redis.pcall('SET', key, string.sub(v, 1, 16), 'KEEPTTL').ok then answer = 1 end
    end
  elseif v and #v == 16 or not v and redis.call('EXISTS', key .. ':q', key .. ':h', key .. ':t') == 0 then
    if not stamp then
      local t = redis.call('TIME')
      stamp = t[1] .. string.sub('00000' .. t[2], -6)
    end
    local token = v and stamp <= v and string.format('%016.0f', v + 1) or stamp
    if redis.pcall('SET', key, token .. '-' .. wish, 'PX', ARGV[1]).ok then answer = token end
  end
  answers[i] = answer
end
return answers
