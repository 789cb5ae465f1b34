-- A write that is refused when a later holder has written before.
--
-- KEYS  1 the key to write   2 what the last write came with: its token, or `<epoch> <token> <store>` if it named them
-- ARGV  1 token, a whole number in decimal digits   2 value   3 how long to remember the token, ms
--       and where locks may move from store to store: 4 epoch, a whole number in decimal digits   5 the store that the token is from
--       Left out, they are 0 and empty.
-- Returns  1 written; refused: 0, or if an epoch was given {epoch, token, store} of the last write
--
-- A higher epoch passes whatever was there before. In the same epoch the store must be the same, and the token at least as high.
-- Numbers are compared by their digits, however many leading zeros they have: Lua's own are not exact beyond 2^53.
local function digits(text)
  return string.match(text, '^0*(%d+)$') or error('a token and an epoch are whole numbers in decimal digits')
end
local function above(a, b)
  return #a > #b or #a == #b and a > b
end
local token, epoch, store = digits(ARGV[1]), digits(ARGV[4] or '0'), ARGV[5] or ''
local last = redis.call('GET', KEYS[2])
if last then
  local their_epoch, their_token, their_store = string.match(last, '^(%d+) (%d+) (.*)$')
  if not their_epoch then their_epoch, their_token, their_store = '0', digits(last), '' end
  if above(their_epoch, epoch) or their_epoch == epoch and (their_store ~= store or above(their_token, token)) then
    return ARGV[4] and {their_epoch, their_token, their_store} or 0
  end
end
redis.call('SET', KEYS[1], ARGV[2])
local mark = epoch == '0' and store == '' and token or epoch .. ' ' .. token .. ' ' .. store
redis.call('SET', KEYS[2], mark, 'PX', ARGV[3])
return 1
