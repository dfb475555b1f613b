-- ARGV: time, session, token, how long a turn lives. Answers 1, or 0 where the turn is not the token's.
local turn_ttl = tonumber(ARGV[4])
if not owned_by(ARGV[3]) then
  return 0
end
redis.call('HSET', key, 'owned_until', whole(now + turn_ttl))
if redis.call('PTTL', key) < turn_ttl then
  redis.call('PEXPIRE', key, turn_ttl)
end
return 1
