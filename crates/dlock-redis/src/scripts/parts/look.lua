local v = redis.call('GET', KEYS[1])
local popped
