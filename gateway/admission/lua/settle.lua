-- Commit what was used, once, and free the hold, once.
--
-- KEYS: open, request, one for each demand. ARGV: prefix, time, remembered_ms, request id, when it was admitted, tokens
-- granted, the index of the demand that cut them or 0, then for each demand: window, used.
-- Returns the state before: open, expired, settled, or unknown; or lost: see `lost`. What was unknown is remembered as
-- it is stated here: a hold of it that comes later, on a connection that was given up, takes nothing.

local FIRST = 8
local remembered_ms = tonumber(ARGV[3])
if lost() then return 'lost' end
reap(remembered_ms)

local request, id, admitted = KEYS[2], ARGV[4], tonumber(ARGV[5])
local record = read_hash(request)
local state = record.state or 'unknown'
if state == 'settled' then return state end
if state == 'open' then free(record) end
if state == 'unknown' then
  redis.call('HSET', request, 'at', ARGV[5], 'granted', ARGV[6], 'bound', ARGV[7], 'count', 0)
end
for i = 1, #KEYS - 2 do
  local at = FIRST + (i - 1) * 2
  commit(KEYS[i + 2], ARGV[at], admitted, tonumber(ARGV[at + 1]), false)
end
finish(request, id, 'settled', remembered_ms)
mark()
return state
