-- ARGV: time, session, token, the tenant's bounds: how many sessions, how many bytes; how long a turn and a session live;
-- the share of maxmemory that is left to others; value. Answers 1, also where the same was stored before, 0 where the
-- turn is not the token's, or -1 where Redis has no memory left for it: then nothing has changed.
local token, turn_ttl, session_ttl, value = ARGV[3], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[9]
if not owned_by(token) then
  local stored = redis.call('HMGET', key, 'writer', 'expires')
  return (stored[1] == token and later(stored[2])) and 1 or 0
end
local memory = redis.call('INFO', 'memory')
local most = tonumber(string.match(memory, '\nmaxmemory:(%d+)') or 0)
if most > 0 and tonumber(string.match(memory, '\nused_memory:(%d+)')) + #value > (1 - tonumber(ARGV[8])) * most then
  return -1
end
redis.call('HSET', key, 'value', value, 'writer', token, 'expires', whole(now + session_ttl))
redis.call('HDEL', key, 'owner', 'owned_until')
redis.call('PEXPIRE', key, session_ttl)
use(#value, session_ttl, turn_ttl)
make_room(tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
