-- For how long a request stood still as its client did not read. Events of before do not say.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS paused_ms UInt64 DEFAULT 0 AFTER queue_ms;
