-- ARGV: time, session, token, the tenant's bounds: how many sessions, how many bytes; how long a turn lives.
-- The begin of a token that owns no turn may still arrive, on a connection that was given up: it is to take nothing.
if redis.call('HGET', key, 'owner') == ARGV[3] then
  redis.call('HDEL', key, 'owner', 'owned_until')
  if redis.call('HEXISTS', key, 'value') == 0 then
    remove(session)
  else
    make_room(tonumber(ARGV[4]), tonumber(ARGV[5]))
  end
else
  redis.call('SET', released(ARGV[3]), '', 'PX', ARGV[6])
end
