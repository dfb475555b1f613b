-- Let no counter say that less was committed than is known. KEYS: open, one for each entry. ARGV: prefix, time,
-- remembered_ms, then for each entry: window, a moment in it, amount.

for i = 1, #KEYS - 1 do
  local key, at = KEYS[i + 1], 4 + (i - 1) * 3
  local window, amount = ARGV[at], tonumber(ARGV[at + 2])
  local bucket = bucket_at(window, tonumber(ARGV[at + 1]))
  if bucket >= oldest_bucket(window) then
    local field = 'c' .. whole(bucket)
    add(key, window, field, math.max(0, amount - tonumber(redis.call('HGET', key, field) or 0)))
  end
end
return redis.status_reply('OK')
