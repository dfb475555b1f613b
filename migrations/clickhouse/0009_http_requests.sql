-- The HTTP request behind an event: its x-request-id, its path, and whether its answer was streamed. Events of before do
-- not say.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS http_request_id String DEFAULT '' AFTER request_id,
    ADD COLUMN IF NOT EXISTS endpoint LowCardinality(String) DEFAULT '' AFTER http_request_id,
    ADD COLUMN IF NOT EXISTS streamed Bool DEFAULT false AFTER endpoint;
-- A client's report names the header. Parts of before have no such id, and so need no filter.
ALTER TABLE usage_events
    ADD INDEX IF NOT EXISTS by_http_request http_request_id TYPE bloom_filter(0.01) GRANULARITY 1;
