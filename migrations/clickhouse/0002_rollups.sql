-- Sums by minute, hour and day, for dashboards; the invoice is made from the events themselves.
--
-- Each view adds up the batch that is being stored. All sums are Int128: no sum of 64-bit amounts can overflow, and
-- gateway/analytics/rollups.py can subtract. What it adds to put a sum right, it counts in `corrections`.
CREATE TABLE IF NOT EXISTS usage_by_minute
(
    bucket DateTime('UTC'),
    tenant_id String,
    key_id String,
    served_model LowCardinality(String),
    tier LowCardinality(String),
    events Int128,
    prompt_tokens Int128,
    cached_tokens Int128,
    completion_tokens Int128,
    undelivered_tokens Int128,
    draft_tokens Int128,
    accepted_draft_tokens Int128,
    ttft_ms Int128,
    ttft_events Int128,
    total_latency_ms Int128,
    queue_ms Int128,
    engine_ns Int128,
    recompute_ns Int128,
    preemptions Int128,
    cost_nanodollars Int128,
    corrections Int128
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket)
ORDER BY (tenant_id, bucket, key_id, served_model, tier)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS usage_by_minute_view TO usage_by_minute AS
SELECT
    toDateTime(toStartOfMinute(event.occurred_at), 'UTC') AS bucket,
    tenant_id,
    key_id,
    served_model,
    tier,
    toInt128(count()) AS events,
    sum(toInt128(event.prompt_tokens)) AS prompt_tokens,
    sum(toInt128(event.cached_tokens)) AS cached_tokens,
    sum(toInt128(event.completion_tokens)) AS completion_tokens,
    sum(toInt128(event.undelivered_tokens)) AS undelivered_tokens,
    sum(toInt128(event.draft_tokens)) AS draft_tokens,
    sum(toInt128(event.accepted_draft_tokens)) AS accepted_draft_tokens,
    sum(toInt128(ifNull(event.ttft_ms, 0))) AS ttft_ms,
    toInt128(count(event.ttft_ms)) AS ttft_events,
    sum(toInt128(event.total_latency_ms)) AS total_latency_ms,
    sum(toInt128(event.queue_ms)) AS queue_ms,
    sum(toInt128(event.engine_ns)) AS engine_ns,
    sum(toInt128(arraySum(mapValues(event.recompute_ns)))) AS recompute_ns,
    sum(toInt128(event.preemptions)) AS preemptions,
    sum(toInt128(event.cost_nanodollars)) AS cost_nanodollars,
    toInt128(0) AS corrections
FROM usage_events AS event
GROUP BY bucket, tenant_id, key_id, served_model, tier;

CREATE TABLE IF NOT EXISTS usage_by_hour
(
    bucket DateTime('UTC'),
    tenant_id String,
    key_id String,
    served_model LowCardinality(String),
    tier LowCardinality(String),
    events Int128,
    prompt_tokens Int128,
    cached_tokens Int128,
    completion_tokens Int128,
    undelivered_tokens Int128,
    draft_tokens Int128,
    accepted_draft_tokens Int128,
    ttft_ms Int128,
    ttft_events Int128,
    total_latency_ms Int128,
    queue_ms Int128,
    engine_ns Int128,
    recompute_ns Int128,
    preemptions Int128,
    cost_nanodollars Int128,
    corrections Int128
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket)
ORDER BY (tenant_id, bucket, key_id, served_model, tier)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS usage_by_hour_view TO usage_by_hour AS
SELECT
    toDateTime(toStartOfHour(event.occurred_at), 'UTC') AS bucket,
    tenant_id,
    key_id,
    served_model,
    tier,
    toInt128(count()) AS events,
    sum(toInt128(event.prompt_tokens)) AS prompt_tokens,
    sum(toInt128(event.cached_tokens)) AS cached_tokens,
    sum(toInt128(event.completion_tokens)) AS completion_tokens,
    sum(toInt128(event.undelivered_tokens)) AS undelivered_tokens,
    sum(toInt128(event.draft_tokens)) AS draft_tokens,
    sum(toInt128(event.accepted_draft_tokens)) AS accepted_draft_tokens,
    sum(toInt128(ifNull(event.ttft_ms, 0))) AS ttft_ms,
    toInt128(count(event.ttft_ms)) AS ttft_events,
    sum(toInt128(event.total_latency_ms)) AS total_latency_ms,
    sum(toInt128(event.queue_ms)) AS queue_ms,
    sum(toInt128(event.engine_ns)) AS engine_ns,
    sum(toInt128(arraySum(mapValues(event.recompute_ns)))) AS recompute_ns,
    sum(toInt128(event.preemptions)) AS preemptions,
    sum(toInt128(event.cost_nanodollars)) AS cost_nanodollars,
    toInt128(0) AS corrections
FROM usage_events AS event
GROUP BY bucket, tenant_id, key_id, served_model, tier;

CREATE TABLE IF NOT EXISTS usage_by_day
(
    bucket DateTime('UTC'),
    tenant_id String,
    key_id String,
    served_model LowCardinality(String),
    tier LowCardinality(String),
    events Int128,
    prompt_tokens Int128,
    cached_tokens Int128,
    completion_tokens Int128,
    undelivered_tokens Int128,
    draft_tokens Int128,
    accepted_draft_tokens Int128,
    ttft_ms Int128,
    ttft_events Int128,
    total_latency_ms Int128,
    queue_ms Int128,
    engine_ns Int128,
    recompute_ns Int128,
    preemptions Int128,
    cost_nanodollars Int128,
    corrections Int128
)
ENGINE = SummingMergeTree
PARTITION BY toYear(bucket)
ORDER BY (tenant_id, bucket, key_id, served_model, tier)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS usage_by_day_view TO usage_by_day AS
SELECT
    toDateTime(toStartOfDay(event.occurred_at), 'UTC') AS bucket,
    tenant_id,
    key_id,
    served_model,
    tier,
    toInt128(count()) AS events,
    sum(toInt128(event.prompt_tokens)) AS prompt_tokens,
    sum(toInt128(event.cached_tokens)) AS cached_tokens,
    sum(toInt128(event.completion_tokens)) AS completion_tokens,
    sum(toInt128(event.undelivered_tokens)) AS undelivered_tokens,
    sum(toInt128(event.draft_tokens)) AS draft_tokens,
    sum(toInt128(event.accepted_draft_tokens)) AS accepted_draft_tokens,
    sum(toInt128(ifNull(event.ttft_ms, 0))) AS ttft_ms,
    toInt128(count(event.ttft_ms)) AS ttft_events,
    sum(toInt128(event.total_latency_ms)) AS total_latency_ms,
    sum(toInt128(event.queue_ms)) AS queue_ms,
    sum(toInt128(event.engine_ns)) AS engine_ns,
    sum(toInt128(arraySum(mapValues(event.recompute_ns)))) AS recompute_ns,
    sum(toInt128(event.preemptions)) AS preemptions,
    sum(toInt128(event.cost_nanodollars)) AS cost_nanodollars,
    toInt128(0) AS corrections
FROM usage_events AS event
GROUP BY bucket, tenant_id, key_id, served_model, tier;
