-- The end of release.lua, when somebody waits or the hold is not a single exclusive one.
local held = free(me)
settle()
return finish(held and 1 or 0)
