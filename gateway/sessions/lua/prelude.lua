-- What the scripts of sessions share. One hash for each session, so one key, which is on one node of a cluster:
--
--   value, writer, expires   what is stored, the token that stored it, until when it is good
--   owner, owned_until       the token of the turn under way, until when it keeps others out
--
-- Times are Unix milliseconds. ARGV[1] is the time, or -1 for that of Redis. The key's own life, by Redis' clock, only
-- takes away what is over.

local key = KEYS[1]
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function later(time)
  return time and tonumber(time) > now
end

local function owned_by(token)
  local turn = redis.call('HMGET', key, 'owner', 'owned_until')
  return turn[1] == token and later(turn[2])
end
