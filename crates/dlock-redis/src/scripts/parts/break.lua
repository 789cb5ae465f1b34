-- Frees a lock by force and hands it to the next live waiter. lock.lua stands before it in the same script.
--
-- KEYS  the six of a lock, as in lock.lua
-- ARGV  1 empty   2 how, as in lock.lua
-- Returns  1 when somebody held it, else 0
local broken = mode ~= ''
begin()
deaf = deaf or listens and owner ~= '' and owner
mode, count, listens = '', 0, false
redis.call('DEL', H, I)
settle()
return finish(broken and 1 or 0)
