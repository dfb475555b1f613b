-- Commit what was used, once, and free the hold, once.
--
-- KEYS: open, request, one for each demand. ARGV: prefix, time, remembered_ms, request id, when it was admitted, then
-- for each demand: window, used.
-- Returns the state before: open, expired, settled, or unknown.

local FIRST = 6
local remembered_ms = tonumber(ARGV[3])
reap(remembered_ms)

local request, id, admitted = KEYS[2], ARGV[4], tonumber(ARGV[5])
local record = read_hash(request)
local state = record.state or 'unknown'
if state == 'settled' then return state end
if state == 'open' then free(record) end
for i = 1, #KEYS - 2 do
  local window, used = ARGV[FIRST + (i - 1) * 2], tonumber(ARGV[FIRST + (i - 1) * 2 + 1])
  local bucket = bucket_at(window, admitted)
  if bucket >= oldest_bucket(window) then
    add(KEYS[i + 2], window, 'c' .. whole(bucket), used)
  end
end
finish(request, id, 'settled', remembered_ms)
return state
