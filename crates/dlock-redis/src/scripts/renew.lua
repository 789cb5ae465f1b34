-- Extends many holds in one trip, each only if it is still its attempt's. In a cluster it is called with one key.
--
-- KEYS  the locks
-- ARGV  1 time to live of a fence counter, ms; then for each lock its attempt and its lease, ms
-- Returns  for each lock 1 extended, 2 expired, 0 gone
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function keep(key, time)
  if redis.call('PTTL', key) < time then redis.call('PEXPIRE', key, time) end
end
local answers = {}
for i, key in ipairs(KEYS) do
  local attempt, lease = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local v = redis.call('GET', key)
  local answer = 0
  if v and string.sub(v, 18, 49) == attempt then
    answer = 2
    local fence = tonumber(string.sub(v, 50, 62))
    if redis.call('PTTL', key) > fence then
      redis.call('PEXPIRE', key, lease + fence)
      answer = 1
    end
  elseif v and #v > 17 and not string.find(v, '^%x', 18) then
    local till = redis.call('ZSCORE', key .. ':h', attempt)
    if till then
      answer = 2
      if tonumber(till) > now then
        redis.call('ZADD', key .. ':h', now + lease, attempt)
        keep(key .. ':h', lease + 1000)
        keep(key .. ':i', lease + 1000)
        keep(key, lease + ARGV[1])
        answer = 1
      end
    end
  end
  answers[i] = answer
end
return answers
