-- The end of release.lua, when somebody waits or the hold is not a single exclusive one.
local freed = free(me)
settle()
return finish(freed and 1 or 0)
