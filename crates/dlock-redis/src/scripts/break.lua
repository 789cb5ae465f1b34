-- Frees a lock by force and hands it to the next live waiter. lock.lua stands before it in the same script.
--
-- KEYS  1 the lock
-- ARGV  1 empty   2 F or B, then C in a cluster   3 waiter lease, ms   4 time to live of a fence counter, ms
-- Returns  1 when somebody held it, else 0
local broken = mode ~= ''
mode, count = '', 0
redis.call('DEL', H, I)
settle()
if v or mode ~= '' then save() end
return broken and 1 or 0
