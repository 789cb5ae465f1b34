-- The value of a lock's key, and the one place that knows what stands where in it (plain numbers: a function would cost every call its making):
--
--   <token, 16 digits>                               free, and nothing else exists
--   <token>-<owner, 32><fence, 13 digits><label>     one exclusive holder, and nothing else exists
--   <token>*<owner, 32><fence, 13 digits><label>     ... and there may be waiters, but no tombstones
--   <token>+<owner, 32><fence, 13 digits><label>     ... and there may be waiters or tombstones
--   <token>!<owner, 32><fence, 13 digits><label>     ... the same, and its client listens for others: listen.lua
--   <token>+S   <token>+P<limit>   <token>+          shared holders, permits, nobody: the mode stands where the owner would;
--                                                    with ! for the plus when one of the holders listens
--
-- The time to live of the key is what is left of the lease of its exclusive holder, plus `fence`: how long the token is remembered
-- after that. So an exclusive hold has ended when no more than `fence` is left. An owner begins with a hexadecimal digit, a mode does not.
--
-- An exclusive hold has TURNS tokens in a row, of which the value has the last: the tasks of its client pass it on to each other. So the
-- last one before it is at least TURNS away, also when the clock does not say so. Other holds have one.
local TURNS = 64
local TOKEN_END, MARK, OWNER, OWNER_END, FENCE, FENCE_END, LABEL = 16, 17, 18, 49, 50, 62, 63
local sub = string.sub
