-- ARGV: time, session, token, how long a turn and a session live. Answers {begun, value}.
local token, turn_ttl, session_ttl = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('EXISTS', released(token)) == 1 then
  return {0}
end
local found = redis.call('HMGET', key, 'owner', 'owned_until', 'expires', 'value')
if found[1] and found[1] ~= token and later(found[2]) then
  return {0}
end
purge(session_ttl)
local value = later(found[3]) and found[4]
if value then
  redis.call('HSET', key, 'expires', whole(now + session_ttl))
else
  redis.call('HDEL', key, 'value', 'writer', 'expires')
end
redis.call('HSET', key, 'owner', token, 'owned_until', whole(now + turn_ttl))
redis.call('PEXPIRE', key, value and session_ttl or turn_ttl)
use(value and #value or 0, session_ttl, turn_ttl)
return {1, value}
