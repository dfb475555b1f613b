-- Record again what a replica had recorded before this store lost its data: once, by whichever call finds it missing.
--
-- KEYS: open, then one for each committed amount, then one for each demand of each hold. ARGV: prefix, time,
-- remembered_ms, ttl_ms, committed amounts, holds, then for each committed amount: window, a moment in it, amount; then
-- for each hold: request id, when it was admitted, tokens granted, index of the demand that cut them or 0, demands, and
-- for each of these: window, amount. Last, as in every script: replica, expected.

if not lost() then return 0 end
local committed, holds, key, at = tonumber(ARGV[5]), tonumber(ARGV[6]), 2, 7
for _ = 1, committed do
  commit(KEYS[key], ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), false)
  key, at = key + 1, at + 3
end
for _ = 1, holds do
  local id, admitted, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 4])
  local demands = {}
  for i = 1, count do
    local window, amount = ARGV[at + 3 + 2 * i], tonumber(ARGV[at + 4 + 2 * i])
    demands[i] = {key = KEYS[key], window = window, bucket = bucket_at(window, admitted), amount = amount}
    key = key + 1
  end
  open(prefix .. 'request:' .. id, id, admitted, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), demands, tonumber(ARGV[4]))
  at = at + 5 + 2 * count
end
mark()
return 1
