-- ARGV: time, session. Answers 1, or 0 where there was nothing.
local found = redis.call('HMGET', key, 'expires', 'owned_until')
remove(session)
return (later(found[1]) or later(found[2])) and 1 or 0
