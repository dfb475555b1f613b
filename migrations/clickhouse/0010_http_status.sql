-- The HTTP status that the client of an event saw; 0 is unknown. Events of before do not say.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS http_status UInt16 DEFAULT 0 AFTER streamed;
