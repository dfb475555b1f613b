-- ARGV: time, session, token, the tenant's bounds: how many sessions, how many bytes.
if redis.call('HGET', key, 'owner') == ARGV[3] then
  redis.call('HDEL', key, 'owner', 'owned_until')
  if redis.call('HEXISTS', key, 'value') == 0 then
    remove(session)
  else
    make_room(tonumber(ARGV[4]), tonumber(ARGV[5]))
  end
end
