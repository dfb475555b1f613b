-- A request is looked up by its id, which no key orders: a filter for each granule says where it cannot be. Parts of
-- before get theirs in the background.
ALTER TABLE usage_events
    ADD INDEX IF NOT EXISTS by_request request_id TYPE bloom_filter(0.01) GRANULARITY 1;
ALTER TABLE usage_events
    MATERIALIZE INDEX by_request;
