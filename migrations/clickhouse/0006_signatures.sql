-- By which an event is known to be a gateway's: an HMAC under the pepper. Events of before have none.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS signature String DEFAULT '';
-- As it came with a message that was put aside.
ALTER TABLE usage_dead_letters
    ADD COLUMN IF NOT EXISTS signature String DEFAULT '';
-- When a store was upgraded that had events without one: for a while others may still be under way. A new store has no
-- row here, and none is added when this file is repeated beside a sink that stores signed events already.
CREATE TABLE IF NOT EXISTS usage_signature_upgrades
(
    upgraded_at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY upgraded_at;
INSERT INTO usage_signature_upgrades
SELECT now64(3, 'UTC') FROM usage_events WHERE signature = '' HAVING count() > 0;
