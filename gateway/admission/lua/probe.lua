#!lua
-- Whether Redis takes writes. KEYS: the key that is written, for ten seconds.

return redis.call('SET', KEYS[1], '1', 'PX', 10000)
