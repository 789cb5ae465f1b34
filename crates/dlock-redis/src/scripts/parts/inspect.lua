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
