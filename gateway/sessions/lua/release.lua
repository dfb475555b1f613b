-- ARGV: time, token.
if redis.call('HGET', key, 'owner') == ARGV[2] then
  redis.call('HDEL', key, 'owner', 'owned_until')
end
