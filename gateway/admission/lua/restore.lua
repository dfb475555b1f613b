-- Commit what a replica is known to have used in all: see `missing`. KEYS: open, one for each entry. ARGV: prefix, time,
-- remembered_ms, then for each entry: window, a moment in it, amount. Returns 1, or -1: see `lost`.

if lost() then return -1 end
for i = 1, #KEYS - 1 do
  local at = 4 + (i - 1) * 3
  commit(KEYS[i + 1], ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), true)
end
mark()
return 1
