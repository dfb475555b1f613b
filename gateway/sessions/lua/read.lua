-- ARGV: time, session. Answers {how long it is good, value}, or nothing.
local found = redis.call('HMGET', key, 'expires', 'value')
return later(found[1]) and {tonumber(found[1]) - now, found[2]}
