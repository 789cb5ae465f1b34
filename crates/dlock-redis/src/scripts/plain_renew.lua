-- Extends holds that are still their attempt's.
--
-- KEYS  the locks
-- ARGV  1 unused; then for each lock its attempt and its lease, ms
-- Returns  for each lock 1 extended, 0 gone
local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = 0
  if redis.call('GET', key) == ARGV[2 * i] then answers[i] = redis.call('PEXPIRE', key, ARGV[2 * i + 1]) end
end
return answers
