-- What all the scripts share. One tenant's keys have one hash tag, so that they live on one node of a cluster:
--
--   <prefix>open              sorted set: request id -> when its hold expires
--   <prefix>request:<id>      hash: state (open | expired | settled), at, granted, bound, count, and for each
--                             charge i: key<i>, bucket<i>, amount<i>
--   <prefix>used:<scope>      hash: h<bucket> -> held, c<bucket> -> committed
--
-- Times are Unix milliseconds. ARGV[1] is the prefix, ARGV[2] the time, or -1 for that of Redis. Numbers are exact up to
-- 2^53. Buckets are those of gateway/admission/windows.py.

local BUCKET_MS, MINUTE_BUCKETS, DAY_MS = 5000, 12, 86400000
-- How long keys outlive their last write: a window and more. What is open may be charged to any window; what counts
-- for ever stays for ever.
local KEY_LIFE_MS = {minute = 300000, day = 2 * DAY_MS, month = 40 * DAY_MS, open = 40 * DAY_MS}
local OPEN_LIFE_MS = KEY_LIFE_MS.month
-- Expired holds freed by one call, so that none takes long; the next call goes on.
local REAPED_PER_CALL = 100

local prefix = ARGV[1]
local now = tonumber(ARGV[2])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Year x 12 + month - 1. Days to a civil date as in https://howardhinnant.github.io/date_algorithms.html.
local function month_at(at)
  local days = math.floor(at / DAY_MS) + 719468
  local era = math.floor(days / 146097)
  local day = days - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  local day_of_year = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local from_march = math.floor((5 * day_of_year + 2) / 153)
  return (year + era * 400) * 12 + from_march + 2
end

local function bucket_at(window, at)
  if window == 'minute' then return math.floor(at / BUCKET_MS) end
  if window == 'day' then return math.floor(at / DAY_MS) end
  if window == 'month' then return month_at(at) end
  return 0
end

local function oldest_bucket(window)
  local newest = bucket_at(window, now)
  if window == 'minute' then return newest - MINUTE_BUCKETS end
  return newest
end

local function read_hash(key)
  local flat = redis.call('HGETALL', key)
  local hash = {}
  for i = 1, #flat, 2 do hash[flat[i]] = flat[i + 1] end
  return hash
end

-- What counts of a scope: its sum, how much of that is held, the newest bucket (-1: none), and the amounts by bucket.
-- Drops what does not count.
local function read_used(key, window)
  local oldest = oldest_bucket(window)
  local used, held, newest, amounts = 0, 0, -1, {}
  for field, value in pairs(read_hash(key)) do
    local bucket = tonumber(string.sub(field, 2))
    if bucket < oldest then
      redis.call('HDEL', key, field)
    else
      local amount = tonumber(value)
      used = used + amount
      if string.sub(field, 1, 1) == 'h' then held = held + amount end
      amounts[bucket] = (amounts[bucket] or 0) + amount
      if bucket > newest then newest = bucket end
    end
  end
  return used, held, newest, amounts
end

local function add(key, window, field, amount)
  if amount == 0 then return end
  redis.call('HINCRBY', key, field, whole(amount))
  if window ~= 'ever' then redis.call('PEXPIRE', key, KEY_LIFE_MS[window]) end
end

-- Give back what a request holds. A bucket that has left its window is not there any more.
local function free(record)
  for i = 1, tonumber(record.count) do
    local key, field, amount = record['key' .. i], 'h' .. record['bucket' .. i], tonumber(record['amount' .. i])
    local held = tonumber(redis.call('HGET', key, field) or 0)
    if held > 0 and amount > 0 then
      if held > amount then
        redis.call('HINCRBY', key, field, whole(-amount))
      else
        redis.call('HDEL', key, field)
      end
    end
  end
end

local function finish(key, id, state, remembered_ms)
  redis.call('HSET', key, 'state', state)
  redis.call('PEXPIRE', key, remembered_ms)
  redis.call('ZREM', prefix .. 'open', id)
end

local function reap(remembered_ms)
  local due = redis.call('ZRANGEBYSCORE', prefix .. 'open', '-inf', whole(now), 'LIMIT', 0, REAPED_PER_CALL)
  for _, id in ipairs(due) do
    local key = prefix .. 'request:' .. id
    local record = read_hash(key)
    if record.state == 'open' then
      free(record)
      finish(key, id, 'expired', remembered_ms)
    else
      redis.call('ZREM', prefix .. 'open', id)
    end
  end
end
