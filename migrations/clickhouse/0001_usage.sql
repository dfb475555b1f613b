-- One row for each request. The columns are the fields of gateway/metering/event.py.
--
-- An event may come more than once: the key makes copies one row, in merges and in SELECT ... FINAL; a copy has the
-- same occurred_at and so is in the same partition. A batch that is sent again with its deduplication token is dropped
-- at the door, here and in each view, for as many batches as the window says.
CREATE TABLE IF NOT EXISTS usage_events
(
    event_id UUID,
    source LowCardinality(String),
    sequence UInt64,
    schema_version UInt8,
    request_id String,
    tenant_id String,
    key_id String,
    tier LowCardinality(String),
    tier_served LowCardinality(String),
    requested_model LowCardinality(String),
    served_model LowCardinality(String),
    model_version LowCardinality(String),
    adapter_id String,
    prompt_tokens UInt64,
    cached_tokens UInt64,
    completion_tokens UInt64,
    undelivered_tokens UInt64,
    draft_tokens UInt64,
    accepted_draft_tokens UInt64,
    ttft_ms Nullable(UInt64),
    total_latency_ms UInt64,
    queue_ms UInt64,
    engine_ns UInt64,
    recompute_ns Map(LowCardinality(String), UInt64),
    preemptions UInt32,
    finish_reason LowCardinality(String),
    price_version String,
    cost_nanodollars Int64,
    occurred_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(occurred_at)
ORDER BY (tenant_id, toStartOfHour(occurred_at), event_id)
SETTINGS non_replicated_deduplication_window = 10000;

-- What came and was no event, as it came. The key is its place, so that it is here once.
CREATE TABLE IF NOT EXISTS usage_dead_letters
(
    topic LowCardinality(String),
    partition Int32,
    offset Int64,
    reason String,
    payload String,
    received_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000;
