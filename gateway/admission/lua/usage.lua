-- States of quotas. KEYS: open, one for each quota. ARGV: prefix, time, remembered_ms, then a window for each quota.
-- Returns {now, then for each: used, held of it, newest mark or -1}.

reap(tonumber(ARGV[3]))
local reply = {now}
for i = 1, #KEYS - 1 do
  local used, held, newest = read_used(KEYS[i + 1], ARGV[i + 3])
  table.insert(reply, used)
  table.insert(reply, held)
  table.insert(reply, newest)
end
return reply
