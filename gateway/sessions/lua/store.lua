-- ARGV: time, token, how long a session lives, value. Answers 1, also where the same was stored before, or 0.
local token, session_ttl = ARGV[2], tonumber(ARGV[3])
if not owned_by(token) then
  local stored = redis.call('HMGET', key, 'writer', 'expires')
  return (stored[1] == token and later(stored[2])) and 1 or 0
end
redis.call('HSET', key, 'value', ARGV[4], 'writer', token, 'expires', whole(now + session_ttl))
redis.call('HDEL', key, 'owner', 'owned_until')
redis.call('PEXPIRE', key, session_ttl)
return 1
