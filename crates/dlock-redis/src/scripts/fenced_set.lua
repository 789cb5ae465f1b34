-- A write that is refused when a holder with a higher token has written before.
--
-- KEYS  1 the key to write   2 the highest token seen for it
-- ARGV  1 token, a whole number in decimal digits   2 value   3 time to live of the token, ms
-- Returns  1 written, 0 refused
--
-- Tokens are compared as numbers, however many leading zeros they have. Lua's own numbers are not exact beyond 2^53.
local function digits(text)
  return string.match(text, '^0*(%d+)$') or error('a token is a whole number in decimal digits')
end
local mine, seen = digits(ARGV[1]), redis.call('GET', KEYS[2])
seen = seen and digits(seen)
if seen and (#seen > #mine or #seen == #mine and seen > mine) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])
return 1
