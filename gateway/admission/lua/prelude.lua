#!lua
-- The line above has Redis refuse a whole script where its memory is full, and not at its first write: half a
-- settlement would free a hold twice.
--
-- Shared by all scripts. One tenant's keys have one hash tag, so that they live on one node of a cluster:
--
--   <prefix>open              sorted set: request id -> when its hold expires
--   <prefix>request:<id>      hash: state (open | expired | settled), at, granted, bound, count, and for each
--                             charge i: key<i>, bucket<i>, amount<i>
--   <prefix>used:<scope>      hash: h<bucket> -> held, c<bucket> -> committed
--   <prefix>used:<scope>:parts of a month, or without an end: hash: c<bucket>:<replica> -> what of the committed amount
--                             that replica has recorded
--   <prefix>used:<scope>:last of a minute: hash: bucket -> the last admission in it
--   <prefix>replicas          hash: the replicas that have recorded anything here; it never expires
--
-- Times are Unix milliseconds. ARGV[1] is the prefix, ARGV[2] the time, or -1 for that of Redis; the last two are the
-- replica that calls, or '', and '1' where it is expected among the replicas. Numbers are exact up to 2^53. Buckets are
-- those of gateway/admission/windows.py.

local BUCKET_MS, MINUTE_MS, DAY_MS = 5000, 60000, 86400000
-- Lifetime of keys after their last write: a window and more. Open holds may be charged to any window; keys of
-- windows without an end never expire.
local KEY_LIFE_MS = {minute = 300000, day = 2 * DAY_MS, month = 40 * DAY_MS, open = 40 * DAY_MS}
local OPEN_LIFE_MS = KEY_LIFE_MS.month
-- Expired holds freed by one call, so that no call takes long; the next call continues.
local REAPED_PER_CALL = 100

local prefix = ARGV[1]
local now = tonumber(ARGV[2])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local replica, expected = ARGV[#ARGV - 1], ARGV[#ARGV] == '1'

-- Whether this store has lost what the replica had recorded in it: nothing is changed before that is recorded again.
local function lost()
  return expected and redis.call('HEXISTS', prefix .. 'replicas', replica) == 0
end

-- From now on the replica expects what it has recorded to be here.
local function mark()
  if replica ~= '' then redis.call('HSET', prefix .. 'replicas', replica, 1) end
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

-- Whether a bucket with this mark has not left the window.
local function still_counts(window, mark)
  if window == 'minute' then return mark + MINUTE_MS > now end
  return mark >= bucket_at(window, now)
end

local function read_hash(key)
  local flat = redis.call('HGETALL', key)
  local hash = {}
  for i = 1, #flat, 2 do hash[flat[i]] = flat[i + 1] end
  return hash
end

local function last_key(key)
  return key .. ':last'
end

-- The mark of each bucket of a minute, where it is known.
local function read_last(key, window)
  local last = {}
  if window == 'minute' then
    for bucket, at in pairs(read_hash(last_key(key))) do last[tonumber(bucket)] = tonumber(at) end
  end
  return last
end

-- A bucket without a known last admission counts as if there had been one at its end.
local function mark_of(window, bucket, last)
  if window == 'minute' then return last[bucket] or (bucket + 1) * BUCKET_MS - 1 end
  return bucket
end

local function set_last(key, bucket, at)
  if redis.call('HSET', last_key(key), whole(bucket), whole(at)) == 1 then
    redis.call('PEXPIRE', last_key(key), KEY_LIFE_MS.minute)
  end
end

-- What counts of a scope: its sum, how much of that is held, the newest mark (-1: none), and the amounts by mark.
-- Drops what does not count. An admission of the future, before a clock was set back, counts as one of now.
local function read_used(key, window)
  local last = read_last(key, window)
  for bucket, at in pairs(last) do
    if at > now then
      last[bucket] = now
      set_last(key, bucket, now)
    elseif not still_counts(window, at) then
      redis.call('HDEL', last_key(key), whole(bucket))
    end
  end
  local used, held, newest, amounts = 0, 0, -1, {}
  for field, value in pairs(read_hash(key)) do
    local bucket = tonumber(string.sub(field, 2))
    local mark = mark_of(window, bucket, last)
    if still_counts(window, mark) then
      local amount = tonumber(value)
      used = used + amount
      if string.sub(field, 1, 1) == 'h' then held = held + amount end
      amounts[mark] = (amounts[mark] or 0) + amount
      if mark > newest then newest = mark end
    else
      redis.call('HDEL', key, field)
    end
  end
  return used, held, newest, amounts
end

local function add(key, window, field, amount)
  if amount == 0 then return end
  redis.call('HINCRBY', key, field, whole(amount))
  if window ~= 'ever' then redis.call('PEXPIRE', key, KEY_LIFE_MS[window]) end
end

local function parts_key(key)
  return key .. ':parts'
end

-- What of an amount that this replica has in all is not committed yet. Negative where it has recorded more: a process
-- that was killed may have told this store of use that it could not write down. Where the replica's part is not known,
-- the counter is raised to at least the amount.
local function missing(key, field, part, amount)
  local own = part and redis.call('HGET', parts_key(key), part)
  local there = tonumber(own or redis.call('HGET', key, field) or 0)
  if part then redis.call('HSET', parts_key(key), part, whole(amount)) end
  if own then return amount - there end
  return math.max(0, amount - there)
end

-- Commit an amount in the bucket of a moment, if that still counts. `in_all`: it is what the replica has used there in
-- all, and not a further one.
local function commit(key, window, at, amount, in_all)
  local bucket = bucket_at(window, at)
  local mark, last = bucket, nil
  if window == 'minute' then
    last = tonumber(redis.call('HGET', last_key(key), whole(bucket)) or nil)
    mark = math.min(now, math.max(last or at, at))
  end
  if not still_counts(window, mark) then return end
  local field = 'c' .. whole(bucket)
  local part = replica ~= '' and (window == 'month' or window == 'ever') and field .. ':' .. replica
  if in_all then
    amount = missing(key, field, part, amount)
  elseif part then
    redis.call('HINCRBY', parts_key(key), part, whole(amount))
  end
  if part and window == 'month' then redis.call('PEXPIRE', parts_key(key), KEY_LIFE_MS.month) end
  add(key, window, field, amount)
  if window == 'minute' and amount > 0 and mark ~= last then set_last(key, bucket, mark) end
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

-- Write a hold. Each demand has its key, window, bucket and amount.
local function open(key, id, at, granted, bound, demands, ttl_ms)
  local record = {'state', 'open', 'at', whole(at), 'granted', whole(granted), 'bound', bound, 'count', #demands}
  for i, demand in ipairs(demands) do
    add(demand.key, demand.window, 'h' .. whole(demand.bucket), demand.amount)
    if demand.window == 'minute' and demand.amount > 0 then
      local last = tonumber(redis.call('HGET', last_key(demand.key), whole(demand.bucket)) or nil)
      set_last(demand.key, demand.bucket, math.max(last or at, at))
    end
    for name, value in pairs({key = demand.key, bucket = whole(demand.bucket), amount = whole(demand.amount)}) do
      table.insert(record, name .. i)
      table.insert(record, value)
    end
  end
  redis.call('HSET', key, unpack(record))
  redis.call('PEXPIRE', key, OPEN_LIFE_MS)
  redis.call('ZADD', prefix .. 'open', whole(now + ttl_ms), id)
  redis.call('PEXPIRE', prefix .. 'open', OPEN_LIFE_MS)
end
