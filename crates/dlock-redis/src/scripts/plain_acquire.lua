-- `SET NX PX` for an attempt that was not abandoned; the same attempt twice is one hold.
--
-- KEYS  1 the lock   2 the attempt's tombstone
-- ARGV  1 attempt   2 lease, ms
-- Returns  '' when held, the milliseconds the holder has left (number, 0: not known) when not, {'abandoned'}
if redis.call('EXISTS', KEYS[2]) == 1 then return {'abandoned'} end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return '' end
if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return ''
end
return math.max(redis.call('PTTL', KEYS[1]), 0)
