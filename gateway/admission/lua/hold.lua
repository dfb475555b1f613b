-- Hold all demands, with as many tokens as there is room for, or nothing.
--
-- KEYS: open, request, one for each demand. ARGV: prefix, time, remembered_ms, request id, ttl_ms, minimum, desired,
-- then for each demand: window, limit, fixed, per_token.
-- Returns {held (1) or refused (0), now, at, granted, bound (index of the demand that cut it, or 0), then for each
-- demand: used, held of it, newest mark or -1, and what blocks it: the mark of the bucket that must leave, NEVER, or
-- CLEAR}; or {-1}: see `lost`.

local NEVER, CLEAR = -2, -3
local FIRST = 8

if lost() then return {-1} end
reap(tonumber(ARGV[3]))

local request, id, ttl_ms = KEYS[2], ARGV[4], tonumber(ARGV[5])
local minimum, desired = tonumber(ARGV[6]), tonumber(ARGV[7])
local count = #KEYS - 2
local demands = {}
for i = 1, count do
  local at = FIRST + (i - 1) * 4
  local demand = {key = KEYS[i + 2], window = ARGV[at], blocks = CLEAR}
  demand.limit, demand.fixed, demand.per_token = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  demand.used, demand.held, demand.newest, demand.amounts = read_used(demand.key, demand.window)
  demands[i] = demand
end

local function answer(held, at, granted, bound)
  local reply = {held, now, at, granted, bound}
  for _, demand in ipairs(demands) do
    table.insert(reply, demand.used)
    table.insert(reply, demand.held)
    table.insert(reply, demand.newest)
    table.insert(reply, demand.blocks)
  end
  return reply
end

local known = read_hash(request)
if known.granted then
  return answer(1, tonumber(known.at), tonumber(known.granted), tonumber(known.bound))
end

-- The mark of the bucket after whose leaving there is room for `need`.
local function blocking_mark(demand, need)
  if need > demand.limit then return NEVER end
  local marks = {}
  for mark in pairs(demand.amounts) do table.insert(marks, mark) end
  table.sort(marks)
  local used = demand.used
  for _, mark in ipairs(marks) do
    used = used - demand.amounts[mark]
    if used + need <= demand.limit then return mark end
  end
  return NEVER
end

local granted, bound, blocked = desired, 0, false
for i, demand in ipairs(demands) do
  local room = demand.limit - demand.used - demand.fixed
  if demand.per_token * minimum > room then
    demand.blocks = blocking_mark(demand, demand.fixed + demand.per_token * minimum)
    blocked = true
  elseif demand.per_token > 0 then
    -- fmod is exact where a rounded quotient need not be.
    local tokens = (room - math.fmod(room, demand.per_token)) / demand.per_token
    if tokens < granted then granted, bound = tokens, i end
  end
end
if blocked then return answer(0, now, 0, 0) end

for _, demand in ipairs(demands) do
  local bucket, amount = bucket_at(demand.window, now), demand.fixed + demand.per_token * granted
  demand.bucket, demand.amount = bucket, amount
  demand.used, demand.held = demand.used + amount, demand.held + amount
  if amount > 0 then demand.newest = math.max(demand.newest, demand.window == 'minute' and now or bucket) end
end
open(request, id, now, granted, bound, demands, ttl_ms)
mark()
return answer(1, now, granted, bound)
