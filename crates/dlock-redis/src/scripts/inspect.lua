-- Who holds a lock and who waits for it. Changes nothing.
--
-- KEYS  1 the lock
-- Returns  {holders, waiters}: each holder {attempt, mode, token, ms left, label}, each waiter {attempt, mode, label}
local K = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local v = redis.call('GET', K)
local holders, waiters = {}, {}
if v and #v > 17 then
  if string.find(v, '^%x', 18) then
    local left = redis.call('PTTL', K) - string.sub(v, 50, 62)
    if left > 0 then
      holders[1] = {string.sub(v, 18, 49), 'X', string.sub(v, 1, 16), left, string.sub(v, 63)}
    end
  else
    local held = redis.call('ZRANGEBYSCORE', K .. ':h', '(' .. now, '+inf', 'WITHSCORES')
    for i = 1, #held, 2 do
      local about = redis.call('HGET', K .. ':i', held[i]) or '0000000000000000'
      holders[#holders + 1] = {held[i], string.sub(v, 18), string.sub(about, 1, 16), held[i + 1] - now, string.sub(about, 17)}
    end
  end
end
for _, attempt in ipairs(redis.call('ZRANGE', K .. ':q', 0, -1)) do
  local till, m, label = string.match(redis.call('HGET', K .. ':w', attempt) or '', '^(%d+)(%u%d*) %d+ %S+ (.*)$')
  if till and tonumber(till) > now then waiters[#waiters + 1] = {attempt, m, label} end
end
return {holders, waiters}
