-- Keep a hold alive. KEYS: open, request. ARGV: prefix, time, remembered_ms, request id, ttl_ms. Returns 1 if it is open, -1: see `lost`.

if lost() then return -1 end
reap(tonumber(ARGV[3]))
if redis.call('HGET', KEYS[2], 'state') ~= 'open' then return 0 end
redis.call('ZADD', KEYS[1], whole(now + tonumber(ARGV[5])), ARGV[4])
redis.call('PEXPIRE', KEYS[1], OPEN_LIFE_MS)
redis.call('PEXPIRE', KEYS[2], OPEN_LIFE_MS)
return 1
