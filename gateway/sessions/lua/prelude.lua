-- Shared by all scripts of sessions. KEYS[1] is a hash for each session:
--
--   value, writer, expires   what is stored, the token that stored it, until when it is good
--   owner, owned_until       the token of the turn under way, until when it keeps others out
--
-- KEYS[2] and KEYS[3] are the tenant's: a sorted set of its sessions' ids, least recently used first, and a hash of the
-- bytes that each one's value takes, with their sum under ''. They are what the bounds of a tenant are counted by.
--
-- `ctx-released:{token}` says that the token was released without a turn, for as long as a turn lives.
--
-- Times are Unix milliseconds. ARGV[1] is the time, or -1 for that of Redis; ARGV[2] is the session's id. A key's own
-- life, by Redis' clock, only takes away what is over.

local key, used, sizes = KEYS[1], KEYS[2], KEYS[3]
local now, session = tonumber(ARGV[1]), ARGV[2]
local prefix = string.sub(key, 1, #key - #session)
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number + 0) -- minus zero is no integer to Redis
end

local function later(time)
  return time and tonumber(time) > now
end

local function released(token)
  return 'ctx-released:' .. token
end

local function owned_by(token)
  local turn = redis.call('HMGET', key, 'owner', 'owned_until')
  return turn[1] == token and later(turn[2])
end

local function is_owned(id)
  local turn = redis.call('HMGET', prefix .. id, 'owner', 'owned_until')
  return turn[1] and later(turn[2])
end

-- The session was used now, and its value takes `bytes`. Two uses in one millisecond keep their order.
local function use(bytes, session_ttl, turn_ttl)
  local newest = redis.call('ZRANGE', used, -1, -1, 'WITHSCORES')[2]
  local score = math.max(now, newest and tonumber(newest) + 1 / 1024 or 0)
  redis.call('ZADD', used, string.format('%.10f', score), session)
  local former = tonumber(redis.call('HGET', sizes, session) or 0)
  redis.call('HSET', sizes, session, whole(bytes))
  redis.call('HINCRBY', sizes, '', whole(bytes - former))
  redis.call('PEXPIRE', used, session_ttl + turn_ttl)
  redis.call('PEXPIRE', sizes, session_ttl + turn_ttl)
end

local function remove(id)
  redis.call('DEL', prefix .. id)
  redis.call('ZREM', used, id)
  local former = redis.call('HGET', sizes, id)
  redis.call('HDEL', sizes, id)
  if redis.call('ZCARD', used) == 0 then
    redis.call('DEL', sizes)
  elseif former then
    redis.call('HINCRBY', sizes, '', whole(-tonumber(former)))
  end
end

-- Remove the tenant's expired sessions.
local function purge(session_ttl)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', whole(now - session_ttl))) do
    if not is_owned(id) then
      remove(id)
    end
  end
end

-- Remove the tenant's least recently used sessions until it is within its bounds: none with a turn under way, and not
-- the one just used.
local function make_room(most, most_bytes)
  local kept = 0
  while redis.call('ZCARD', used) > most or tonumber(redis.call('HGET', sizes, '') or 0) > most_bytes do
    local id = redis.call('ZRANGE', used, kept, kept)[1]
    if not id then
      return
    end
    if id == session or is_owned(id) then
      kept = kept + 1
    else
      remove(id)
    end
  end
end
