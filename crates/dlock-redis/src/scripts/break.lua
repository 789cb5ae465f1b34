-- Frees a lock by force and hands it to the next live waiter. lock.lua stands before it in the same script.
--
-- KEYS  1 the lock
-- ARGV  1 empty   2 how, as in lock.lua
-- Returns  1 when somebody held it, else 0
local broken = mode ~= ''
mode, count = '', 0
redis.call('DEL', H, I)
settle()
if v or mode ~= '' then save() end
return broken and 1 or 0
